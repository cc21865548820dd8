"""Tables to look at in the console: films with vectors, images and sounds, and a table of attacks on its readers."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tests.services.wire import Wire, stream

FILMS = ("cinema", "films")
PICTURES = ("media", "pictures")
HOSTILE = ("media", "hostile")
LONG_TEXT_BYTES = 10_000_000
SCRIPT = "<script>document.title='owned';alert(1)</script>"
BIDI = "invoice \u202efdp.exe"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
GENRES = ("drama", "comedy", "horror")


def films(rows: int = 200, dimensions: int = 16) -> pa.Table:
    """Films, with a vector each."""
    vectors = np.random.default_rng(1).normal(size=(rows, dimensions)).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "title": [f"Film {number}" for number in range(rows)],
            "genre": [GENRES[number % len(GENRES)] for number in range(rows)],
            "year": pa.array([1920 + number % 100 for number in range(rows)], pa.int32()),
            "text": [f"A {GENRES[number % len(GENRES)]} film about the number {number}" for number in range(rows)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dimensions),
        }
    )


def pictures(rows: int = 6) -> pa.Table:
    """Images, sounds and nested values."""
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "picture": png(24, 16, lambda x, y, shade=number: (x * 10 % 256, y * 15 % 256, shade * 40 % 256)),
                "sound": wav(220 + 60 * number),
                "shape": {"width": 24, "tags": ["synthetic", "small"]},
                "boxes": [{"x": 1.5, "label": "a"}, {"x": 3.0, "label": "b"}],
            }
            for number in range(rows)
        ],
        pa.schema(
            [
                ("id", pa.int64()),
                ("picture", pa.binary()),
                ("sound", pa.binary()),
                ("shape", pa.struct([("width", pa.int32()), ("tags", pa.list_(pa.string()))])),
                ("boxes", pa.list_(pa.struct([("x", pa.float64()), ("label", pa.string())]))),
            ]
        ),
    )


def hostile() -> pa.Table:
    """Values that attack whoever shows them."""
    rows = [
        {"id": 1, "text": SCRIPT, "link": "javascript:alert(1)", "blob": SVG},
        {"id": 2, "text": BIDI, "link": 'https://x.example/" onmouseover="alert(1)', "blob": b"<html>" + SVG},
        {"id": 3, "text": "x" * LONG_TEXT_BYTES, "link": None, "blob": b"\0\1\2" * 10},
    ]
    return pa.Table.from_pylist(
        rows, pa.schema([("id", pa.int64()), ("text", pa.string()), ("link", pa.string()), ("blob", pa.binary())])
    )


def make_tables(url: str, key: str = "") -> None:
    """Make all of them on a server."""
    with Wire(url) as wire:
        if key:
            wire.http.headers["x-api-key"] = key
        for name in ("cinema", "media", "empty"):
            wire.good(wire.namespace([name], "create", {"properties": {"owner": f"{name} team"}}))
        for path, table in ((FILMS, films()), (PICTURES, pictures()), (HOSTILE, hostile())):
            wire.good(wire.table(path, "create", stream(table)))


def png(width: int, height: int, colour: Callable[[int, int], tuple[int, int, int]]) -> bytes:
    """An image."""
    rows = b"".join(b"\0" + bytes(part for x in range(width) for part in colour(x, y)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def wav(frequency: int, rate: int = 4000) -> bytes:
    """A second of sound."""
    out = io.BytesIO()
    with wave.open(out, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        samples = (int(8000 * math.sin(2 * math.pi * frequency * number / rate)) for number in range(rate))
        writer.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return out.getvalue()
