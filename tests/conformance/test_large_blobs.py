"""A blob of hundreds of megabytes: served in ranges, and whole, in flat memory."""

from __future__ import annotations

from pathlib import Path

import httpx
import lance
import lancedb
import pyarrow as pa
import pytest

from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended

MEGABYTE = 1 << 20
SIZE = 512 * MEGABYTE
MAX_GROWTH_BYTES = 64 * MEGABYTE
"""Of the server's memory while it sends the blob: eight times less than the blob, twice what was seen."""


def peak_memory(server: ServerProcess) -> int:
    """Return the most memory that the server has had in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def test_large_blob_is_streamed_in_flat_memory(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "root", forked=False)
    try:
        table = lancedb.connect("db://x", api_key="none", host_override=server.url).create_table(
            "films", schema=pa.schema([pa.field("id", pa.int64()), lance.blob_field("film")])
        )
        small = pa.table([pa.array([1]), lance.blob_array([b"small"])], schema=table.schema)
        table.add(small)
        location = httpx.post(f"{server.url}/v1/table/films/describe", json={}).json()["location"]
        film = bytes(range(256)) * (SIZE // 256)
        lance.write_dataset(
            pa.table([pa.array([2]), lance.blob_array([film])], schema=small.schema), location, mode="append"
        )
        url = f"{server.url}/v1/table/films/blob/film/{1 << 32}/bytes"
        assert httpx.get(url, headers={"range": "bytes=0-9"}).content == film[:10]
        before = peak_memory(server)
        received = 0
        with httpx.stream("GET", url) as response:
            assert int(response.headers["content-length"]) == SIZE
            for chunk in response.iter_raw():
                assert chunk == film[received : received + len(chunk)]
                received += len(chunk)
        assert received == SIZE
        body, received = {"column": "film", "row_ids": [1 << 32]}, 0
        with httpx.stream("POST", f"{server.url}/v1/table/films/fetch_blobs", json=body, timeout=60) as response:
            assert response.headers["content-type"].endswith("stream")
            for chunk in response.iter_raw():
                received += len(chunk)
        assert SIZE < received < SIZE + 1000
        (file,) = table.fetch_blob_files("film", [1 << 32])
        assert file.read_range(SIZE - 7 * MEGABYTE, 7 * MEGABYTE) == film[-7 * MEGABYTE :]
        grown = peak_memory(server) - before
        assert grown < MAX_GROWTH_BYTES, f"{grown / MEGABYTE:.0f} MiB"
    finally:
        server.stop()
