"""The table that a job writes: found or declared before its tasks start, changed by one commit at the end.

A new table is declared, which reserves its name without rows; its first version is the commit. The commit is made once,
also when the job is resumed: it carries the run's id, and is accepted only if no version since the beginning has it
(`JobTable`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
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
    LanceNamespaceError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableSchemaValidationError,
)

from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.lineage import RUN_PROPERTY, JobLineage
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.nested_types import map_renamings, with_standard_maps
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.lineage import index_commit
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.commit import (
    CommitConflictError,
    JobTable,
    NextVersionNamespace,
    find_run_version,
)
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, FragmentTarget, delete_fragment_files, parse_fragments

log = logging.getLogger("tiltyard.pipeline")

_MAX_COMMITS = 50
_CHECKPOINT_KEY = "landing"


class WriteMode(StrEnum):
    """What happens to a table that exists, and to one that does not."""

    CREATE = "create"
    """Make the table, or fill one that is only declared; TableAlreadyExistsError for one that has a version."""
    APPEND = "append"
    """Add rows in the table's columns and types; TableNotFoundError without a table."""
    OVERWRITE = "overwrite"
    """Replace all rows and columns by a new version, or make the table; earlier versions stay readable."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that a job writes. `base` is its version at the beginning; 0 if it had none.

    `declared` says whether this run has declared it; `schema` and `storage_version` are those of a table that is
    appended to, None for one that is created or overwritten. `lineage` is what its commit records as the rows' sources.
    """

    table: Table
    location: TableLocation
    base: int
    declared: bool
    schema: pa.Schema | None
    storage_version: str | None
    lineage: JobLineage | None = None

    def fragment_target(self, schema: pa.Schema, rows_per_file: int = ROWS_PER_FILE) -> FragmentTarget:
        """Return how tasks write it; a new table gets Arrow's standard field names within maps."""
        return FragmentTarget(
            self.location,
            self.schema or with_standard_maps(schema),
            self.schema is None,
            self.storage_version,
            rows_per_file,
        )

    def check_names(self, schema: pa.Schema) -> None:
        """Raise RefusedError for a column of a new table whose name queries could not use."""
        if self.schema is not None:
            return
        try:
            check_new_columns(schema)
        except TableSchemaValidationError as error:
            raise RefusedError(f"{error} Rename it on the way (--rename OLD=NEW).") from error

    def commit(
        self, run: Run, fragments: Sequence[str], schema: pa.Schema, properties: Mapping[str, str] | None = None
    ) -> int:
        """Make the fragments visible, once in the life of the run; return the version.

        The transaction gets the `properties`.

        Raises RunCanceledError, TableAlreadyExistsError (another writer filled a new table),
        ConcurrentModificationError (too many conflicts), what Lance raises.
        """
        if not self.base:
            first = lance.LanceOperation.Overwrite(schema, parse_fragments(fragments))
            return self._commit_new_table(run, first, properties)
        job_table = JobTable(self.table, lineage=self.lineage)
        for _ in range(_MAX_COMMITS):
            if (version := job_table.find_commit(run, self.base)) is not None:
                return version
            newest = job_table.latest()
            run.check()
            try:
                return job_table.commit(
                    newest,
                    self.operation(fragments, schema),
                    run,
                    verify=verify_run_uncommitted(run, newest),
                    properties=properties,
                )
            except CommitConflictError:
                continue
        raise ConcurrentModificationError(f"{self.table} keeps changing: {_MAX_COMMITS} commits conflicted.")

    def find_commit(self, run: Run) -> int | None:
        """Return the version that another driver of this run has committed, if any."""
        if not self.table.latest_version():
            return None
        version = find_run_version(self.table.dataset(), self.base, run.id)
        return None if version is None else self.index_lineage(version)

    def transaction(
        self,
        run: Run,
        read_version: int,
        operation: lance.LanceOperation.BaseOperation,
        job: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Return the transaction that makes the rows visible; `job` is the id of the job that the run is a part of."""
        made_from = {} if self.lineage is None else self.lineage.of_run(job or run.id).to_properties()
        return Transaction(
            read_version, operation, str(uuid4()), {**(properties or {}), **made_from, RUN_PROPERTY: run.id}
        )

    def index_lineage(self, version: int) -> int:
        """Have the catalog index the lineage of the version; return it."""
        if self.lineage is not None:
            index_commit(self.table, version)
        return version

    def last_run_suffix(self, prefix: str) -> str | None:
        """Return what follows `prefix` in the id of the newest run in the table's history that begins with it."""
        if not self.table.latest_version():
            return None
        for _, entry in read_transactions(self.table.dataset(), 0):
            run_id = (entry.transaction_properties or {}).get(RUN_PROPERTY, "")
            if run_id.startswith(prefix):
                return run_id.removeprefix(prefix)
        return None

    def discard_writes(self, fragments: Sequence[str]) -> None:
        """Delete the files, and drop the table if this run declared it and it is still empty."""
        delete_fragment_files(self.location, fragments)
        if self.declared and not self.table.latest_version():
            self.table.client.drop_table(upstream.DropTableRequest(id=self.table.id))

    def operation(self, fragments: Sequence[str], schema: pa.Schema) -> lance.LanceOperation.BaseOperation:
        """Return the Lance operation that commits the fragments."""
        if self.schema is None:
            return lance.LanceOperation.Overwrite(schema, parse_fragments(fragments))
        return lance.LanceOperation.Append(parse_fragments(fragments))

    def _commit_new_table(
        self, run: Run, operation: lance.LanceOperation.BaseOperation, properties: Mapping[str, str] | None
    ) -> int:
        """Commit version 1; where it exists already, return it if an earlier driver of this run committed it."""
        guard = NextVersionNamespace(self.table.client)
        run.check()
        try:
            if not self.table.latest_version():
                transaction = self.transaction(run, 0, operation, properties=properties)
                guard.describe_table(upstream.DescribeTableRequest(id=self.table.id))
                return self.index_lineage(int(commit_first_version(self, guard, transaction).version))
        except Exception:
            if not self.table.latest_version():
                raise
        if (version := find_run_version(self.table.dataset(), 0, run.id)) is not None:
            return self.index_lineage(version)
        raise TableAlreadyExistsError(
            f"A concurrent write has changed {self.table} meanwhile: append, or name another."
        )


def commit_first_version(
    target: TargetTable, client: upstream.LanceNamespace, transaction: Transaction
) -> lance.LanceDataset:
    """Commit the first version of a table, through `client`. Raises what Lance raises."""
    return lance.LanceDataset.commit(
        target.location.uri,
        transaction,
        storage_options=dict(target.location.options) or None,
        enable_v2_manifest_paths=True,
        namespace_client=client,
        table_id=target.table.id,
        namespace_client_managed_versioning=True,
    )


def prepare_target(run: Run, table: Table, mode: WriteMode, lineage: JobLineage | None = None) -> TargetTable:
    """Find or declare the table that a job writes; a resumed run continues with the same one.

    `lineage` is what the job makes its rows from.

    Raises TableAlreadyExistsError, TableNotFoundError (to append to), NamespaceNotFoundError, InvalidTableStateError
    (the run began with another table), PermissionDeniedError (it is read-only).
    """
    state = json.loads(run.checkpoints().get(_CHECKPOINT_KEY, "null")) or _inspect_target(table, mode)
    if "uri" in state:
        location = _resolve_location(table, state["uri"])
    else:
        run.save_checkpoint(
            _CHECKPOINT_KEY, json.dumps(state)
        )  # before the table is declared: the next driver knows that it is this run's
        location = _declare(table) if state["declared"] else table.location()
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({**state, "uri": location.uri}))
    base, declared = int(state["base"]), bool(state["declared"])
    if not base or mode is WriteMode.OVERWRITE:
        return TargetTable(table, location, base, declared, None, None, lineage)
    dataset = table.dataset(base)
    if map_renamings(dataset):
        _standardize_maps(table)
    return TargetTable(table, location, base, declared, dataset.schema, dataset.data_storage_version, lineage)


