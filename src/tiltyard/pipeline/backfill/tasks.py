"""Tasks of a backfill: compute a column's values for one fragment, and write them as a new file of that fragment.

The file has a value for each physical row of the fragment, deleted rows too, so that it stays valid whatever is deleted
meanwhile. A caller's code is loaded here only, in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.pipeline.backfill.freshness import FragmentState
from tiltyard.pipeline.table_location import TableLocation, scan_fragments
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import PickledFunction, UserFunction
from tiltyard.pipeline.version_diff import get_fragment

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

BATCH_ROWS = 8192
TRIAL_ROWS = 16
"""How many rows the code is tried on before a column is added."""


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """What computes a column's values: code called with the columns `inputs`, or an SQL expression without any code.

    Of a struct that the code returns, the field `struct_field` is used, or else the one with the column's name.
    """

    field: pa.Field
    inputs: tuple[str, ...]
    code: UserFunction | PickledFunction | None
    expression: str = ""
    struct_field: str = ""

    @property
    def scan_columns(self) -> list[str] | dict[str, str]:
        """The scanner's `columns`: the inputs of the code, or the expression itself."""
        return list(self.inputs) if self.code else {self.field.name: self.expression}

    def load_code(self) -> Callable[..., Any]:
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

    def compute(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute a value for each row. Raises RefusedError if the code fails, or returns what does not fit."""
        if self.code is None:
            return self._cast(rows.column(0), f"The expression of '{self.field.name}' has to be {self.field.type}")
        function = self.load_code()
        try:
            result = function(rows.select(list(self.inputs)))
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(f"The code of '{self.field.name}' failed: {type(error).__name__}: {error}") from error
        return self._to_array(result, rows.num_rows)

    def _to_array(self, result: Any, rows: int) -> pa.Array:
        """Return what the code returned as an array of the column's type. Raises RefusedError."""
        requirement = (
            f"The code of '{self.field.name}' has to return an Arrow array of {rows} values of {self.field.type}"
        )
        if isinstance(result, pa.RecordBatch | pa.Table):
            result = result.to_struct_array()
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            raise RefusedError(f"{requirement}, not {type(result).__name__}.")
        if len(result) != rows:
            raise RefusedError(f"{requirement}, not {type(result).__name__} of {len(result)}.")
        if pa.types.is_struct(result.type) and not pa.types.is_struct(self.field.type):
            result = result.field(self.struct_field or self.field.name)
        return self._cast(result, requirement)

    def _cast(self, values: pa.Array, requirement: str) -> pa.Array:
        try:
            return cast_array(values, self.field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RefusedError(f"{requirement}: {error}") from error


@dataclass(frozen=True, slots=True)
class TryCode:
    """A task: load the code, and call it with a few rows of some fragments that match the condition `where`."""

    location: TableLocation
    version: int
    fragments: tuple[int, ...]
    where: str | None
    function: ColumnFunction

    def __call__(self) -> None:
        """Run the task. Raises RefusedError."""
        self.function.load_code()
        if not self.fragments:
            return
        dataset = self.location.open(self.version)
        scan = {"columns": self.function.scan_columns, "filter": self.where, "limit": TRIAL_ROWS}
        for batch in scan_fragments(dataset, self.fragments, **scan):
            if batch.num_rows:
                self.function.compute(batch)


@dataclass(frozen=True, slots=True)
class FillFragment:
    """A task: compute the values of one fragment of a version, of the rows that `state` and `where` select."""

    location: TableLocation
    version: int
    fragment_id: int
    state: FragmentState
    where: str | None
    function: ColumnFunction
    file: str

    def __call__(self) -> FilledFragment:
        """Compute the values, and write the file. Raises RefusedError."""
        dataset = self.location.open(self.version)
        part = get_fragment(dataset, self.fragment_id)
        selected = self._selected_rows(part)
        rows = 0
        schema = pa.schema([self.function.field.with_nullable(True)])
        path = f"{self.location.uri}/data/{self.file}"
        options = dict(self.location.options) or None
        version = dataset.data_storage_version
        with LanceFileWriter(
            path, schema, version=version, storage_options=options, **self.location.refresh_arguments
        ) as writer:
            for values, computed in self._value_batches(dataset, part, selected):
                rows += computed
                writer.write_batch(pa.record_batch([values], schema))
        return FilledFragment(self.fragment_id, DataFile.create(dataset, self.file), rows)

    def _selected_rows(self, part: LanceFragment) -> Any:
        """Return a numpy mask over the physical rows: those that match the condition; None for all."""
        if self.where is None:
            return None
        selected = np.zeros(part.physical_rows, bool)
        addresses = part.scanner(columns=[], filter=self.where, with_row_address=True).to_table().column("_rowaddr")
        selected[addresses.to_numpy() & np.uint64(0xFFFF_FFFF)] = True
        return selected

    def _value_batches(
        self, dataset: lance.LanceDataset, part: LanceFragment, selected: Any
    ) -> Iterator[tuple[pa.Array, int]]:
        """Yield the column's values, batch by batch, and how many of them were computed."""
        keeps_values = self.state is FragmentState.NULLS or selected is not None
        batches = self._scan(dataset, part, self.function.scan_columns)
        old_batches = self._scan(dataset, part, [self.function.field.name]) if keeps_values else None
        offset = 0
        for batch in batches:
            is_live = batch.column("_rowid").is_valid().to_numpy(zero_copy_only=False)
            old = None if old_batches is None else next(old_batches).column(0)
            mask = is_live if selected is None else is_live & selected[offset : offset + batch.num_rows]
            if old is not None and self.state is FragmentState.NULLS:
                mask = mask & old.is_null().to_numpy(zero_copy_only=False)
            offset += batch.num_rows
            yield self._compute_masked(batch, old, mask), int(mask.sum())

    def _scan(self, dataset: lance.LanceDataset, part: LanceFragment, columns: Any) -> Iterator[pa.RecordBatch]:
        """Scan all physical rows; batches of two scans have the same rows."""
        scanner = dataset.scanner(
            columns=columns,
            fragments=[part],
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=BATCH_ROWS,
            strict_batch_size=True,
        )
        yield from scanner.to_batches()

    def _compute_masked(self, batch: pa.RecordBatch, old: pa.Array | None, mask: Any) -> pa.Array:
        """Compute the values of the rows in `mask`; the others keep their old value, or null without any."""
        if mask.all():
            return self.function.compute(batch)
        if old is None:
            old = pa.nulls(batch.num_rows, self.function.field.type)
        if not mask.any():
            return old
        new = self.function.compute(batch.filter(pa.array(mask)))
        positions = np.arange(batch.num_rows)
        positions[mask] = batch.num_rows + np.arange(len(new))
        return pa.concat_arrays([old, new]).take(pa.array(positions))


@dataclass(frozen=True, slots=True)
class FilledFragment:
    """A fragment's new file, and how many of its values were computed."""

    fragment_id: int
    file: DataFile
    rows: int


def fill_fragments(tasks: tuple[FillFragment, ...]) -> list[FilledFragment]:
    """Fill neighbouring fragments, one after the other, in one Spark task."""
    return [task() for task in tasks]
