"""Tasks of a refresh: read the rows of a source that it needs, and run the code of a view, which is loaded here alone.

A chunker computes rows of each row; a UDTF computes rows of all rows, or of each group. Nothing here imports the
namespace client: importing it takes a worker longer than many a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.calls import GuardedFunction, describe_error
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.sources.casts import ColumnMapping, cast_batches
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.task_errors import RowsFailedError
from tiltyard.pipeline.writing.fragments import FragmentTarget, read_fragments, write_batches
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, write_rows
from tiltyard.view_refresh.net_rows import values_filter

if TYPE_CHECKING:
    from tiltyard.view_refresh.net_rows import NetRows

PARENT_COLUMN = "__source_row_id"
"""The column by which a chunker of whole batches names the input row of each output row."""


@dataclass(frozen=True, slots=True)
class ChangedSourceRows:
    """A task's input: rows that a source lost or gained."""

    location: TableLocation
    rows: NetRows

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns. Raises RefusedError."""
        yield from self.rows.read(self.location.open, columns)


@dataclass(frozen=True, slots=True)
class GroupRows:
    """A task's input: rows of fragments of a version that have one of the `values` in each column."""

    location: TableLocation
    version: int
    fragments: tuple[int, ...]
    values: Mapping[str, pa.Array]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns."""
        condition = values_filter(self.values)
        yield from self.location.scan(self.version, self.fragments, columns=list(columns), filter=condition)


@dataclass(frozen=True, slots=True)
class Chunker:
    """Code that computes rows of each row: the columns `outputs`; other columns of the view come from the input row."""

    name: str
    code: PickledFunction
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    view: pa.Schema
    whole_batches: bool

    def load(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Load the function from rows of the query to rows of the view. Raises RefusedError."""
        return partial(self._expand, self.code.load())

    def _expand(self, function: Callable[..., Any], rows: pa.RecordBatch) -> pa.RecordBatch:
        inputs = [get_column(rows, path) for path in self.inputs]
        expand = self._expand_batch if self.whole_batches else self._expand_rows
        try:
            parents, columns = expand(function, inputs, rows.num_rows)
        except RefusedError:
            raise
        except Exception as error:
            raise RowsFailedError(f"The code of '{self.name}' failed: {describe_error(error)}") from error
        arrays = [
            columns[name] if name in self.outputs else get_column(rows, name).take(parents) for name in self.view.names
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self.view.names)

    def _expand_rows(
        self, function: Callable[..., Any], inputs: Sequence[pa.Array], count: int
    ) -> tuple[pa.Array, Mapping[str, pa.Array]]:
        """Call the function for each row; return the input row of each output row, and the output columns."""
        parents: list[int] = []
        values: dict[str, list[Any]] = {name: [] for name in self.outputs}
        arguments = [array.to_pylist() for array in inputs]
        for number in range(count):
            for child in function(*(column[number] for column in arguments)) or ():
                parents.append(number)
                for name, value in _named_values(child, self.outputs):
                    values[name].append(value)
        columns = {name: pa.array(column, self.view.field(name).type) for name, column in values.items()}
        return pa.array(parents, pa.int64()), columns

    def _expand_batch(
        self, function: Callable[..., Any], inputs: Sequence[pa.Array], count: int
    ) -> tuple[pa.Array, Mapping[str, pa.Array]]:
        """Call the function for all rows at once; return as `_expand_rows`."""
        arguments = dict(zip(self.inputs, inputs, strict=True))
        output = function(**arguments, **{PARENT_COLUMN: pa.array(range(count), pa.int64())})
        if not isinstance(output, pa.RecordBatch) or PARENT_COLUMN not in output.schema.names:
            raise RefusedError(
                f"The code of '{self.name}' has to return a RecordBatch with the column {PARENT_COLUMN}, "
                "which says of each row which one it comes from."
            )
        columns = {name: get_column(output, name) for name in self.outputs}
        return output.column(PARENT_COLUMN).cast(pa.int64()), columns


