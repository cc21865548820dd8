"""Code of views: a chunker, which makes rows of each row, and a UDTF, which makes rows of all rows, or of each group.

The code is loaded in Spark's Python workers alone. Its envelope is the one that Lance's own clients send: JSON with the
pickled callable (`chunker_payload`, `udtf_payload`, base64) and the schema of what it makes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.filling import Pickled
from tiltyard.pipeline.refusing import RefusedError
from tiltyard.views import ViewDefinition, ViewKind

PARENT = "__source_row_id"
"""The column by which a chunker of whole batches says which row each of its rows comes from."""


@dataclass(frozen=True, slots=True)
class Chunker:
    """Code that makes rows of each row: `made` are the columns that it makes, others of the view come from the row."""

    name: str
    code: Pickled
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
    code: Pickled
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


def code_of(definition: ViewDefinition, view: pa.Schema, query: Sequence[str]) -> Chunker | TableFunction:
    """The code of a view whose query gives these columns; nothing of it is loaded. Raises InvalidInputError."""
    told = json.loads(definition.udtf)
    kind, name = definition.kind, told["udtf_name"]
    envelope = _envelope(told["udtf"], f"{kind}_payload")
    code = Pickled(envelope[f"{kind}_payload"])
    given = told.get("input_columns")
    inputs = tuple(given if given is not None else envelope.get("input_columns") or ())
    if kind is ViewKind.UDTF:
        if told.get("partition_by_indexed_column"):
            raise InvalidInputError("Name the column to group by as 'partition_by': any column will do.")
        return TableFunction(name, code, inputs, told.get("partition_by") or envelope.get("partition_by"))
    if not inputs:
        raise InvalidInputError(f"The chunker '{name}' reads no column: name its input_columns.")
    made = _made(envelope, view, query)
    batches = told.get("batch")
    return Chunker(name, code, inputs, made, view, bool(envelope.get("batch") if batches is None else batches))


def _made(envelope: Mapping[str, Any], view: pa.Schema, query: Sequence[str]) -> tuple[str, ...]:
    """The columns that a chunker makes: those of its schema, else those of the view that the query has not."""
    if "output_schema_bytes" in envelope:
        names = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(envelope["output_schema_bytes"]))).names
        if unknown := [name for name in names if name not in view.names]:
            raise InvalidInputError(f"The view has no column '{unknown[0]}' for what its chunker makes.")
        return tuple(names)
    return tuple(name for name in view.names if name not in query)


def _envelope(text: str, payload: str) -> Mapping[str, Any]:
    """What an envelope holds. Raises InvalidInputError for one of another form."""
    try:
        told = json.loads(base64.b64decode(text))
    except ValueError as error:
        raise InvalidInputError(f"The udtf is no JSON in base64: {error}.") from error
    if not isinstance(told, dict) or not isinstance(told.get(payload), str):
        raise InvalidInputError(f"The udtf is JSON with the pickled callable, in base64, as '{payload}'.")
    return told


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
