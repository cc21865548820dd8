"""Convert rows of a source to rows of a table: select, rename and cast columns; reject rows that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.computed_columns import read_declaration
from tiltyard.model.columns.duplicate_columns import is_filled_by_deduplicate
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import cast_array, is_same_type
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.calls import call_in_parts, describe_error
from tiltyard.pipeline.sources.text_blocks import RejectedRow

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """A column to produce: its field, and the source column that it is cast from (None: nulls)."""

    field: pa.Field
    source: str | None


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The caller's choice of columns: `names` (empty: all), `renamed` old → new, `types` by new name.

    `nulls` are columns of the table that the source lacks, and that become null.
    """

    names: tuple[str, ...] = ()
    renamed: Mapping[str, str] | None = None
    types: Mapping[str, pa.DataType] | None = None
    nulls: tuple[str, ...] = ()


def select_columns(source: pa.Schema, selection: ColumnSelection) -> list[ColumnMapping]:
    """Return the columns that a selection takes from a source. Raises RefusedError for a name that the source lacks."""
    renamed, types = selection.renamed or {}, selection.types or {}
    for name in (*selection.names, *renamed):
        if name not in source.names:
            raise RefusedError(f"The source has no column '{name}'; it has {', '.join(source.names)}.")
    columns = []
    for name in selection.names or source.names:
        field = source.field(name).with_name(renamed.get(name, name)).remove_metadata()
        columns.append(ColumnMapping(field.with_type(types.get(field.name, field.type)), name))
    names = [column.field.name for column in columns]
    for name in types:
        if name not in names:
            raise RefusedError(f"There is no column '{name}' to cast; there are {', '.join(names)}.")
    if len(set(names)) < len(names):
        raise RefusedError(f"Two columns would have one name: {', '.join(names)}.")
    return columns


