"""Cells of bytes: what one is, when it comes into view, and its bytes in ranges, for the browser's image or player.

A type, told by the first bytes, is served only if a browser cannot run anything in it: no SVG, no HTML, whatever a
column says it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, InvalidInputError, LanceNamespaceError
from starlette.responses import Response

from tiltyard.api.errors import HttpError
from tiltyard.console.browser_checks import CELL_POLICY, HEADERS
from tiltyard.console.page import Page, PageRequest
from tiltyard.console.saved_files import attachment
from tiltyard.console.table.heads import parse_ref

if TYPE_CHECKING:
    from typing import Any

RANGE_BYTES = 1 << 20
"""Bytes of one part: players ask for the next one."""
MAX_WHOLE_BYTES = 16 << 20
"""Bytes of a value that is sent at once: an image."""
SHOWN_BYTES = 16
TOO_LARGE = f"A value of more than {MAX_WHOLE_BYTES >> 20} MiB is read in ranges: use a client of the API."
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Value:
    """The bytes of a cell: their number, None for a null, and a function that reads some of them."""

    size: int | None
    read: Callable[[int, int], bytes]


def show(page: PageRequest) -> Page:
    """Show a cell: an image, a player, or the first bytes; each of them with a link to all bytes."""
    try:
        with _open(page) as value:
            head = b"" if value.size is None else value.read(0, min(value.size, SNIFF_BYTES))
            size = value.size
    except LanceNamespaceError as error:
        return Page("cell.html", {"problem": str(error), "size": None, "media": None}, fragment=True)
    media = sniff(head)
    values = {
        "problem": "",
        "size": size,
        "media": media,
        "is_large": size is not None and size > MAX_WHOLE_BYTES,
        "hex": head[:SHOWN_BYTES].hex(" "),
        "column": page.text("column"),
        "row": page.text("row"),
        "at": page.text("at"),
        "is_blob": page.text("kind") == "blob",
    }
    return Page("cell.html", values, fragment=True)


def send(page: PageRequest) -> Response:
    """Send the bytes of a cell, or the range that is asked for: as what they are seen to be, or as a file to save.

    Raises HttpError 404 for a null, 413 for a large value without a range, 416 for a range beyond its end.
    """
    with _open(page) as value:
        if value.size is None:
            raise HttpError(404, ErrorCode.INVALID_INPUT, "This cell is null: it has no bytes.")
        media = sniff(value.read(0, min(value.size, SNIFF_BYTES)))
        name = f"{page.path[-1]}-{page.text('column')}-{page.text('row')}"
        disposition = "inline" if media is not None else attachment(name, "bin")
        headers = HEADERS | {
            "content-security-policy": CELL_POLICY,
            "content-disposition": disposition,
            "accept-ranges": "bytes",
        }
        kind = media.type if media is not None else "application/octet-stream"
        asked = _RANGE.fullmatch(page.range)
        if asked is None:
            if value.size > MAX_WHOLE_BYTES:
                raise HttpError(413, ErrorCode.INVALID_INPUT, TOO_LARGE)
            return Response(value.read(0, value.size), 200, headers, kind)
        start = int(asked[1])
        if start >= value.size:
            raise HttpError(416, ErrorCode.INVALID_INPUT, f"This value has {value.size} bytes.")
        end = min(int(asked[2]) + 1 if asked[2] else value.size, value.size, start + RANGE_BYTES)
        content_range = {"content-range": f"bytes {start}-{end - 1}/{value.size}"}
        return Response(value.read(start, end - start), 206, headers | content_range, kind)


@contextmanager
def _open(page: PageRequest) -> Iterator[Value]:
    """Open the value of a cell, at the version of `at`. Raises InvalidInputError, what the operations raise."""
    column, row = page.text("column"), page.optional_integer("row")
    if not column or row is None:
        raise InvalidInputError("The address of a cell names its column and its row.")
    named = parse_ref(page.text("at"))
    if page.text("kind") == "blob":
        with page.calls.blob(id=list(page.path), column=column, row_id=row, **named) as answer:
            yield Value(answer.size, answer.read)
        return
    request: dict[str, Any] = {
        "id": list(page.path),
        "columns": {"column_names": [column]},
        "filter": f"_rowid = {row}",
        "k": 1,
        "vector": {},
        **named,
    }
    with page.calls.rows(**request) as answer:
        values = [value for batch in answer.batches for value in batch.column(0)]
        if not values:
            raise InvalidInputError("There is no such row any more: load the page again.")
        content = values[0].as_py()
        if content is not None and not isinstance(content, bytes):
            raise InvalidInputError(f"The column '{column}' does not hold bytes.")
        if content is None:
            yield Value(None, _read_nothing)
        else:
            yield Value(len(content), partial(_read_part, content))


def _read_part(content: bytes, start: int, length: int) -> bytes:
    return content[start : start + length]


def _read_nothing(start: int, length: int) -> bytes:
    return b""


SNIFF_BYTES = 64


@dataclass(frozen=True, slots=True)
class Media:
    """A type that the console shows: its media type, and the element for it (img, audio, video)."""

    type: str
    element: str


_PREFIXES = (
    (b"\x89PNG\r\n\x1a\n", Media("image/png", "img")),
    (b"\xff\xd8\xff", Media("image/jpeg", "img")),
    (b"GIF87a", Media("image/gif", "img")),
    (b"GIF89a", Media("image/gif", "img")),
    (b"BM", Media("image/bmp", "img")),
    (b"OggS", Media("audio/ogg", "audio")),
    (b"fLaC", Media("audio/flac", "audio")),
    (b"ID3", Media("audio/mpeg", "audio")),
    (b"\xff\xfb", Media("audio/mpeg", "audio")),
    (b"\xff\xf3", Media("audio/mpeg", "audio")),
    (b"\x1aE\xdf\xa3", Media("video/webm", "video")),
)
_RIFF = {b"WEBP": Media("image/webp", "img"), b"WAVE": Media("audio/wav", "audio")}
_BRANDS = {
    b"avif": Media("image/avif", "img"),
    b"M4A ": Media("audio/mp4", "audio"),
}
_VIDEO = Media("video/mp4", "video")


def sniff(head: bytes) -> Media | None:
    """Return the type of a value by its first SNIFF_BYTES; None for one that is not shown."""
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], _VIDEO)
    return next((media for prefix, media in _PREFIXES if head.startswith(prefix)), None)
