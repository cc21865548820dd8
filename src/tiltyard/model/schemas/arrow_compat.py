"""Find and mend what pyarrow accepts and Lance does not: Rust would panic on it, long after the request was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as kinds


def check_names(schema: pa.Schema) -> None:
    """Read every name of a schema, nested ones too. Raises UnicodeDecodeError for one that is not UTF-8."""
    decimal_columns(schema)


def decimal_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the positions of the columns that have decimals at any depth.

    Every name is read, nested ones too. Raises UnicodeDecodeError for one that is not UTF-8.
    """
    types_inside = [[inner.type for inner in _descendants(field)] for field in schema]
    return tuple(at for at, types in enumerate(types_inside) if any(map(kinds.is_decimal, types)))


def align_columns(batch: pa.RecordBatch, columns: Iterable[int]) -> pa.RecordBatch:
    """Return the batch with these columns copied to memory of their own, at 64 bytes.

    IPC aligns buffers to 8 bytes, while decimals in Rust need 16.
    """
    for at in columns:
        column = batch.column(at)
        batch = batch.set_column(at, batch.schema.field(at), pa.concat_arrays([column, column.slice(0, 0)]))
    return batch


def _descendants(field: pa.Field) -> Iterator[pa.Field]:
    """Yield a field and its descendants; reads their names."""
    field.name  # noqa: B018 - reading decodes it
    yield field
    kind = field.type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    for at in range(kind.num_fields):
        yield from _descendants(kind.field(at))
