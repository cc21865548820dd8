"""Where the files of a job land: the table is found or declared first, and told of them by one commit at the end.

A new table is declared, which makes its name ours and shows no rows; its first version is the commit. The commit is
made once, whoever tries it again: it carries the run's id, and is let pass only if no version since the beginning has
it (`strict`).
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
from tiltyard.pipeline.table_location import Place
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.commit import RUN, NextOnly, OvertakenError, StrictTable, version_of
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, Target, discard, opened

_TRIES = 50
_KEPT = "landing"


class WriteMode(StrEnum):
    """What becomes of a table that is there."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class Landing:
    """A table that a job is about to write. `base` is its version at the beginning; 0 if it had none.

    `declared` is whether this run gave it its name; `schema` and `storage_version` are those of the table that is
    added to, None for one that is made anew.
    """

    table: Table
    place: Place
    base: int
    declared: bool
    schema: pa.Schema | None
    storage_version: str | None

    def target(self, schema: pa.Schema, rows_per_file: int = ROWS_PER_FILE) -> Target:
        """How tasks write it; a new one has Arrow's names for what is in its maps."""
        return Target(
            self.place,
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
            return self._first(run, lance.LanceOperation.Overwrite(schema, opened(fragments)))
        strict = StrictTable(self.table)
        for _ in range(_TRIES):
            if (version := strict.done(run, self.base)) is not None:
                return version
            newest = strict.latest()
            run.check()
            try:
                return strict.commit(newest, self.operation(fragments, schema), run, verify=without(run, newest))
            except OvertakenError:
                continue
        raise ConcurrentModificationError(f"{self.table} changes all the time: {_TRIES} commits were overtaken.")

    def last_of(self, prefix: str) -> str | None:
        """What follows `prefix` in the newest run's id in the table's history that begins with it."""
        if not self.table.latest_version():
            return None
        for _, entry in read_transactions(self.table.dataset(), 0):
            told = (entry.transaction_properties or {}).get(RUN, "")
            if told.startswith(prefix):
                return told.removeprefix(prefix)
        return None

    def withdraw(self, fragments: Sequence[str]) -> None:
        """Leave nothing behind: delete the files, and the name if it was declared by this run and is still empty."""
        discard(self.place, fragments)
        if self.declared and not self.table.latest_version():
            self.table.client.drop_table(upstream.DropTableRequest(id=self.table.id))

    def operation(self, fragments: Sequence[str], schema: pa.Schema) -> lance.LanceOperation.BaseOperation:
        """What a commit of the fragments does to the table."""
        if self.schema is None:
            return lance.LanceOperation.Overwrite(schema, opened(fragments))
        return lance.LanceOperation.Append(opened(fragments))

    def _first(self, run: Run, operation: lance.LanceOperation.BaseOperation) -> int:
        """Commit version 1, which nobody else has: then it is looked whether that was an earlier driver of this run."""
        guard = NextOnly(self.table.client)
        run.check()
        try:
            if not self.table.latest_version():
                transaction = Transaction(0, operation, str(uuid4()), {RUN: run.id})
                guard.describe_table(upstream.DescribeTableRequest(id=self.table.id))
                return int(first_version(self, guard, transaction).version)
        except Exception:
            if not self.table.latest_version():
                raise
        if (version := version_of(self.table.dataset(), 0, run.id)) is not None:
            return version
        raise TableAlreadyExistsError(f"Somebody else has written {self.table} meanwhile: append, or name another.")


def first_version(landing: Landing, client: upstream.LanceNamespace, transaction: Transaction) -> lance.LanceDataset:
    """Commit the first version of a table, through `client`. Raises what Lance raises."""
    return lance.LanceDataset.commit(
        landing.place.uri,
        transaction,
        storage_options=dict(landing.place.options) or None,
        enable_v2_manifest_paths=True,
        namespace_client=client,
        table_id=landing.table.id,
        namespace_client_managed_versioning=True,
    )


def land(run: Run, table: Table, mode: WriteMode) -> Landing:
    """Find or declare the table that a job writes; a resumed run goes on where it began.

    Raises TableAlreadyExistsError, TableNotFoundError (to append to), NamespaceNotFoundError, InvalidTableStateError
    (the run began with another table).
    """
    told = json.loads(run.kept().get(_KEPT, "null")) or _begin(table, mode)
    if "uri" in told:
        place = _same_place(table, told["uri"])
    else:
        run.keep(_KEPT, json.dumps(told))  # before the name is taken: the next driver knows whose it is
        place = _declared(table) if told["declared"] else table.place()
        run.keep(_KEPT, json.dumps({**told, "uri": place.uri}))
    base, declared = int(told["base"]), bool(told["declared"])
    if not base or mode is WriteMode.OVERWRITE:
        return Landing(table, place, base, declared, None, None)
    dataset = table.dataset(base)
    if map_renamings(dataset):
        _standardize_maps(table)
    return Landing(table, place, base, declared, dataset.schema, dataset.data_storage_version)


def _standardize_maps(table: Table) -> None:
    """Give a table's maps Arrow's names for what is in them, as its writer did not: no rows could join them else.

    A commit of metadata, once in a table's life.
    """
    dataset = table.dataset()
    if renamings := map_renamings(dataset):
        dataset.alter_columns(*renamings)  # type: ignore[arg-type]  # annotated as if each were a list


def let_go(run: Run) -> None:
    """Forget where a run's table lay, once nothing is left of what it wrote there: the next driver lands anew."""
    if _KEPT in run.kept():
        told = json.loads(run.kept()[_KEPT])
        run.keep(_KEPT, json.dumps({name: told[name] for name in ("base", "declared")}))


def _same_place(table: Table, uri: str) -> Place:
    """Where a table lies that this run has begun to write. Raises InvalidTableStateError: that one is not there now."""
    try:
        place = table.place()
    except TableNotFoundError as error:
        raise _gone(table) from error
    if place.uri != uri:
        raise _gone(table)
    return place


def _gone(table: Table) -> InvalidTableStateError:
    return InvalidTableStateError(
        f"{table} is not the table any more that this job has begun to write: ask for the job anew."
    )


def _begin(table: Table, mode: WriteMode) -> dict[str, Any]:
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


def _declared(table: Table) -> Place:
    """Where a table lies that is declared now, or was by an earlier driver of this run."""
    try:
        told = table.client.declare_table(upstream.DeclareTableRequest(id=table.id))
    except TableAlreadyExistsError:
        return table.place()
    return table.placed(str(told.location), told.storage_options)


def without(run: Run, base: lance.LanceDataset) -> Callable[[lance.LanceDataset], bool]:
    """Whether no version after `base` is a commit of this run, made by another driver of it."""

    def verify(seen: lance.LanceDataset) -> bool:
        return version_of(seen, int(base.version), run.id) is None

    return verify
