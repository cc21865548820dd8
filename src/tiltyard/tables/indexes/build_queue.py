"""Orders of indices that are not fulfilled: those that wait or are at work, and those that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.modes import TransactionStatus
from tiltyard.tables.indexes.build_job import CREATE_INDEX, INDEX_JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lance.lance.indices import IndexDescription

    from tiltyard.context import Context, OpenTable
    from tiltyard.store import TransactionRecord

_DROPPED = "dropped"
"""The property of a failed order whose index was dropped: nobody needs to hear of it any more."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The last unfulfilled order of each index, by the index's name."""

    building: Mapping[str, TransactionRecord]
    failed: Mapping[str, TransactionRecord]

    def status(self, name: str) -> str:
        """The state of an index: `building`, `failed`, or `done` where nothing was ordered since it was built."""
        return "building" if name in self.building else "failed" if name in self.failed else "done"

    def failure(self, name: str) -> str | None:
        """Why the last order of an index failed; None if it did not."""
        return failure_of(self.failed[name]) if name in self.failed else None


def failure_of(record: TransactionRecord) -> str:
    """Why an order failed."""
    return record.error or "The server did not say why; its log has more under the id of the transaction."


def branch_name(branch: str | None) -> str | None:
    """A branch as orders name it: None for the main one."""
    return None if branch in (None, "", MAIN_BRANCH) else branch


def unfinished_orders(ctx: Context, table: OpenTable, branch: str | None) -> list[TransactionRecord]:
    """The indices of a branch that are not built yet, as transactions, oldest first."""
    store, number = ctx.store, table.record.id
    unfinished = [one for kind in (CREATE_INDEX, INDEX_JOB) for one in store.unfinished_transactions(number, kind)]
    unfinished.sort(key=lambda record: (record.created_at, record.id))
    return _of_branch(unfinished, branch)


def find_orders(ctx: Context, table: OpenTable, branch: str | None, built: Iterable[IndexDescription]) -> Orders:
    """What was ordered of a branch and is not fulfilled, as far as its columns are still there.

    An index that was built after its order failed, by whomever, fulfils it.
    """
    building = {record.payload["name"]: record for record in unfinished_orders(ctx, table, branch)}
    since = {found.name: min(_created_ms(found), default=0) for found in built}
    failed = {
        record.payload["name"]: record
        for record in _failed_orders(ctx, table, branch)
        if record.payload["name"] not in building
        and record.updated_at >= since.get(record.payload["name"], 0)
        and table.dataset.lance_schema.field(record.payload["column"]) is not None
    }
    return Orders(building, failed)


def forget_failures(ctx: Context, table: OpenTable, branch: str | None, name: str) -> bool:
    """Tell no more of orders of an index that failed; whether there were any."""
    found = [record for record in _failed_orders(ctx, table, branch) if record.payload["name"] == name]
    for record in found:
        ctx.store.merge_properties(record.id, {_DROPPED: "true"})
    return bool(found)


def cancel(ctx: Context, record: TransactionRecord) -> None:
    """Cancel an order, unless it is finished."""
    ctx.store.alter_transaction(
        record.id,
        lambda status, properties: (status if status.finished else TransactionStatus.CANCELED, properties),
    )


def _failed_orders(ctx: Context, table: OpenTable, branch: str | None) -> list[TransactionRecord]:
    failed = ctx.store.failed_transactions(table.record.id, (CREATE_INDEX, INDEX_JOB))
    return [record for record in _of_branch(failed, branch) if _DROPPED not in record.properties]


def _of_branch(records: Iterable[TransactionRecord], branch: str | None) -> list[TransactionRecord]:
    """Orders of a branch. A job that somebody submitted by itself is none: nobody waits for it by the index's name."""
    return [one for one in records if "location" in one.payload and one.payload["branch"] == branch]


def _created_ms(found: IndexDescription) -> Iterable[int]:
    return (int(segment.created_at.timestamp() * 1000) for segment in found.segments if segment.created_at)
