"""Style, scripts and icons of the console, held in memory.

Their addresses contain a digest of them all, so that browsers keep them for good and never mix two releases.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from tiltyard.console.browser_checks import HEADERS

FOLDER = Path(__file__).parent / "static"
MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PREFIX = "/console/static"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file: its bytes, the same compressed, and its media type."""

    content: bytes
    compressed: bytes
    media: str


class StaticFiles:
    """All files below `static`, by path."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): _load(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in MEDIA
        }
        digest = hashlib.sha256()
        for name, file in self._files.items():
            digest.update(name.encode() + b"\0" + file.content)
        self.digest = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Return the address of a file. Raises KeyError for one that is not there."""
        self._files[name]
        return f"{PREFIX}/{self.digest}/{name}"

    def respond(self, path: str, accept_encoding: str) -> Response | None:
        """Return the response to a request for a path below `PREFIX`; None if there is no such file."""
        digest, _, name = path.partition("/")
        file = self._files.get(name)
        if file is None:
            return None
        is_current = digest == self.digest
        headers = HEADERS | {
            "cache-control": "public, max-age=31536000, immutable" if is_current else "no-store",
            "vary": "accept-encoding",
        }
        if "gzip" in accept_encoding and len(file.compressed) < len(file.content):
            return Response(file.compressed, media_type=file.media, headers=headers | {"content-encoding": "gzip"})
        return Response(file.content, media_type=file.media, headers=headers)


def _load(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, gzip.compress(content, 9, mtime=0), MEDIA[path.suffix])
