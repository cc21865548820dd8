"""Estimate the decoded size of pages of a Lance data file, from their encodings.

A page may take a thousandth of its decoded values: one text for all its rows, a dictionary of a few, or compressed
values. Lance's metadata has the encoding and the buffers of each page, but not the decoded size, so it is derived:

* a value for all rows is in the page's first buffer;
* a dictionary is read, and its longest value counted for every row;
* small values, in chunks of some kilobytes, are packed to an eighth at most;
* large values may be compressed one by one, by any factor: the page has no bound then (`is_unbounded`).
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
"""Compression factor of the values of a chunk at most: FSST encodes eight bytes as one."""
_COMPRESSED = 64
"""The same where a chunk is compressed as a whole; an assumption, since LZ4 can reach 255."""
_MAX_LZ4_RATIO = 255
_MAX_DICTIONARY_BYTES = 64 << 20
_LEVEL = 2
"""Bytes of a repetition level, which marks where lists begin."""
_LENGTH = struct.Struct("<I")
_OFFSETS: dict[int, tuple[int, np.dtype[Any]]] = {32: (8, np.dtype("<u4")), 64: (16, np.dtype("<u8"))}
"""Where the offsets of a dictionary's values begin, and their type, by the bits per offset that it states."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """A page's rows and their decoded bytes; `is_unbounded` if they may be more."""

    rows: float
    bytes: float
    is_unbounded: bool = False


def page_sizes(pages: Sequence[Any], rows: int, is_nested: bool, file: Path | None) -> list[PageSize]:
    """Return the decoded size of each page of a column; `file` is a local data file, else None; `rows` its rows.

    Raises OSError.
    """
    encodings = [page.encoding for page in pages]
    counts = _page_rows(encodings, rows, is_nested)
    return [
        _page_size(encoding, [buffer.size for buffer in page.buffers], page, count, file)
        for encoding, page, count in zip(encodings, pages, counts, strict=True)
    ]


def _page_rows(encodings: Sequence[str], rows: int, is_nested: bool) -> list[float]:
    """Return the rows of each page: as stated; pages that state none share the remaining rows."""
    if is_nested:  # the stated items are the values inside
        return [rows / len(encodings)] * len(encodings)
    counts = [_ITEMS.findall(encoding) for encoding in encodings]
    stated = [int(match[-1]) if match else None for match in counts]
    unstated = stated.count(None)
    remaining_rows = max(0, rows - sum(count for count in stated if count is not None))
    return [remaining_rows / unstated if count is None else count for count in stated]


def _page_size(encoding: str, buffers: Sequence[int], page: Any, rows: float, file: Path | None) -> PageSize:
    """Return the decoded size of a page, from its encoding and the bytes of its buffers."""
    total = sum(buffers)
    if "ConstantLayout(" in encoding:
        value, levels = max(buffers[:1], default=0), sum(buffers[1:]) / _LEVEL
        return PageSize(rows, max(16, value) * max(rows, levels))
    if match := _DICTIONARY.search(encoding):
        longest = _longest_value(page, buffers, int(match[1]), file)
        items = max(rows, *map(int, _ITEMS.findall(encoding)))
        if longest is not None:
            return PageSize(rows, longest * items)
        return PageSize(rows, _MAX_LZ4_RATIO * buffers[2] / int(match[1]) * items, is_unbounded=True)
    if "MiniBlockLayout(" in encoding:
        return PageSize(rows, total * (_COMPRESSED if "General(" in encoding or "Rle(" in encoding else _PACKED))
    return PageSize(rows, total * _PACKED, is_unbounded=True)


def _longest_value(page: Any, buffers: Sequence[int], count: int, file: Path | None) -> float | None:
    """Return the bytes of the longest of a dictionary's `count` values, None where it is not readable."""
    if file is None:
        return None
    with file.open("rb") as stream:
        stream.seek(page.buffers[2].position)
        compressed = stream.read(buffers[2])
    if len(compressed) <= _LENGTH.size:
        return None
    size = _LENGTH.unpack_from(compressed)[0]
    if not 0 < size <= min(_MAX_DICTIONARY_BYTES, _MAX_LZ4_RATIO * len(compressed)):
        return None
    try:
        values = pa.Codec("lz4_raw").decompress(compressed[_LENGTH.size :], size).to_pybytes()
    except (OSError, ValueError):  # another compression, or none
        return None
    return longest_value(values, count)


def longest_value(values: bytes, count: int) -> float | None:
    """Return the bytes of the longest of `count` values, or of each if all are of fixed width; None for neither.

    Values of varying width begin with the bits per offset and the position of the first value.
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
