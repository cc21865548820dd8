"""Tasks of a backfill: compute a column's values for one fragment, and write them as a new file of that fragment.

The file has a value for each physical row of the fragment, deleted rows too, so that it stays valid whatever is deleted
meanwhile. A caller's code is loaded here only, in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.pipeline.backfill.freshness import FragmentState, name_of_partial_file
from tiltyard.pipeline.functions.code import MOST_ERRORS, FunctionCode
from tiltyard.pipeline.functions.host_process import ComputedBatch, function_process
from tiltyard.pipeline.sources.filesystem import rename_file
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
    code: UserFunction | PickledFunction | FunctionCode | None
    expression: str = ""
    struct_field: str = ""

    @property
    def scan_columns(self) -> list[str] | dict[str, str]:
        """The scanner's `columns`: the inputs of the code, or the expression itself."""
        return list(self.inputs) if self.code else {self.field.name: self.expression}

    def load_code(self) -> Callable[..., Any]:
        """Load the code, once a process. Raises RefusedError if there is none, or if its module fails."""
        assert isinstance(self.code, UserFunction | PickledFunction)
        try:
            return self.code.load()
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(
                f"The code of '{self.field.name}' cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def prepare(self) -> None:
        """Load the code, or start the process of a registered function. Raises RefusedError."""
        if isinstance(self.code, FunctionCode):
            function_process(self.code)
        else:
            self.load_code()

    def compute(self, rows: pa.RecordBatch) -> ComputedBatch:
        """Compute a value for each row. Raises RefusedError if the code fails, or returns what does not fit.

        A registered function may fail on some rows, which are null then.
        """
        if self.code is None:
            requirement = f"The expression of '{self.field.name}' has to be {self.field.type}"
            return ComputedBatch(self._cast(rows.column(0), requirement))
        if isinstance(self.code, FunctionCode):
            return self._call_registered(self.code, rows)
        return ComputedBatch(self._call_code(rows))

    def _call_registered(self, code: FunctionCode, rows: pa.RecordBatch) -> ComputedBatch:
        inputs = pa.RecordBatch.from_arrays([rows.column(name) for name in self.inputs], list(code.parameters))
        computed = function_process(code).compute(inputs)
        return replace(computed, values=self._to_array(computed.values, rows.num_rows))

    def _call_code(self, rows: pa.RecordBatch) -> pa.Array:
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
            result = pc.struct_field(result, self.struct_field or self.field.name)
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
        self.function.prepare()
        if not self.fragments:
            return
        dataset = self.location.open(self.version)
        scan = {"columns": self.function.scan_columns, "filter": self.where, "limit": TRIAL_ROWS}
        for batch in scan_fragments(dataset, self.fragments, **scan):
            if batch.num_rows:
                self.function.compute(batch)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that a function failed on: its position in the fragment, the type of the error and its message."""

    offset: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class _FilledBatch:
    """Values of neighbouring rows, how many of them were computed, and how many a function failed on."""

    values: pa.Array
    rows: int
    failed: int
    errors: list[FailedRow]


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
        rows, failed, errors = 0, 0, list[FailedRow]()
        schema = pa.schema([self.function.field.with_nullable(True)])
        path = f"{self.location.uri}/data/{self.file}"
        options = dict(self.location.options) or None
        version = dataset.data_storage_version
        with LanceFileWriter(
            path, schema, version=version, storage_options=options, **self.location.refresh_arguments
        ) as writer:
            for batch in self._value_batches(dataset, part, selected):
                rows += batch.rows
                failed += batch.failed
                errors += batch.errors[: MOST_ERRORS - len(errors)]
                writer.write_batch(pa.record_batch([batch.values], schema))
        file = self.file
        if failed and (partial_name := name_of_partial_file(file)) != file:
            rename_file(path, f"{self.location.uri}/data/{partial_name}", self.location.options)
            file = partial_name
        return FilledFragment(self.fragment_id, DataFile.create(dataset, file), rows, failed, tuple(errors))

    def _selected_rows(self, part: LanceFragment) -> Any:
        """Return a numpy mask over the physical rows: those that match the condition; None for all."""
        if self.where is None:
            return None
        selected = np.zeros(part.physical_rows, bool)
        addresses = part.scanner(columns=[], filter=self.where, with_row_address=True).to_table().column("_rowaddr")
        selected[addresses.to_numpy() & np.uint64(0xFFFF_FFFF)] = True
        return selected

    def _value_batches(self, dataset: lance.LanceDataset, part: LanceFragment, selected: Any) -> Iterator[_FilledBatch]:
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
            computed = self._compute_masked(batch, old, mask)
            positions = np.flatnonzero(mask)
            errors = [FailedRow(offset + int(positions[e.row]), e.kind, e.message) for e in computed.errors]
            offset += batch.num_rows
            yield _FilledBatch(computed.values, len(positions) - computed.failed, computed.failed, errors)

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

    def _compute_masked(self, batch: pa.RecordBatch, old: pa.Array | None, mask: Any) -> ComputedBatch:
        """Compute the values of the rows in `mask`; the others keep their old value, or null without any."""
        if mask.all():
            return self.function.compute(batch)
        if old is None:
            old = pa.nulls(batch.num_rows, self.function.field.type)
        if not mask.any():
            return ComputedBatch(old)
        new = self.function.compute(batch.filter(pa.array(mask)))
        positions = np.arange(batch.num_rows)
        positions[mask] = batch.num_rows + np.arange(len(new.values))
        return replace(new, values=pa.concat_arrays([old, new.values]).take(pa.array(positions)))


@dataclass(frozen=True, slots=True)
class FilledFragment:
    """A fragment's new file, and how many of its values were computed.

    `failed` rows are null, since a function failed on them; `errors` has some of them.
    """

    fragment_id: int
    file: DataFile
    rows: int
    failed: int = 0
    errors: tuple[FailedRow, ...] = ()


def fill_fragments(tasks: tuple[FillFragment, ...]) -> list[FilledFragment]:
    """Fill neighbouring fragments, one after the other, in one Spark task."""
    return [task() for task in tasks]
