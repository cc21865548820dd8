"""Values of bytes in a browser: which are images, sounds or films, by their first bytes, and nothing else is shown.

A type is served only if a browser cannot run anything in it: no SVG, no HTML, whatever a column says it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

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