@dataclass(frozen=True, slots=True)
class TableFunction:
    """Code that computes rows of a pyarrow.Table: of all rows, or of those with one value of `partition_by`."""

    name: str
    code: GuardedFunction
    inputs: tuple[str, ...]
    partition_by: str | None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output for a task's rows, which are sorted by `partition_by`. Raises RefusedError."""
        function = self.code.load()
        for group in self._groups(batches):
            try:
                output = function(group)
                for part in (output,) if isinstance(output, pa.RecordBatch | pa.Table) else output or ():
                    yield from _to_batches(part)
            except RefusedError:
                raise
            except Exception as error:
                raise RefusedError(f"The code of '{self.name}' failed: {describe_error(error)}") from error

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield a table for each run of rows with one value, across the borders of batches."""
        parts: list[pa.RecordBatch] = []
        key: Any = None
        for batch in batches:
            for start, end, value in self._runs(batch):
                if parts and value != key:
                    yield self._input_table(parts)
                    parts = []
                key = value
                parts.append(batch.slice(start, end - start))
        if parts:
            yield self._input_table(parts)

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[int, int, Any]]:
        """Yield the start, the end and the value of each run of rows with one value, within a batch."""
        if self.partition_by is None:
            yield from [(0, batch.num_rows, None)] if batch.num_rows else []
            return
        values = get_column(batch, self.partition_by).to_pylist()
        start = 0
        for end in range(1, len(values) + 1):
            if end == len(values) or values[end] != values[start]:
                yield start, end, values[start]
                start = end

    def _input_table(self, parts: Sequence[pa.RecordBatch]) -> pa.Table:
        table = pa.Table.from_batches(parts)
        return pa.table({path: get_column(table, path) for path in self.inputs}) if self.inputs else table


def write_groups(
    spec: WriteSpec,
    code: TableFunction,
    columns: tuple[ColumnMapping, ...],
    number: int,
    batches: Iterator[pa.RecordBatch],
) -> WriteResult:
    """Write the output of the code for a partition of whole groups. Raises RefusedError."""
    rows = cast_batches(batches, columns, "A row of the query has a value that its column's own type cannot hold.")
    return write_rows(spec, code.rows(rows), f"groups-{number}")


def rewrite_first_rows(target: FragmentTarget, fragment: str, limit: int) -> list[str]:
    """Write the first rows of a fragment again, as a fragment of so many rows."""

    def rows() -> Iterator[pa.RecordBatch]:
        remaining = limit
        for batch in read_fragments(target.location, [fragment], target.schema.names):
            if not remaining:
                return
            head = batch.slice(0, remaining)
            remaining -= head.num_rows
            yield pa.RecordBatch.from_arrays(head.columns, schema=target.schema)

    return write_batches(target, rows())


def get_column(rows: pa.RecordBatch | pa.Table, path: str) -> Any:
    """Return a column, or a field within one (`a.b`). Raises RefusedError."""
    if path in rows.schema.names:
        return rows.column(path)
    first, *inner = path.replace("`", "").split(".")
    if first not in rows.schema.names:
        raise RefusedError(f"The query has no column '{path}'; it has {', '.join(rows.schema.names)}.")
    try:
        return pc.struct_field(rows.column(first), inner)
    except pa.ArrowInvalid as error:
        raise RefusedError(f"The query has no column '{path}': {error}.") from error


def _named_values(child: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield a row's values by name: of a mapping, a named tuple, or a plain tuple in the columns' order."""
    if hasattr(child, "_asdict"):
        child = child._asdict()
    if isinstance(child, Mapping):
        return ((name, child[name]) for name in names)
    return zip(names, child, strict=True)


def _to_batches(output: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(output, pa.RecordBatch):
        yield output
    elif isinstance(output, pa.Table):
        yield from output.to_batches()
    else:
        raise RefusedError(f"A UDTF returns RecordBatches or Tables, not {type(output).__name__}.")
