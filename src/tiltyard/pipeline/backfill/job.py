"""Backfill: the values of a computed column, fragment by fragment, checkpointed by commits while others write.

    fragments that lack values → tasks write a file for each → a commit names the files that are there so far

A file belongs to the physical rows of its fragment, so it outlives appends and deletes. A fragment that a compaction
replaced meanwhile is planned again: what was committed before went into the new one with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import lance
import pyarrow as pa
from lance import LanceOperation
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.computed_columns import Computed, declared
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.model.table_history import read_transactions
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.backfill.freshness import Column, State, appended_since, states, without
from tiltyard.pipeline.backfill.new_column import NewColumn, try_code
from tiltyard.pipeline.backfill.tasks import Fill, Filled, Maker, Pickled, fill
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.delete.job import check_condition
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.sources.filesystem import delete_files
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.type_names import parse_type
from tiltyard.pipeline.udf_permission import check_udfs
from tiltyard.pipeline.user_functions import Code, find_code
from tiltyard.pipeline.version_diff import field_ids, fragments_of, grouped
from tiltyard.pipeline.writing.commit import OvertakenError, StrictTable, checked_columns

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

CHECKPOINT_SECONDS = 10.0
"""How long what tasks have made may wait for its commit."""

ROWS_OF_A_TASK = 1 << 20
"""Small fragments share a task up to so many rows: those of a fragment as jobs write them."""

ROUNDS = 20


@job("backfill")
def backfill(
    run: Run,
    catalog: Connection,
    spark: SparkSession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to fill: one that is declared as computed, or any with --udf."],
    *,
    where: Annotated[str | None, "SQL: only rows for which it is true."] = None,
    udf: Annotated[str | None, "A function RecordBatch → Array, as module:function or file.py:function."] = None,
    inputs: Annotated[list[str], "The columns that the function is given."] = [],  # noqa: B006  # the registry copies it
    type: Annotated[str | None, "The column's type (float32[128], string, …) if the table lacks it yet."] = None,  # noqa: A002  # the option's name
    udf_version: Annotated[str, "Values of another version of the function are stale."] = "",
    branch: Annotated[str | None, "A branch of the table: not served yet."] = None,
) -> Mapping[str, object]:
    """Compute the values of a column that are missing or stale.

    With --type a column that the table lacks is added, once the function was tried on a few rows. If the job fails or
    is canceled before any value was committed, the column goes again.

    \b
    Examples:
      tiltyard job backfill --uri http://127.0.0.1:2333 films embedding
      tiltyard job backfill --uri http://127.0.0.1:2333 films length --udf words.py:length --inputs title --type int64
    """
    if branch:
        raise UnsupportedOperationError("Columns of a branch are not backfilled: fill them on main, and branch then.")
    found = catalog_client.table(catalog, table)
    strict = StrictTable(found)
    dataset = strict.latest()
    given = _Given(find_code(udf) if udf else None, tuple(inputs), udf_version)
    made = pa.field(column, parse_type(type)) if type else None
    if where is not None:
        check_condition(dataset, where)
    new = NewColumn.of(run, strict, column)
    with new.dropped_if_empty():
        if given.code is not None:
            checked_columns(dataset.schema, inputs, "The inputs")
            if made is not None and column not in dataset.schema.names:
                check_column_name(column)
                try_code(run, spark, strict, Maker(made, given.inputs, given.code), where)
                new.add(made)
                dataset = strict.latest()
        filling = _filling(run, found, strict, dataset, column, given)
        return filling.run_rounds(spark, where)


@dataclass(frozen=True, slots=True)
class _Given:
    """What the caller says in the place of a declaration."""

    code: Code | None
    inputs: tuple[str, ...]
    version: str


def _filling(
    run: Run, table: Table, strict: StrictTable, dataset: lance.LanceDataset, name: str, given: _Given
) -> _Filling:
    """What computes the column. Raises TableColumnNotFoundError, InvalidInputError (nothing does)."""
    if name not in dataset.schema.names:
        raise TableColumnNotFoundError(f"The table has no column '{name}': declare it, or give --udf and --type.")
    told = dataset.schema.field(name)
    found = declared(told.metadata)
    plain = pa.field(name, told.type)
    if given.code is not None:
        identity = hashlib.sha256(json.dumps([repr(given.code), given.inputs, given.version]).encode()).hexdigest()
        maker = Maker(plain, given.inputs, given.code)
    elif isinstance(found, Computed):
        used = tuple(one for one in dataset.schema.names if re.search(rf"\b{re.escape(one)}\b", found.expression))
        identity, maker = found.identity, Maker(plain, used, None, found.expression)
    elif found is not None:
        check_udfs()
        checked_columns(dataset.schema, found.inputs, "The inputs")
        identity, maker = found.identity, Maker(plain, found.inputs, Pickled(found.code, found.struct_field))
    else:
        raise InvalidInputError(
            f"Nothing says how '{name}' is computed: declare it as a virtual column, or give --udf."
        )
    return _Filling(run, table, strict, _column(dataset, name, maker.inputs, identity), maker, int(dataset.version))


def _column(dataset: lance.LanceDataset, name: str, inputs: Sequence[str], identity: str) -> Column:
    read = frozenset(number for one in inputs for number in field_ids(dataset, one))
    return Column(name, field_ids(dataset, name), read, identity)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a task made: of inputs with this digest, when so many rows of the fragment were deleted."""

    made: Filled
    digest: str
    deletions: int


