"""The tasks of a backfill: the values of a column for one fragment, in a file of their own beside the others.

A fragment's file has a value for each of its physical rows, deleted ones too, so that it holds whatever is deleted
meanwhile. A caller's code is loaded here alone, in Spark's Python workers.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.pipeline.backfill.freshness import State
from tiltyard.pipeline.table_location import Place, scanned
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import Code
from tiltyard.pipeline.version_diff import fragment

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

BATCH_ROWS = 8192
ROWS_TO_TRY = 16


@dataclass(frozen=True, slots=True)
class Pickled:
    """Code as a table declares it: a pickle in base64; of a struct that it answers, one field."""

    code: str
    struct_field: str = ""

    def load(self) -> Callable[..., Any]:
        """The callable, once a process."""
        return _unpickled(self.code)


@dataclass(frozen=True, slots=True)
class Maker:
    """How values are made: by code, of the columns `inputs`; or else by an SQL expression, which needs no code."""

    field: pa.Field
    inputs: tuple[str, ...]
    code: Code | Pickled | None
    expression: str = ""

    @property
    def read(self) -> list[str] | dict[str, str]:
        """What the scanner is asked for."""
        return list(self.inputs) if self.code else {self.field.name: self.expression}

    def load(self) -> Callable[..., Any]:
        """Load the code, once a process. Raises RefusedError if there is none, or if its module fails."""
        assert self.code is not None
        try:
            return self.code.load()
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(
                f"The code of '{self.field.name}' cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def make(self, rows: pa.RecordBatch) -> pa.Array:
        """Values for rows. Raises RefusedError if the code fails, or answers what does not fit."""
        if self.code is None:
            return self._cast(rows.column(0), f"The expression of '{self.field.name}' has to be {self.field.type}")
        function = self.load()
        try:
            answer = function(rows.select(list(self.inputs)))
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(f"The code of '{self.field.name}' failed: {type(error).__name__}: {error}") from error
        return self._fitted(answer, rows.num_rows)

    def _fitted(self, answer: Any, rows: int) -> pa.Array:
        told = f"The code of '{self.field.name}' has to answer an Arrow array of {rows} values of {self.field.type}"
        if isinstance(answer, pa.RecordBatch | pa.Table):
            answer = answer.to_struct_array()
        if isinstance(answer, pa.ChunkedArray):
            answer = answer.combine_chunks()
        if not isinstance(answer, pa.Array) or len(answer) != rows:
            raise RefusedError(f"{told}, not {type(answer).__name__} of {len(answer)}.")
        wanted = self.code.struct_field if isinstance(self.code, Pickled) else ""
        if pa.types.is_struct(answer.type) and not pa.types.is_struct(self.field.type):
            answer = answer.field(wanted or self.field.name)
        return self._cast(answer, told)

    def _cast(self, values: pa.Array, told: str) -> pa.Array:
        try:
            return cast_array(values, self.field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RefusedError(f"{told}: {error}") from error


@dataclass(frozen=True, slots=True)
class Trial:
    """A task: load the code, and call it with a few rows of some fragments that the condition chooses."""

    place: Place
    version: int
    fragments: tuple[int, ...]
    where: str | None
    maker: Maker

    def __call__(self) -> None:
        """Nothing. Raises RefusedError."""
        self.maker.load()
        if not self.fragments:
            return
        dataset = self.place.open(self.version)
        scan = {"columns": self.maker.read, "filter": self.where, "limit": ROWS_TO_TRY}
        for batch in scanned(dataset, self.fragments, **scan):
            if batch.num_rows:
                self.maker.make(batch)


@dataclass(frozen=True, slots=True)
class Fill:
    """A task: one fragment of a table at a version; `state` says which rows, `where` narrows them down."""

    place: Place
    version: int
    number: int
    state: State
    where: str | None
    maker: Maker
    file: str

    def __call__(self) -> Filled:
        """Compute and write. Raises RefusedError."""
        dataset = self.place.open(self.version)
        part = fragment(dataset, self.number)
        wanted = self._wanted(part)
        rows = 0
        schema = pa.schema([self.maker.field.with_nullable(True)])
        path = f"{self.place.uri}/data/{self.file}"
        options = dict(self.place.options) or None
        version = dataset.data_storage_version
        with LanceFileWriter(path, schema, version=version, storage_options=options, **self.place.refreshes) as writer:
            for values, count in self._values(dataset, part, wanted):
                rows += count
                writer.write_batch(pa.record_batch([values], schema))
        return Filled(self.number, DataFile.create(dataset, self.file), rows)

    def _wanted(self, part: LanceFragment) -> Any:
        """For each physical row whether the condition holds; None for all."""
        if self.where is None:
            return None
        chosen = np.zeros(part.physical_rows, bool)
        found = part.scanner(columns=[], filter=self.where, with_row_address=True).to_table().column("_rowaddr")
        chosen[found.to_numpy() & np.uint64(0xFFFF_FFFF)] = True
        return chosen

    def _values(self, dataset: lance.LanceDataset, part: LanceFragment, wanted: Any) -> Iterator[tuple[pa.Array, int]]:
        """The column's values, batch by batch, and how many of them were computed."""
        keeps = self.state is State.NULLS or wanted is not None
        batches = self._scan(dataset, part, self.maker.read)
        kept = self._scan(dataset, part, [self.maker.field.name]) if keeps else None
        at = 0
        for batch in batches:
            alive = batch.column("_rowid").is_valid().to_numpy(zero_copy_only=False)
            old = None if kept is None else next(kept).column(0)
            need = alive if wanted is None else alive & wanted[at : at + batch.num_rows]
            if old is not None and self.state is State.NULLS:
                need = need & old.is_null().to_numpy(zero_copy_only=False)
            at += batch.num_rows
            yield self._merged(batch, old, need), int(need.sum())

    def _scan(self, dataset: lance.LanceDataset, part: LanceFragment, columns: Any) -> Iterator[pa.RecordBatch]:
        scanner = dataset.scanner(
            columns=columns,
            fragments=[part],
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=BATCH_ROWS,
            strict_batch_size=True,
        )
        yield from scanner.to_batches()

    def _merged(self, batch: pa.RecordBatch, old: pa.Array | None, need: Any) -> pa.Array:
        if need.all():
            return self.maker.make(batch)
        if old is None:
            old = pa.nulls(batch.num_rows, self.maker.field.type)
        if not need.any():
            return old
        new = self.maker.make(batch.filter(pa.array(need)))
        positions = np.arange(batch.num_rows)
        positions[need] = batch.num_rows + np.arange(len(new))
        return pa.concat_arrays([old, new]).take(pa.array(positions))


@dataclass(frozen=True, slots=True)
class Filled:
    """A fragment's new file, and how many values in it were computed."""

    number: int
    file: DataFile
    rows: int


def fill(tasks: tuple[Fill, ...]) -> list[Filled]:
    """What the tasks run: neighbouring fragments, one after the other."""
    return [task() for task in tasks]


@lru_cache(maxsize=16)
def _unpickled(code: str) -> Callable[..., Any]:
    try:
        found = pickle.loads(base64.b64decode(code))  # noqa: S301  # in a Python worker of Spark, where code may run
    except Exception as error:
        raise RefusedError(f"The code cannot be unpickled here: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise RefusedError(f"The pickled code is {type(found).__name__}, and not a function.")
    function: Callable[..., Any] = found
    return function
