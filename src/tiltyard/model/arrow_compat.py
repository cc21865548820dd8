"""What pyarrow takes and Lance does not: Rust would panic on it, long after the request was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as kinds


def check_names(schema: pa.Schema) -> None:
    """Read every name of a schema, nested ones too. Raises UnicodeDecodeError for one that is not UTF-8."""
    with_decimals(schema)


def with_decimals(schema: pa.Schema) -> tuple[int, ...]:
    """Positions of the columns that hold decimals anywhere inside.

    Every name is read, nested ones too. Raises UnicodeDecodeError for one that is not UTF-8.
    """
    try:
        hash(schema)
    except TypeError:  # it has a type that is written in Python and says nothing of hashing, as Lance's for blobs is
        return _decimals(schema)
    return _known_decimals(schema)


def _decimals(schema: pa.Schema) -> tuple[int, ...]:
    inside = [[inner.type for inner in _below(field)] for field in schema]
    return tuple(at for at, types in enumerate(inside) if any(map(kinds.is_decimal, types)))


_known_decimals = lru_cache(maxsize=256)(_decimals)
"""Small bodies by the hundred a second have the same schema."""


def aligned(batch: pa.RecordBatch, columns: Iterable[int]) -> pa.RecordBatch:
    """The same batch with these columns in memory of their own.

    IPC aligns buffers to 8 bytes, while decimals in Rust need 16.
    """
    for at in columns:
        column = batch.column(at)
        batch = batch.set_column(at, batch.schema.field(at), pa.concat_arrays([column, column.slice(0, 0)]))
    return batch


def _below(field: pa.Field) -> Iterator[pa.Field]:
    """A field and all fields inside it; reads their names."""
    field.name  # noqa: B018 - reading decodes it
    yield field
    kind = field.type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    for at in range(kind.num_fields):
        yield from _below(kind.field(at))
