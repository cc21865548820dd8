"""What the pages of a Lance data file come to once they are read, from how they are encoded.

A page may take a thousandth of its values: one text for all its rows, a dictionary of a few, or each value compressed.
Lance's metadata names the encoding and the buffers of each page, and not what they become. So that is worked out:

* one value for all rows is in the page's first buffer;
* a dictionary is read, and its longest value counted for every row;
* small values, in chunks of some kilobytes, are packed to an eighth at most;
* each large value may be compressed by any factor: of these it is only known that they are there (`unknown`).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

_ITEMS = re.compile(r"num_(?:visible_)?items: (\d+)")
_DICTIONARY = re.compile(r"num_dictionary_items: ([1-9]\d*)")
_PACKED = 8
"""How many times smaller values of a chunk may be: FSST makes one byte of eight."""
_COMPRESSED = 64
"""The same where a chunk is compressed as a whole; a guess, since the most that LZ4 can do is 255."""
_LZ4_MOST = 255
_LARGEST_DICTIONARY = 64 << 20
_LEVEL = 2
"""Bytes of one of the levels that say where lists begin."""
_LENGTH = struct.Struct("<I")
_OFFSETS: dict[int, tuple[int, np.dtype[Any]]] = {32: (8, np.dtype("<u4")), 64: (16, np.dtype("<u8"))}
"""Where the offsets of a dictionary's values begin, and their type, by the bits that it says they have."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """A page's rows, and the bytes that they may come to; `unknown` where it may be more than that."""

    rows: float
    bytes: float
    unknown: bool = False


def page_sizes(pages: Sequence[Any], rows: int, nested: bool, file: Path | None) -> list[PageSize]:
    """Return what each page of a column comes to; `file` is the data file where it is local, `rows` its rows.

    Raises OSError.
    """
    texts = [page.encoding for page in pages]
    counts = _page_rows(texts, rows, nested)
    return [
        _page_size(text, [buffer.size for buffer in page.buffers], page, count, file)
        for text, page, count in zip(texts, pages, counts, strict=True)
    ]


def _page_rows(texts: Sequence[str], rows: int, nested: bool) -> list[float]:
    """Return the rows of each page: as it says; what is left is shared by those that say nothing."""
    if nested:  # they count what is inside
        return [rows / len(texts)] * len(texts)
    counts = [_ITEMS.findall(text) for text in texts]
    known = [int(found[-1]) if found else None for found in counts]
    silent = known.count(None)
    left = max(0, rows - sum(count for count in known if count is not None))
    return [left / silent if count is None else count for count in known]


def _page_size(text: str, buffers: Sequence[int], page: Any, rows: float, file: Path | None) -> PageSize:
    total = sum(buffers)
    if "ConstantLayout(" in text:
        value, levels = max(buffers[:1], default=0), sum(buffers[1:]) / _LEVEL
        return PageSize(rows, max(16, value) * max(rows, levels))
    if found := _DICTIONARY.search(text):
        widest = _widest(page, buffers, int(found[1]), file)
        items = max(rows, *map(int, _ITEMS.findall(text)))
        if widest is not None:
            return PageSize(rows, widest * items)
        return PageSize(rows, _LZ4_MOST * buffers[2] / int(found[1]) * items, unknown=True)
    if "MiniBlockLayout(" in text:
        return PageSize(rows, total * (_COMPRESSED if "General(" in text or "Rle(" in text else _PACKED))
    return PageSize(rows, total * _PACKED, unknown=True)


def _widest(page: Any, buffers: Sequence[int], count: int, file: Path | None) -> float | None:
    """Return the bytes of the longest of a dictionary's `count` values, None where it cannot be read."""
    if file is None:
        return None
    with file.open("rb") as opened:
        opened.seek(page.buffers[2].position)
        packed = opened.read(buffers[2])
    if len(packed) <= _LENGTH.size:
        return None
    size = _LENGTH.unpack_from(packed)[0]
    if not 0 < size <= min(_LARGEST_DICTIONARY, _LZ4_MOST * len(packed)):
        return None
    try:
        values = pa.Codec("lz4_raw").decompress(packed[_LENGTH.size :], size).to_pybytes()
    except (OSError, ValueError):  # another compression, or none
        return None
    return widest_of(values, count)


def widest_of(values: bytes, count: int) -> float | None:
    """Return the bytes of the longest of `count` values, or of any where all are of fixed width.

    Values of varying width have their bits per offset and the place of the first one in front. None for neither.
    """
    bits = _LENGTH.unpack_from(values)[0] if len(values) >= _LENGTH.size else 0
    if bits in _OFFSETS:
        begin, kind = _OFFSETS[bits]
        end = begin + (count + 1) * kind.itemsize
        if len(values) >= end:
            offsets = np.frombuffer(values, kind, count + 1, begin).astype(np.int64)
            widths = np.diff(offsets)
            if offsets[0] == 0 and (widths >= 0).all() and end + offsets[-1] == len(values):
                return float(widths.max())
    return len(values) / count if len(values) % count == 0 else None
