"""What runs in the tasks of a refresh: the code of views, loaded here alone, in Spark's Python workers.

A chunker makes rows of each row; a UDTF makes rows of all rows, or of each group. Nothing here imports the namespace
client: that would take a worker longer than many a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import PickledFunction
from tiltyard.pipeline.writing.casts import ColumnMapping, cast_batches
from tiltyard.pipeline.writing.fragments import FragmentTarget, read_fragments, write_batches
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, write_rows

PARENT = "__source_row_id"
"""The column by which a chunker of whole batches says which row each of its rows comes from."""


@dataclass(frozen=True, slots=True)
class Chunker:
    """Code that makes rows of each row: `made` are the columns that it makes, others of the view come from the row."""

    name: str
    code: PickledFunction
    inputs: tuple[str, ...]
    made: tuple[str, ...]
    view: pa.Schema
    whole_batches: bool

    def load(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """What makes rows of the view of rows of the query. Raises RefusedError."""
        return partial(self._expanded, self.code.load())

    def _expanded(self, function: Callable[..., Any], rows: pa.RecordBatch) -> pa.RecordBatch:
        inputs = [column(rows, path) for path in self.inputs]
        expand = self._of_batch if self.whole_batches else self._one_by_one
        try:
            parents, made = expand(function, inputs, rows.num_rows)
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(f"The code of '{self.name}' failed: {type(error).__name__}: {error}") from error
        arrays = [made[name] if name in self.made else column(rows, name).take(parents) for name in self.view.names]
        return pa.RecordBatch.from_arrays(arrays, names=self.view.names)

    def _one_by_one(
        self, function: Callable[..., Any], inputs: Sequence[pa.Array], count: int
    ) -> tuple[pa.Array, Mapping[str, pa.Array]]:
        parents: list[int] = []
        values: dict[str, list[Any]] = {name: [] for name in self.made}
        given = [array.to_pylist() for array in inputs]
        for number in range(count):
            for child in function(*(array[number] for array in given)) or ():
                parents.append(number)
                for name, value in _named(child, self.made):
                    values[name].append(value)
        made = {name: pa.array(found, self.view.field(name).type) for name, found in values.items()}
        return pa.array(parents, pa.int64()), made

    def _of_batch(
        self, function: Callable[..., Any], inputs: Sequence[pa.Array], count: int
    ) -> tuple[pa.Array, Mapping[str, pa.Array]]:
        given = dict(zip(self.inputs, inputs, strict=True))
        made = function(**given, **{PARENT: pa.array(range(count), pa.int64())})
        if not isinstance(made, pa.RecordBatch) or PARENT not in made.schema.names:
            raise RefusedError(
                f"The code of '{self.name}' has to answer a RecordBatch with the column {PARENT}, "
                "which says of each row which one it comes from."
            )
        return made.column(PARENT).cast(pa.int64()), {name: column(made, name) for name in self.made}


@dataclass(frozen=True, slots=True)
class TableFunction:
    """Code that makes rows of a pyarrow.Table: of all rows, or of those that have one value of `partition_by`."""

    name: str
    code: PickledFunction
    inputs: tuple[str, ...]
    partition_by: str | None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What it makes of a task's rows, which are sorted by `partition_by`. Raises RefusedError."""
        function = self.code.load()
        for group in self._groups(batches):
            try:
                answer = function(group)
                for found in (answer,) if isinstance(answer, pa.RecordBatch | pa.Table) else answer or ():
                    yield from _batches(found)
            except RefusedError:
                raise
            except Exception as error:
                raise RefusedError(f"The code of '{self.name}' failed: {type(error).__name__}: {error}") from error

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables of neighbouring rows with one value, however batches cut them."""
        held: list[pa.RecordBatch] = []
        key: Any = None
        for batch in batches:
            for start, end, value in self._runs(batch):
                if held and value != key:
                    yield self._taken(held)
                    held = []
                key = value
                held.append(batch.slice(start, end - start))
        if held:
            yield self._taken(held)

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[int, int, Any]]:
        if self.partition_by is None:
            yield from [(0, batch.num_rows, None)] if batch.num_rows else []
            return
        values = column(batch, self.partition_by).to_pylist()
        start = 0
        for end in range(1, len(values) + 1):
            if end == len(values) or values[end] != values[start]:
                yield start, end, values[start]
                start = end

    def _taken(self, held: Sequence[pa.RecordBatch]) -> pa.Table:
        table = pa.Table.from_batches(held)
        return pa.table({path: column(table, path) for path in self.inputs}) if self.inputs else table


def write_groups(
    recipe: WriteSpec,
    code: TableFunction,
    columns: tuple[ColumnMapping, ...],
    number: int,
    batches: Iterator[pa.RecordBatch],
) -> WriteResult:
    """Write what the code makes of a partition of whole groups. Raises RefusedError."""
    fitting = cast_batches(batches, columns, "A row of the query has a value that its column's own type cannot hold.")
    return write_rows(recipe, code.rows(fitting), f"groups-{number}")


def first_rows(target: FragmentTarget, fragment: str, most: int) -> list[str]:
    """Write the first rows of a fragment again, as one of so many rows."""

    def rows() -> Iterator[pa.RecordBatch]:
        left = most
        for batch in read_fragments(target.location, [fragment], target.schema.names):
            if not left:
                return
            some = batch.slice(0, left)
            left -= some.num_rows
            yield pa.RecordBatch.from_arrays(some.columns, schema=target.schema)

    return write_batches(target, rows())


def column(rows: pa.RecordBatch | pa.Table, path: str) -> Any:
    """A column, or a field within one (`a.b`). Raises RefusedError."""
    if path in rows.schema.names:
        return rows.column(path)
    first, *inner = path.replace("`", "").split(".")
    if first not in rows.schema.names:
        raise RefusedError(f"The query gives no column '{path}'; it gives {', '.join(rows.schema.names)}.")
    try:
        return pc.struct_field(rows.column(first), inner)
    except pa.ArrowInvalid as error:
        raise RefusedError(f"The query gives no column '{path}': {error}.") from error


def _named(child: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """A row's values by their names: of a mapping, a named tuple, or a plain one in the columns' order."""
    if hasattr(child, "_asdict"):
        child = child._asdict()
    if isinstance(child, Mapping):
        return ((name, child[name]) for name in names)
    return zip(names, child, strict=True)


def _batches(found: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(found, pa.RecordBatch):
        yield found
    elif isinstance(found, pa.Table):
        yield from found.to_batches()
    else:
        raise RefusedError(f"A UDTF answers RecordBatches or Tables, not {type(found).__name__}.")
