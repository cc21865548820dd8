"""Tell from its size and its end whether a file of a Lance table is whole.

A disk that is full for a moment leaves files without some of their content, and pylance 14 gives them their final names
all the same: empty ones, such without their end, and such in which a part in the middle is missing. The size tells all
of them, where it is known; else the end does, which has a magic in each form but two.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct

_LANCE_END = b"LANC"
_ARROW_MAGIC = b"ARROW1"
_ARROW_FOOTER = struct.Struct("<i6s")
_INT = struct.Struct("<I")
_MAX_REFERENCE_BYTES = 1 << 20
WITHOUT_RUNS, WITH_RUNS = 12346, 12347
MAX_ARRAY_VALUES = 4096
"""Values of a container of a Roaring bitmap that are a list; more of them are a bitmap."""
BITMAP_BYTES = 8192
_MAX_CONTAINERS = 1 << 16
MIN_CONTAINERS_WITH_OFFSETS = 4
"""A Roaring bitmap with runs has no offsets if it has fewer containers."""


class BrokenFileError(OSError):
    """A file lacks some of its content, as after a write to a disk that was full."""

    def __init__(self, location: str, found: str) -> None:
        self.found = found
        super().__init__(errno.ENOSPC, f"A file was not written whole, as on a full disk ({found})", location)


def check_whole(descriptor: int, location: str, size: int | None = None, deleted_rows: int | None = None) -> None:
    """Check an open file: its size, if that is known, and its end, by its suffix. Raises BrokenFileError.

    `deleted_rows` is how many rows a deletion file names. A file of another form is only compared with its size.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFileError(location, "it is no file")
    found = status.st_size
    if size is not None and found != size:
        raise BrokenFileError(location, f"{found} of {size} bytes")
    if not _has_end(descriptor, location, found, deleted_rows):
        raise BrokenFileError(location, f"{found} bytes, without its end")


def _has_end(descriptor: int, location: str, size: int, deleted_rows: int | None) -> bool:
    """Whether a file ends as its form has it; true of a form that is none of a table's."""
    suffix = location.rpartition(".")[2]
    if suffix in ("lance", "idx", "manifest"):
        return os.pread(descriptor, len(_LANCE_END), max(size - len(_LANCE_END), 0)) == _LANCE_END
    if suffix == "txn":
        return size > 0
    if "/_deletions/" in location:
        is_bitmap = suffix == "bin"
        return _is_roaring_bitmap(descriptor, size, deleted_rows) if is_bitmap else _is_arrow_file(descriptor, size)
    if "/_refs/" in location and suffix == "json":
        return _is_json(descriptor, size)
    return True


def _is_arrow_file(descriptor: int, size: int) -> bool:
    """Whether an Arrow file has its magic at both ends, and a footer that fits between them."""
    end = os.pread(descriptor, _ARROW_FOOTER.size, max(size - _ARROW_FOOTER.size, 0))
    if len(end) < _ARROW_FOOTER.size or os.pread(descriptor, len(_ARROW_MAGIC), 0) != _ARROW_MAGIC:
        return False
    footer, magic = _ARROW_FOOTER.unpack(end)
    return bool(magic == _ARROW_MAGIC and 0 < footer <= size - _ARROW_FOOTER.size - len(_ARROW_MAGIC))


def _is_roaring_bitmap(descriptor: int, size: int, values: int | None) -> bool:
    """Whether a Roaring bitmap, in its portable form, ends where its headers say; it has so many `values`, if known.

    Its cookie, with the number of containers, is followed by a bit for each that has runs, then by two numbers of 16
    bits for each, its key and its size less one, then by their positions, then by the containers.
    """
    try:
        cookie = _INT.unpack(os.pread(descriptor, 4, 0))[0]
        if cookie & 0xFFFF == WITH_RUNS:
            count = (cookie >> 16) + 1
            runs = os.pread(descriptor, (count + 7) // 8, 4)
            at, has_positions = 4 + len(runs), count >= MIN_CONTAINERS_WITH_OFFSETS
        elif cookie == WITHOUT_RUNS:
            count, runs, at, has_positions = _INT.unpack(os.pread(descriptor, 4, 4))[0], b"", 8, True
        else:
            return False
        if count > _MAX_CONTAINERS:
            return False
        sizes = [number + 1 for number in struct.unpack(f"<{2 * count}H", os.pread(descriptor, 4 * count, at))[1::2]]
        at += 4 * count * (2 if has_positions else 1)
        for index, number in enumerate(sizes):
            if runs and runs[index // 8] >> index % 8 & 1:
                at += 2 + 4 * int(struct.unpack("<H", os.pread(descriptor, 2, at))[0])
            else:
                at += 2 * number if number <= MAX_ARRAY_VALUES else BITMAP_BYTES
    except (struct.error, IndexError):
        return False
    return at == size and (values is None or values == sum(sizes))


def _is_json(descriptor: int, size: int) -> bool:
    """Whether a file of a tag or a branch is whole; none is large."""
    if size > _MAX_REFERENCE_BYTES:
        return True
    try:
        json.loads(os.pread(descriptor, size, 0))
    except ValueError:
        return False
    except RecursionError:  # whoever has written so many brackets: it has not lost its end
        return True
    return True
