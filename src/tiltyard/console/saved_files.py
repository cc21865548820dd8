"""Files that a browser saves: their names (RFC 6266; that of a table in any script, and safe), formats and contents."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from lance_namespace.errors import InvalidInputError
from starlette.responses import StreamingResponse

from tiltyard.console.browser_checks import CELL_POLICY, HEADERS

if TYPE_CHECKING:
    from tiltyard.console.page import PageRequest

Encoder = TypeVar("Encoder", bound=Callable[..., Iterator[bytes]])
CSV, JSON_LINES = "text/csv; charset=utf-8", "application/x-ndjson"
"""Media types of text."""

MAX_NAME = 120
"""Characters of a file's name before its ending: systems take 255 bytes."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet takes for a formula."""
_UNSAFE = re.compile(r'[\\/:*?"<>|%\x00-\x1f\x7f]+')
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"
"""What RFC 8187 leaves as it is in an encoded name, beside letters and digits."""


def stream_file(
    page: PageRequest,
    title: str,
    formats: Mapping[str, tuple[str, Encoder]],
    encode: Callable[[Encoder], Iterator[bytes]],
) -> StreamingResponse:
    """Stream a file of this title in the format that a page asks for; its first bytes are made before that.

    `formats` have a media type and an encoder each, of which `encode` makes the content. Raises InvalidInputError for
    an unknown format, and what the encoder raises before its first bytes: it is answered as such.
    """
    name = page.text("format", "csv")
    if name not in formats:
        raise InvalidInputError(f"The format is one of {', '.join(formats)}, not '{name[:40]}'.")
    media, encoder = formats[name]
    chunks = encode(encoder)
    first = next(chunks, b"")
    headers = HEADERS | {"content-security-policy": CELL_POLICY, "content-disposition": attachment(title, name)}
    return StreamingResponse(chain((first,), chunks), 200, headers, media)


def csv_lines(rows: Sequence[Sequence[str]]) -> bytes:
    """Return rows as lines of CSV."""
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


def csv_text(value: object) -> str:
    """Return a value as a cell of CSV; a text that a spreadsheet would run has an apostrophe before it."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return f"'{value}" if value.startswith(_FORMULA) else value


def attachment(name: str, ending: str) -> str:
    """Return the header for a file to save: a name in ASCII for old programs, the true one in UTF-8."""
    safe = safe_name(name)
    plain = unicodedata.normalize("NFKD", safe).encode("ascii", "ignore").decode().strip(" .") or "file"
    if plain == safe:
        return f'attachment; filename="{safe}.{ending}"'
    encoded = quote(safe, safe=_ATTRIBUTE_CHARACTERS)
    return f"attachment; filename=\"{plain}.{ending}\"; filename*=UTF-8''{encoded}.{ending}"


def safe_name(name: str) -> str:
    """Return a name without what a file system or a header would take for something else, "file" for nothing."""
    kept = "".join(character if character.isprintable() else "_" for character in name)
    return _UNSAFE.sub("_", kept)[:MAX_NAME].strip(" .") or "file"