def find_kept_columns(
    names: Sequence[str], table: pa.Schema, nulls: Iterable[str], on: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that rows keep when they are upserted by `on`: those that the source lacks.

    Not those that are to become null, as computed ones do. Raises RefusedError for one that cannot be kept.
    """
    kept = [field for field in table if field.name not in (*names, *nulls, *on) and not _is_computed(field)]
    for field in kept:
        if not field.nullable or has_blobs([field]):
            kind = "blobs" if has_blobs([field]) else "no nulls, which new rows would have"
            raise RefusedError(f"The source has no column '{field.name}' of the table, which has {kind}: add it.")
    return tuple(field.name for field in kept)


def _is_computed(field: pa.Field) -> bool:
    return read_declaration(field.metadata) is not None or is_filled_by_deduplicate(field.metadata)


def map_to_table(names: Sequence[str], table: pa.Schema, nulls: Iterable[str]) -> list[ColumnMapping]:
    """Map source columns to a table's columns by name. Raises RefusedError for columns that do not match.

    A computed column that the source lacks is null until it is computed.
    """
    if unknown := [name for name in names if name not in table.names]:
        raise RefusedError(f"The table has no column '{unknown[0]}': select or rename the columns of the source.")
    columns = []
    for field in table:
        is_filled = field.name in names or _is_computed(field)
        if not is_filled and field.name not in nulls:
            raise RefusedError(
                f"The source has no column '{field.name}' of the table: rename one to it, or say that it shall be null."
            )
        columns.append(ColumnMapping(field, field.name if field.name in names else None))
    return columns


def check_time_zones(source: pa.Schema, table: pa.Schema) -> None:
    """Raise RefusedError where times would lose or gain a time zone in a table without a cast that says so."""
    for field in source:
        dtype = table.field(field.name).type if field.name in table.names else field.type
        if not (pa.types.is_timestamp(field.type) and pa.types.is_timestamp(dtype)):
            continue
        if bool(field.type.tz) != bool(dtype.tz):
            raise RefusedError(
                f"Column '{field.name}' is {field.type}, and the table's is {dtype}: a time without a zone stands for "
                f"UTC if --cast '{field.name}={dtype}' says so."
            )


def cast_batch(batch: pa.RecordBatch, columns: Sequence[ColumnMapping]) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Cast a batch to these columns; yields first the rows that cannot be cast, each with all its reasons."""
    reasons: dict[int, str] = {}
    arrays = []
    for column in columns:
        name, field = column.source, column.field
        if name is not None and name not in batch.schema.names:
            raise RefusedError(f"A file of the source has no column '{name}'.")
        array = pa.nulls(batch.num_rows, field.type) if name is None else batch.column(name)
        arrays.append(_cast_column(array, field, reasons))
    schema = pa.schema([column.field for column in columns])
    for row, reason in sorted(reasons.items()):
        yield RejectedRow(batch.slice(row, 1).to_pylist()[0], reason)
    if not reasons:
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    elif len(reasons) < batch.num_rows:
        valid = pa.array([row for row in range(batch.num_rows) if row not in reasons])
        yield pa.RecordBatch.from_arrays([array.take(valid) for array in arrays], schema=schema)


def cast_batches(
    batches: Iterable[pa.RecordBatch], columns: Sequence[ColumnMapping], refusal: str
) -> Iterator[pa.RecordBatch]:
    """Cast batches to these columns. Raises RefusedError with the message `refusal` for a value that cannot be cast."""
    for batch in batches:
        for result in cast_batch(batch, columns):
            if isinstance(result, RejectedRow):
                raise RefusedError(refusal.format(reason=result.reason))
            yield result


def apply_function(
    batch: pa.RecordBatch, function: BatchFunction, policy: CallPolicy, columns: Sequence[ColumnMapping] | None
) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Apply a user's function to a batch as its policy says; yield the rows that it fails on as rejected ones.

    Where they are to have no value instead, what the batch itself has of the `columns` is yielded, and nulls of the
    others; nothing while the columns are not known.
    Raises RefusedError if it fails where no row may, or returns something else than a batch.
    """
    try:
        for part in call_in_parts(function, batch, policy):
            if part.error is not None and policy.on_error == "null":
                yield from () if columns is None else (_own_columns(part.rows, columns),)
            elif part.error is not None:
                row = part.rows.to_pylist()[0] if part.rows.num_rows else None
                yield RejectedRow(row, describe_error(part.error))
            elif isinstance(part.value, pa.RecordBatch):
                yield part.value
            else:
                kind = type(part.value).__name__
                raise RefusedError(f"The UDF returned a {kind}: it has to take a pyarrow.RecordBatch and return one.")
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(
            f"The UDF failed: {describe_error(error)}. Correct it, or name a folder for rows that it fails on "
            "(--rejects)."
        ) from error


def _own_columns(rows: pa.RecordBatch, columns: Sequence[ColumnMapping]) -> pa.RecordBatch:
    """Return the columns that rows have, and nulls for the others."""
    sources = [(column.source, column.field.type) for column in columns if column.source is not None]
    arrays = [
        rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows, dtype) for name, dtype in sources
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in sources])


def _cast_column(array: pa.Array, field: pa.Field, reasons: dict[int, str]) -> pa.Array:
    """Cast an array to the field's type; values that do not fit become null, and their rows get a reason."""
    values = array
    if not is_same_type(array.type, field.type):
        parts = list(_cast_halves(array, field, 0, reasons))
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if not field.nullable and values.null_count:
        for row in pc.indices_nonzero(values.is_null()).to_pylist():
            reasons.setdefault(row, f"{field.name} is null")
    return values


def _cast_halves(array: pa.Array, field: pa.Field, first: int, reasons: dict[int, str]) -> Iterator[pa.Array]:
    """Cast an array; it is halved until each value that cannot be cast stands alone."""
    try:
        yield cast_array(array, field.type)
    except pa.ArrowNotImplementedError as error:
        raise RefusedError(f"Column '{field.name}': {array.type} cannot become {field.type}: {error}") from error
    except pa.ArrowInvalid as error:
        if len(array) <= 1:
            previous = f"{reasons[first]}; " if first in reasons else ""
            reasons[first] = f"{previous}{field.name}: {error}"
            yield pa.nulls(1, field.type)
            return
        middle = len(array) // 2
        yield from _cast_halves(array.slice(0, middle), field, first, reasons)
        yield from _cast_halves(array.slice(middle), field, first + middle, reasons)
