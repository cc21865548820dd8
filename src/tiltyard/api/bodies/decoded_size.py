"""How large the values of an Arrow body become once they are written out: its encodings may name one value many times.

A dictionary of two texts of 200 KB and 8,192 numbers is a body of 408 KB and 1.6 GB of text; a view does the same with
one buffer. Arrow holds both as they came, but Lance writes views out, and whoever computes with a dictionary does, too.
Run-end encodings and views of lists are types that Lance refuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from tiltyard.api.bodies.decompression_guard import ROOM, TIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT = 256
"""Bytes of a value that may stand for any number of rows: what an index or a view takes is within `TIMES` of it."""
_VIEW = 16
"""Bytes of a view; the first four are the length of its value."""
_VARYING = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)


def folded_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the positions of the columns in which one value may stand for many, at any depth."""
    return tuple(at for at, column in enumerate(schema) if _is_folded(column.type))


def known_folded_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return what `folded_columns` does, without a second look at a schema that came before."""
    try:
        hash(schema)
    except TypeError:  # it has an extension type that cannot be hashed
        return folded_columns(schema)
    return _known(schema)


_known = lru_cache(maxsize=256)(folded_columns)


class Unfolding:
    """What the batches of one body come to, as they are read."""

    def __init__(self, columns: Iterable[int]) -> None:
        self._columns = tuple(columns)
        self._total = 0

    def take(self, batch: pa.RecordBatch, came: int) -> None:
        """Count one batch more, of a body of which `came` bytes are here. Raises ValueError where it is too much."""
        self._total += sum(_unfolded_bytes(batch.column(at)) for at in self._columns)
        if self._total > ROOM + TIMES * came:
            raise ValueError(
                f"its dictionaries and views stand for {self._total >> 20} MiB of values, out of {came} bytes:"
                " send it in smaller parts, or a key instead of a long value"
            )


def check_unfolded(batches: Iterable[pa.RecordBatch], columns: Iterable[int], came: int) -> None:
    """Count all batches of a body that is here. Raises ValueError as `Unfolding` does."""
    unfolding = Unfolding(columns)
    for batch in batches:
        unfolding.take(batch, came)


def _is_folded(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if kinds.is_dictionary(kind) or kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return True
    return any(_is_folded(kind.field(at).type) for at in range(kind.num_fields))


def _unfolded_bytes(array: pa.Array) -> int:
    """Return the bytes of an array's values without dictionaries and views; what is not folded counts nothing."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _unfolded_bytes(array.storage)
    if not _is_folded(kind):
        return 0
    if kinds.is_dictionary(kind):
        return _total(pc.take(_lengths(array.dictionary), array.indices))
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _total(_lengths(array))
    if kinds.is_struct(kind):
        return sum(_unfolded_bytes(array.field(at)) for at in range(kind.num_fields))
    if kinds.is_map(kind):
        return _unfolded_bytes(array.keys) + _unfolded_bytes(array.items)
    return _unfolded_bytes(array.values)


def _total(lengths: pa.Array) -> int:
    """Add up the lengths of values that are not short."""
    return int(pc.sum(pc.filter(lengths, pc.greater(lengths, SHORT))).as_py() or 0)


def _lengths(values: pa.Array) -> pa.Array:
    """Return the bytes of each value."""
    kind = values.type
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, _VIEW // 4)
        return pa.array(views[values.offset : values.offset + len(values), 0].astype(np.int64))
    if any(is_varying(kind) for is_varying in _VARYING):
        return pc.cast(pc.binary_length(values), pa.int64())
    return pa.array(np.full(len(values), -(-values.nbytes // max(1, len(values))), dtype=np.int64))
