"""Refuse Arrow bodies whose dictionaries and views decode to too much: they may repeat one value many times.

A dictionary of two strings of 200 KB and 8,192 indices is a body of 408 KB and 1.6 GB of text; a view does the same
with one buffer. Arrow holds both as they came, but Lance decodes views when it writes, and so does code that computes
with a dictionary. Run-end encodings and views of lists are types that Lance refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES, MAX_RATIO

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT = 256
"""Bytes of a value that may be repeated any number of times: its index or view takes at most `MAX_RATIO` times less."""
_VIEW = 16
"""Bytes of a view; the first four are the length of its value."""
_VIEWS = (kinds.is_string_view, kinds.is_binary_view)
_VARYING = (*_VIEWS, kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)


def encoded_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the positions of the columns in which one value may stand for many, at any depth."""
    return tuple(at for at, column in enumerate(schema) if _is_encoded(column.type))


class DecodedSizeCheck:
    """Adds up the decoded size of one body's batches, as they are read."""

    def __init__(self, columns: Iterable[int]) -> None:
        self._columns = tuple(columns)
        self._total = 0

    def add(self, batch: pa.RecordBatch, received: int) -> None:
        """Add a batch of a body of which `received` bytes are read. Raises ValueError once the size is too large."""
        self._total += sum(_decoded_bytes(batch.column(at)) for at in self._columns)
        if self._total > ALLOWED_BYTES + MAX_RATIO * received:
            raise ValueError(
                f"its dictionaries and views stand for {self._total >> 20} MiB of values, out of {received} bytes:"
                " send it in smaller parts, or a key instead of a long value"
            )


def check_decoded_size(batches: Iterable[pa.RecordBatch], columns: Iterable[int], received: int) -> None:
    """Check all batches of a complete body. Raises ValueError as `DecodedSizeCheck` does."""
    check = DecodedSizeCheck(columns)
    for batch in batches:
        check.add(batch, received)


def _is_encoded(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if kinds.is_dictionary(kind) or _is_view(kind):
        return True
    return any(_is_encoded(kind.field(at).type) for at in range(kind.num_fields))


def _decoded_bytes(array: pa.Array) -> int:
    """Return the bytes of an array's values without dictionaries and views; columns without these count 0."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _decoded_bytes(array.storage)
    if not _is_encoded(kind):
        return 0
    if kinds.is_dictionary(kind):
        values = array.dictionary
        if _is_varying(values.type):
            return _total(pc.take(_lengths(values), array.indices))
        size = -(-values.nbytes // max(1, len(values)))  # those of no bytes may be more than memory holds numbers
        return size * (len(array) - array.null_count) if size > SHORT else 0
    if _is_view(kind):
        return _total(_lengths(array))
    if kinds.is_struct(kind):
        return sum(_decoded_bytes(array.field(at)) for at in range(kind.num_fields))
    if kinds.is_map(kind):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items)
    return _decoded_bytes(array.values)


def _total(lengths: pa.Array) -> int:
    """Add up the lengths of values that are not short."""
    return int(pc.sum(pc.filter(lengths, pc.greater(lengths, SHORT))).as_py() or 0)


def _is_view(kind: pa.DataType) -> bool:
    return any(is_view(kind) for is_view in _VIEWS)


def _is_varying(kind: pa.DataType) -> bool:
    return any(is_varying(kind) for is_varying in _VARYING)


def _lengths(values: pa.Array) -> pa.Array:
    """Return the bytes of each value, of a type in which they differ."""
    if _is_view(values.type):
        views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, _VIEW // 4)
        return pa.array(views[values.offset : values.offset + len(values), 0].astype(np.int64))
    return pc.cast(pc.binary_length(values), pa.int64())
