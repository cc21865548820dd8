"""Where the files of a job land: the table is found or declared first, and told of them by one commit at the end.

A new table is declared, which makes its name ours and shows no rows; its first version is the commit. The commit is
made once, whoever tries it again: it carries the run's id, and is let pass only if no version since the beginning has
it (`JobTable`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

import lance
import lance_namespace as upstream
import pyarrow as pa
from lance.dataset import Transaction
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.nested_types import map_renamings, with_standard_maps
from tiltyard.model.table_history import read_transactions
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.commit import (
    RUN_PROPERTY,
    CommitConflictError,
    JobTable,
    NextVersionNamespace,
    find_run_version,
)
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, FragmentTarget, delete_fragment_files, parse_fragments

_MAX_COMMITS = 50
_CHECKPOINT_KEY = "landing"


class WriteMode(StrEnum):
    """What becomes of a table that is there."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that a job is about to write. `base` is its version at the beginning; 0 if it had none.

    `declared` is whether this run gave it its name; `schema` and `storage_version` are those of the table that is
    added to, None for one that is made anew.
    """

    table: Table
    location: TableLocation
    base: int
    declared: bool
    schema: pa.Schema | None
    storage_version: str | None

    def target(self, schema: pa.Schema, rows_per_file: int = ROWS_PER_FILE) -> FragmentTarget:
        """How tasks write it; a new one has Arrow's names for what is in its maps."""
        return FragmentTarget(
            self.location,
            self.schema or with_standard_maps(schema),
            self.schema is None,
            self.storage_version,
            rows_per_file,
        )

    def check_names(self, schema: pa.Schema) -> None:
        """Raise RefusedError for a column that a new table could not be asked for by its name."""
        if self.schema is not None:
            return
        try:
            check_new_columns(schema)
        except TableSchemaValidationError as error:
            raise RefusedError(f"{error} Rename it on the way (--rename OLD=NEW).") from error

    def commit(self, run: Run, fragments: Sequence[str], schema: pa.Schema) -> int:
        """Make the fragments visible, once in the life of the run; the version.

        Raises RunCanceledError, TableAlreadyExistsError (somebody else filled a new table),
        ConcurrentModificationError (others keep changing it), what Lance raises.
        """
        if not self.base:
            return self._first(run, lance.LanceOperation.Overwrite(schema, parse_fragments(fragments)))
        strict = JobTable(self.table)
        for _ in range(_MAX_COMMITS):
            if (version := strict.done(run, self.base)) is not None:
                return version
            newest = strict.latest()
            run.check()
            try:
                return strict.commit(
                    newest, self.operation(fragments, schema), run, verify=verify_run_uncommitted(run, newest)
                )
            except CommitConflictError:
                continue
        raise ConcurrentModificationError(f"{self.table} changes all the time: {_MAX_COMMITS} commits were overtaken.")

    def last_run_suffix(self, prefix: str) -> str | None:
        """What follows `prefix` in the newest run's id in the table's history that begins with it."""
        if not self.table.latest_version():
            return None
        for _, entry in read_transactions(self.table.dataset(), 0):
            told = (entry.transaction_properties or {}).get(RUN_PROPERTY, "")
            if told.startswith(prefix):
                return told.removeprefix(prefix)
        return None

    def discard_writes(self, fragments: Sequence[str]) -> None:
        """Leave nothing behind: delete the files, and the name if it was declared by this run and is still empty."""
        delete_fragment_files(self.location, fragments)
        if self.declared and not self.table.latest_version():
            self.table.client.drop_table(upstream.DropTableRequest(id=self.table.id))

    def operation(self, fragments: Sequence[str], schema: pa.Schema) -> lance.LanceOperation.BaseOperation:
        """What a commit of the fragments does to the table."""
        if self.schema is None:
            return lance.LanceOperation.Overwrite(schema, parse_fragments(fragments))
        return lance.LanceOperation.Append(parse_fragments(fragments))

    def _first(self, run: Run, operation: lance.LanceOperation.BaseOperation) -> int:
        """Commit version 1, which nobody else has: then it is looked whether that was an earlier driver of this run."""
        guard = NextVersionNamespace(self.table.client)
        run.check()
        try:
            if not self.table.latest_version():
                transaction = Transaction(0, operation, str(uuid4()), {RUN_PROPERTY: run.id})
                guard.describe_table(upstream.DescribeTableRequest(id=self.table.id))
                return int(commit_first_version(self, guard, transaction).version)
        except Exception:
            if not self.table.latest_version():
                raise
        if (version := find_run_version(self.table.dataset(), 0, run.id)) is not None:
            return version
        raise TableAlreadyExistsError(f"Somebody else has written {self.table} meanwhile: append, or name another.")