@dataclass(slots=True)
class _Filling:
    """A backfill at work. `base` is the version at its beginning."""

    run: Run
    table: Table
    strict: StrictTable
    column: Column
    maker: Maker
    base: int
    rows: int = 0
    fragments: int = 0
    version: int = 0
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _done: set[tuple[int, str]] = field(default_factory=set)
    _committed: float = field(default_factory=time.monotonic)

    def run_rounds(self, spark: SparkSession, where: str | None) -> Mapping[str, object]:
        """Plan, compute and commit until nothing is left of what was there at the beginning.

        Raises ConcurrentModificationError if others replace its fragments all the time.
        """
        self.version = self.base
        for number in range(ROUNDS):
            dataset = self.strict.latest()
            self._check_same(dataset)
            planned = self._plan(dataset, where, again=number > 0)
            if not planned:
                return {"rows": self.rows, "fragments": self.fragments, "version": self.version}
            total = self.fragments + len(planned)
            fragments = fragments_of(dataset)

            def heard(
                _: int, made: list[Filled], seen: Mapping[int, FragmentMetadata] = fragments, of: int = total
            ) -> None:
                for one in made:
                    self._take(one, seen[one.number], partly=where is not None)
                self.run.progress(rows=self.rows, fragments=self.fragments, fragments_total=of)

            rows = {number: fragments[number].physical_rows for number in planned}
            groups = grouped(rows, ROWS_OF_A_TASK, slots(spark))
            payloads = [tuple(planned[number] for number in group) for group in groups]
            run_tasks(spark, self.run, fill, payloads, on_result=heard, name=f"backfill {self.column.name}")
            self._checkpoint()
        raise ConcurrentModificationError(
            f"Others replaced fragments of {self.table} {ROUNDS} times while they were computed: run the job again "
            "when no compaction runs. What was computed is kept."
        )

    def _plan(self, dataset: lance.LanceDataset, where: str | None, *, again: bool) -> dict[int, Fill]:
        """What to do for each fragment that lacks values; rows that came in since are left to another run."""
        fragments = fragments_of(dataset)
        late = appended_since(dataset, self.base) if again else frozenset()
        asked = [
            one for one in fragments.values() if not late & {str(file.path) for file in one.files} and one.num_rows
        ]
        place = self.table.place()
        tasks = {}
        for number, state in states(dataset, self.column, asked).items():
            file = self.column.file(fragments[number])
            if state is State.FRESH or (number, self.column.digest(fragments[number])) in self._done:
                continue
            held = State.NULLS if state is State.ALL and file is None and where else state
            name = self.column.file_name(fragments[number], state, partly=where is not None)
            tasks[number] = Fill(place, int(dataset.version), number, held, where, self.maker, name)
        return tasks

    def _take(self, made: Filled, seen: FragmentMetadata, *, partly: bool) -> None:
        """Hold what a task made until the next commit; nothing new in a part of a fragment needs none."""
        digest = self.column.digest(seen)
        if partly:
            self._done.add((made.number, digest))
        if partly and not made.rows:
            self._delete([made])
        else:
            self._waiting[made.number] = _Waiting(made, digest, seen.num_deletions)
        if time.monotonic() - self._committed > CHECKPOINT_SECONDS:
            self._checkpoint()

    def _delete(self, made: Iterable[Filled]) -> None:
        made = list(made)
        if not made:
            return
        place = self.table.place()
        delete_files([f"{place.uri}/data/{one.file.path}" for one in made], place.options)

    def _checkpoint(self) -> None:
        """Commit what was made, on whatever the table is now; what does not fit it any more is forgotten."""
        while self._waiting:
            self.run.check()
            dataset = self.strict.latest()
            self._check_same(dataset)
            made = self._still_valid(dataset)
            if not made:
                break
            operation = LanceOperation.Update(
                updated_fragments=list(made.values()),
                fields_modified=sorted(self.column.fields),
                update_mode="rewrite_columns",
            )
            grew = partial(_grew, dataset)
            try:
                self.version = self.strict.commit(dataset, operation, self.run, self.column.name, verify=grew)
            except OvertakenError:
                continue
            self.fragments += len(made)
            self.rows += sum(self._waiting.pop(number).made.rows for number in made)
            break
        self._delete(one.made for one in self._waiting.values())
        self._waiting.clear()
        self._committed = time.monotonic()
        if self.version > self.base:
            self.run.progress(version=self.version)

    def _still_valid(self, dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
        """Fragments as they are now, each with its new file; those whose inputs are what they were."""
        there = fragments_of(dataset)
        found = {}
        for number, one in self._waiting.items():
            now = there.get(number)
            # A restored version may have rows again that were deleted, and so not computed.
            if now is not None and self.column.digest(now) == one.digest and now.num_deletions >= one.deletions:
                kept = [without(file, self.column.fields) for file in now.files]
                found[number] = replace(now, files=[*(file for file in kept if file), one.made.file])
        return found

    def _check_same(self, dataset: lance.LanceDataset) -> None:
        """Raise ConcurrentModificationError if the column is another one now."""
        name = self.column.name
        if name not in dataset.schema.names or dataset.schema.field(name).type != self.maker.field.type:
            raise ConcurrentModificationError(f"The column '{name}' was changed or dropped meanwhile.")
        if field_ids(dataset, name) != self.column.fields:
            raise ConcurrentModificationError(f"The column '{name}' was made anew meanwhile: run the job again.")


def _grew(old: lance.LanceDataset, new: lance.LanceDataset) -> bool:
    """Whether only appends came in between."""
    told = [entry.operation for _, entry in read_transactions(new, old.version)]
    return len(told) == new.version - old.version and all(isinstance(one, LanceOperation.Append) for one in told)
