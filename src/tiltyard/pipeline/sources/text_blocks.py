"""Read text files in blocks of whole lines, starting at any offset; rows that are rejected, with their reasons."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

BLOCK_BYTES = 8 << 20
_SEARCH_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that is rejected: its content as far as it can be shown, the reason, and its line number in a text file."""

    row: Any
    reason: str
    line: int | None = None


def read_line_blocks(file: IO[bytes], start: int, end: int | None, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the lines that begin in the bytes from `start` to `end` (None: end of file), in blocks of whole lines.

    The file is read forwards only, because it may be decompressed while it is read.
    """
    position = max(0, start - 1)  # if the byte before is a line break, the first line belongs to this range
    if position:
        file.seek(position)
    remainder, skips_first_line = b"", start > 0
    while chunk := file.read(size):
        position += len(chunk)
        data = remainder + chunk
        remainder = b""
        if skips_first_line:
            cut = data.find(b"\n")
            if cut < 0:
                continue
            data, skips_first_line = data[cut + 1 :], False
        begin = position - len(data)
        if end is not None and begin >= end:
            return
        if end is not None and position >= end:
            cut = data.find(b"\n", end - 1 - begin) + 1
            if cut:
                yield data[:cut]
                return
            remainder = data
            continue
        cut = data.rfind(b"\n") + 1
        if cut:
            yield data[:cut]
        remainder = data[cut:]
    if remainder:
        yield remainder


def find_line(file: IO[bytes], start: int, end: int) -> int:
    """Return the offset of the first line that begins in the bytes from `start` to `end`; `end` or more without one."""
    if not start:
        return 0
    position = start - 1
    file.seek(position)
    while position < end and (chunk := file.read(_SEARCH_BYTES)):
        if (found := chunk.find(b"\n")) >= 0:
            return position + found + 1
        position += len(chunk)
    return end


def drop_incomplete_line(head: bytes, *, complete: bool) -> bytes:
    """Return the beginning of a text without its last line, if that is cut off."""
    return head if complete else head[: head.rfind(b"\n") + 1]


def count_lines(file: IO[bytes], end: int) -> int:
    """Count the line breaks before an offset; reads the file up to there."""
    file.seek(0)
    count, remaining = 0, end
    while remaining and (chunk := file.read(min(remaining, BLOCK_BYTES))):
        count, remaining = count + chunk.count(b"\n"), remaining - len(chunk)
    return count


def open_decompressed(file: Any, path: str) -> Any:
    """Return the file, or a reader that decompresses it where its name ends in .gz."""
    return gzip.GzipFile(fileobj=file) if path.lower().endswith(".gz") else file