def _standardize_maps(table: Table) -> None:
    """Rename the fields within a table's maps to Arrow's names: else no rows could be appended to them.

    A commit of metadata, once in a table's life.
    """
    dataset = table.dataset()
    if renamings := map_renamings(dataset):
        dataset.alter_columns(*renamings)  # type: ignore[arg-type]  # annotated as if each were a list


def forget_location(run: Run) -> None:
    """Remove the table's location from the checkpoint once its files are deleted: the next driver prepares it anew."""
    if _CHECKPOINT_KEY in run.checkpoints():
        state = json.loads(run.checkpoints()[_CHECKPOINT_KEY])
        run.save_checkpoint(_CHECKPOINT_KEY, json.dumps({name: state[name] for name in ("base", "declared")}))


def _resolve_location(table: Table, uri: str) -> TableLocation:
    """Return the location of a table that this run has begun to write.

    Raises InvalidTableStateError if it is another now.
    """
    try:
        location = table.location()
    except TableNotFoundError as error:
        raise _replaced_error(table) from error
    if location.uri != uri:
        raise _replaced_error(table)
    return location


def _replaced_error(table: Table) -> InvalidTableStateError:
    return InvalidTableStateError(
        f"{table} is no longer the table that this job has begun to write: submit the job again."
    )


def _inspect_target(table: Table, mode: WriteMode) -> dict[str, Any]:
    try:
        table.describe()
    except TableNotFoundError as error:
        if mode is WriteMode.APPEND:
            raise TableNotFoundError(f"Table not found: {table}. Ingest with the mode 'create' to make it.") from error
        return {"base": 0, "declared": True}
    base = table.latest_version()
    if base and mode is WriteMode.CREATE:
        raise TableAlreadyExistsError(f"{table} exists: append to it, overwrite it, or name another.")
    _refuse_read_only(table)
    return {"base": base, "declared": False}


def _refuse_read_only(table: Table) -> None:
    """Raise PermissionDeniedError for a table that is read-only, before anything is written that its commit could not
    record.
    """
    try:
        listed = table.connection.caller().call("ListProtections", object_kind="table", id=table.id)
    except LanceNamespaceError as error:  # another server than ours, maybe: the commit is refused in any case
        log.debug("what protects %s is not known before its commit: %s", table, error)
        return
    for each in listed["protections"]:
        if each["kind"] == "read_only":
            why = f": {each['reason']}" if each.get("reason") else ""
            where = f"(set by {each['set_by']}{why}, on the {each['object_kind']})"
            raise PermissionDeniedError(f"{table} is read-only {where}. Nothing was written.")


def _declare(table: Table) -> TableLocation:
    """Declare the table, unless an earlier driver of this run did; return its location."""
    try:
        response = table.client.declare_table(upstream.DeclareTableRequest(id=table.id))
    except TableAlreadyExistsError:
        return table.location()
    return table.location_at(str(response.location), response.storage_options)


def verify_run_uncommitted(run: Run, base: lance.LanceDataset) -> Callable[[lance.LanceDataset], bool]:
    """Return a check that no version after `base` is a commit of this run by another driver."""

    def verify(dataset: lance.LanceDataset) -> bool:
        return find_run_version(dataset, int(base.version), run.id) is None

    return verify
