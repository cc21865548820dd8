"""Text read in blocks of whole lines, from anywhere in a file, and rows that cannot be taken."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be taken: what it was, as far as that can be shown, why, and its line in a file of text."""

    row: Any
    reason: str
    line: int | None = None


def blocks(file: IO[bytes], start: int, end: int | None, size: int = BLOCK) -> Iterator[bytes]:
    """The lines that begin in the bytes from `start` to `end` (None: the end of the file), in blocks of whole lines.

    The file is read on from `start`, never back: it may be one that is decompressed on the way.
    """
    position = max(0, start - 1)  # one before: where that is the end of a line, the first line is ours
    if position:
        file.seek(position)
    rest, skipping = b"", start > 0
    while chunk := file.read(size):
        position += len(chunk)
        whole = rest + chunk
        rest = b""
        if skipping:
            cut = whole.find(b"\n")
            if cut < 0:
                continue
            whole, skipping = whole[cut + 1 :], False
        begin = position - len(whole)
        if end is not None and begin >= end:
            return
        if end is not None and position >= end:
            cut = whole.find(b"\n", end - 1 - begin) + 1
            if cut:
                yield whole[:cut]
                return
            rest = whole
            continue
        cut = whole.rfind(b"\n") + 1
        if cut:
            yield whole[:cut]
        rest = whole[cut:]
    if rest:
        yield rest


def whole_lines(head: bytes, *, complete: bool) -> bytes:
    """The lines of a text's beginning, without the last one if that is cut off."""
    return head if complete else head[: head.rfind(b"\n") + 1]


def count_lines(file: IO[bytes], end: int) -> int:
    """How many line breaks there are before an offset; the file is read up to there."""
    file.seek(0)
    count, left = 0, end
    while left and (chunk := file.read(min(left, BLOCK))):
        count, left = count + chunk.count(b"\n"), left - len(chunk)
    return count


def unpacked(file: Any, path: str) -> Any:
    """The file itself, or what is compressed in it, by its name."""
    return gzip.GzipFile(fileobj=file) if path.lower().endswith(".gz") else file
