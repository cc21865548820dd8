"""Index builds that are queued, running or failed: transactions of the catalog."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import TableNotFoundError

from tiltyard.model.ids import Id
from tiltyard.model.modes import TransactionStatus
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.indexes.build_job import CREATE_INDEX, INDEX_JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lance.lance.indices import IndexDescription

    from tiltyard.context import Context, OpenTable
    from tiltyard.model.branches import Branch
    from tiltyard.store import TransactionRecord
    from tiltyard.tables.indexes.builder import IndexSpec

_DROPPED = "dropped"
"""The property of a failed build whose index was dropped: it is no longer listed."""


@dataclass(frozen=True, slots=True)
class Builds:
    """The last build of each index that is unfinished or has failed, by the index's name."""

    building: Mapping[str, TransactionRecord]
    failed: Mapping[str, TransactionRecord]

    def status(self, name: str) -> str:
        """Return the state of an index: `building`, `failed`, or `done` without a build since."""
        return "building" if name in self.building else "failed" if name in self.failed else "done"

    def failure(self, name: str) -> str | None:
        """Return why the last build of an index failed; None if it did not."""
        return failure_message(self.failed[name]) if name in self.failed else None


def failure_message(record: TransactionRecord) -> str:
    """Return why a build failed."""
    return record.error or "The server gave no reason; its log has the details under the id of the transaction."


def build_properties(path: Sequence[str], spec: IndexSpec) -> dict[str, str]:
    """Return the properties of the transaction of a build: what it is to do, for people."""
    return {
        "table": str(Id(path)),
        "index_name": spec.name,
        "column": spec.column,
        "index_type": spec.index_type,
        "progress": "0.0",
    }


def queue_build(ctx: Context, spec: IndexSpec) -> None:
    """Queue the build of an index that was dropped by the server's own work. Raises TableNotFoundError."""
    table = ctx.store.table_at(spec.location)
    path = None if table is None else ctx.store.object_path(TABLE, table.id)
    if table is None or path is None:
        raise TableNotFoundError("The table was dropped.")
    ctx.store.create_transaction(CREATE_INDEX, table.id, asdict(spec), build_properties(path, spec))


def queued_builds(ctx: Context, table: OpenTable, branch: Branch) -> list[TransactionRecord]:
    """Return the unfinished builds of a branch, oldest first."""
    unfinished = [
        record
        for kind in (CREATE_INDEX, INDEX_JOB)
        for record in ctx.store.unfinished_transactions(table.record.id, kind)
    ]
    unfinished.sort(key=lambda record: (record.created_at, record.id))
    return _of_branch(unfinished, branch)


def find_builds(ctx: Context, table: OpenTable, branch: Branch, built: Iterable[IndexDescription]) -> Builds:
    """Return the unfinished and failed builds of a branch, as far as their columns still exist.

    A failed build is left out if its index was built since, by any means.
    """
    building = {record.payload["name"]: record for record in queued_builds(ctx, table, branch)}
    created = {index.name: min(_created_ms(index), default=0) for index in built}
    failed = {
        record.payload["name"]: record
        for record in _failed_builds(ctx, table, branch)
        if record.payload["name"] not in building
        and record.updated_at >= created.get(record.payload["name"], 0)
        and table.dataset.lance_schema.field(record.payload["column"]) is not None
    }
    return Builds(building, failed)


def dismiss_failures(ctx: Context, table: OpenTable, branch: Branch, name: str) -> bool:
    """List failed builds of an index no longer; return whether there were any."""
    failed = [record for record in _failed_builds(ctx, table, branch) if record.payload["name"] == name]
    for record in failed:
        ctx.store.merge_properties(record.id, {_DROPPED: "true"})
    return bool(failed)


def cancel(ctx: Context, record: TransactionRecord) -> None:
    """Cancel a build, unless it is finished."""
    ctx.store.alter_transaction(
        record.id,
        lambda status, properties: (status if status.is_final else TransactionStatus.CANCELED, properties),
        altered_by=ctx.principal.name,
    )


def _failed_builds(ctx: Context, table: OpenTable, branch: Branch) -> list[TransactionRecord]:
    failed = ctx.store.failed_transactions(table.record.id, (CREATE_INDEX, INDEX_JOB))
    return [record for record in _of_branch(failed, branch) if _DROPPED not in record.properties]


def _of_branch(records: Iterable[TransactionRecord], branch: Branch) -> list[TransactionRecord]:
    """Return the builds of a branch, without Spark jobs that were not queued by CreateTableIndex."""
    return [
        record for record in records if "location" in record.payload and record.payload["branch"] == branch.lance_name
    ]


def _created_ms(index: IndexDescription) -> Iterable[int]:
    return (int(segment.created_at.timestamp() * 1000) for segment in index.segments if segment.created_at)