def commit_first_version(
    landing: TargetTable, client: upstream.LanceNamespace, transaction: Transaction
) -> lance.LanceDataset:
    """Commit the first version of a table, through `client`. Raises what Lance raises."""
    return lance.LanceDataset.commit(
        landing.location.uri,
        transaction,
        storage_options=dict(landing.location.options) or None,
        enable_v2_manifest_paths=True,
        namespace_client=client,
        table_id=landing.table.id,
        namespace_client_managed_versioning=True,
    )


def prepare_target(run: Run, table: Table, mode: WriteMode) -> TargetTable:
    """Find or declare the table that a job writes; a resumed run goes on where it began.

    Raises TableAlreadyExistsError, TableNotFoundError (to append to), NamespaceNotFoundError, InvalidTableStateError
    (the run began with another table).
    """
    told = json.loads(run.checkpoints().get(_CHECKPOINT_KEY, "null")) or _inspect_target(table, mode)
    if "uri" in told:
        location = _resolve_location(table, told["uri"])
    else:
        run.save_checkpoint(
            _CHECKPOINT_KEY, json.dumps(told)
        )  # before the name is taken: the next driver knows whose it is
        location = _declare(table) if told["declared"] else table.location()
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({**told, "uri": location.uri}))
    base, declared = int(told["base"]), bool(told["declared"])
    if not base or mode is WriteMode.OVERWRITE:
        return TargetTable(table, location, base, declared, None, None)
    dataset = table.dataset(base)
    if map_renamings(dataset):
        _standardize_maps(table)
    return TargetTable(table, location, base, declared, dataset.schema, dataset.data_storage_version)


def _standardize_maps(table: Table) -> None:
    """Give a table's maps Arrow's names for what is in them, as its writer did not: no rows could join them else.

    A commit of metadata, once in a table's life.
    """
    dataset = table.dataset()
    if renamings := map_renamings(dataset):
        dataset.alter_columns(*renamings)  # type: ignore[arg-type]  # annotated as if each were a list


def forget_location(run: Run) -> None:
    """Forget where a run's table lay, once nothing is left of what it wrote there: the next driver lands anew."""
    if _CHECKPOINT_KEY in run.checkpoints():
        told = json.loads(run.checkpoints()[_CHECKPOINT_KEY])
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({name: told[name] for name in ("base", "declared")}))


def _resolve_location(table: Table, uri: str) -> TableLocation:
    """Where a table lies that this run has begun to write. Raises InvalidTableStateError: that one is not there now."""
    try:
        location = table.location()
    except TableNotFoundError as error:
        raise _replaced_error(table) from error
    if location.uri != uri:
        raise _replaced_error(table)
    return location


def _replaced_error(table: Table) -> InvalidTableStateError:
    return InvalidTableStateError(
        f"{table} is not the table any more that this job has begun to write: ask for the job anew."
    )


def _inspect_target(table: Table, mode: WriteMode) -> dict[str, Any]:
    try:
        table.describe()
    except TableNotFoundError:
        if mode is WriteMode.APPEND:
            raise
        return {"base": 0, "declared": True}
    base = table.latest_version()
    if base and mode is WriteMode.CREATE:
        raise TableAlreadyExistsError(f"{table} exists: append to it, overwrite it, or name another.")
    return {"base": base, "declared": False}


def _declare(table: Table) -> TableLocation:
    """Where a table lies that is declared now, or was by an earlier driver of this run."""
    try:
        told = table.client.declare_table(upstream.DeclareTableRequest(id=table.id))
    except TableAlreadyExistsError:
        return table.location()
    return table.location_at(str(told.location), told.storage_options)


def verify_run_uncommitted(run: Run, base: lance.LanceDataset) -> Callable[[lance.LanceDataset], bool]:
    """Whether no version after `base` is a commit of this run, made by another driver of it."""

    def verify(seen: lance.LanceDataset) -> bool:
        return find_run_version(seen, int(base.version), run.id) is None

    return verify
