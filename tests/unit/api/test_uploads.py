"""Arrow bodies: whole ones are read, and nothing else ever looks like one."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies import uploads
from tiltyard.api.bodies.uploads import ClientGoneError, MemoryBody, StreamedBody, open_upload, read_body
from tiltyard.api.errors import HttpError


def stream(rows: int, batches: int = 4, compression: str | None = None) -> tuple[pa.Table, bytes]:
    table = pa.table({"id": range(rows), "text": [f"row {number}" for number in range(rows)]})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=max(1, rows // batches))
    return table, sink.getvalue()


def arriving(data: bytes, size: int, *, cut: bool = False) -> Callable[[], Any]:
    """Return an ASGI `receive` for a body in chunks; with `cut` the client disconnects after the last byte."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if cut:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False
    source = iter(messages)

    async def receive() -> Any:
        await asyncio.sleep(0)
        return next(source)

    return receive


async def upload(data: bytes, size: int, *, cut: bool = False, limit: int = 0) -> pa.Table:
    """Read a body as the server does."""
    body = await open_upload(arriving(data, size, cut=cut), limit)
    loop = asyncio.get_running_loop()
    feeding = loop.create_task(body.feed()) if isinstance(body, StreamedBody) else None
    try:
        return await loop.run_in_executor(None, lambda: body.reader().read_all())
    except Exception as error:
        raise body.failure or error from error
    finally:
        if feeding:
            await feeding


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("size", [997, 1 << 16])
@pytest.mark.parametrize("in_memory", [0, 1 << 30])
def test_upload_whole_body_is_the_table(
    monkeypatch: pytest.MonkeyPatch, compression: str | None, size: int, in_memory: int
) -> None:
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", in_memory)
    table, data = stream(20_000, compression=compression)
    assert asyncio.run(upload(data, size)).equals(table)


@pytest.mark.parametrize("in_memory", [0, 1 << 30])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.999])
def test_upload_half_sent_is_refused_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, in_memory: int, part: float
) -> None:
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", in_memory)
    data = stream(20_000)[1]
    with pytest.raises(ClientGoneError):
        asyncio.run(upload(data[: int(len(data) * part)], 1000, cut=True))
    if part:
        with pytest.raises(InvalidInputError):
            asyncio.run(upload(data[: int(len(data) * part)], 1000))


@pytest.mark.parametrize("in_memory", [0, 1 << 30])
def test_upload_cut_between_two_batches_is_refused(monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    """Arrow itself takes the end of the file for the end of the stream there."""
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", in_memory)
    data = stream(20_000)[1]
    assert pa.ipc.open_stream(data[:-8]).read_all().num_rows == 20_000
    with pytest.raises(InvalidInputError, match="end-of-stream"):
        asyncio.run(upload(data[:-8], 1000))


@pytest.mark.parametrize("in_memory", [0, 1 << 30])
@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("more", [b"x", b"\0" * 8, uploads.END_OF_STREAM, stream(3)[1]])
def test_upload_that_goes_on_behind_its_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, in_memory: int, compression: str | None, more: bytes
) -> None:
    """Arrow itself reads the first of two streams, and says nothing of the other's rows."""
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", in_memory)
    data = stream(20_000, compression=compression)[1]
    with pytest.raises(InvalidInputError):
        asyncio.run(upload(data + more, 1000))


@pytest.mark.parametrize("data", [b"garbage", b"\0" * 100, b"{}", b"ARROW1\0\0garbage"])
def test_upload_garbage_is_the_clients_error(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        asyncio.run(upload(data, 10))


def test_upload_of_the_file_format_is_read_too() -> None:
    table = pa.table({"a": [1, 2]})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert MemoryBody(sink.getvalue()).reader().read_all().equals(table)


def test_upload_empty_body_has_no_columns() -> None:
    assert MemoryBody(b"").reader().schema == pa.schema([])


@pytest.mark.parametrize("in_memory", [0, 1 << 30])
def test_upload_over_the_limit_is_413(monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", in_memory)
    with pytest.raises(HttpError) as raised:
        asyncio.run(upload(stream(20_000)[1], 1000, limit=100_000))
    assert raised.value.status == 413


def test_upload_window_holds_back_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(uploads, "WINDOW_BYTES", 10_000)
    data = stream(50_000)[1]

    async def scenario() -> int:
        body = await open_upload(arriving(data, 1000), 0)
        assert isinstance(body, StreamedBody)
        feeding = asyncio.get_running_loop().create_task(body.feed())
        await asyncio.sleep(0.1)
        held_bytes = body._held_bytes
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        return held_bytes

    assert asyncio.run(scenario()) < 12_000


def test_upload_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "STALL_SECONDS", 0.01)

    async def never() -> Any:
        await asyncio.sleep(60)

    with pytest.raises(HttpError) as raised:
        asyncio.run(read_body(never, 10))
    assert raised.value.status == 408


def peak_of(scenario: Any) -> int:
    """Return how many bytes of memory a scenario held at most."""
    tracemalloc.start()
    try:
        asyncio.run(scenario)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_body_that_drips_takes_little_more_than_its_bytes() -> None:
    """As a list of pieces it took twenty times as much."""
    pieces = iter(range(100_000, -1, -1))

    async def receive() -> dict[str, Any]:
        number = next(pieces)
        if number % 100 == 0:
            await asyncio.sleep(0)  # the loop forgets timers that were canceled
        return {"type": "http.request", "body": bytes(bytearray(2)), "more_body": number > 0}

    async def scenario() -> None:
        assert len(await read_body(receive, 1 << 20)) == 200_002

    assert peak_of(scenario()) < 5 * 200_002


def test_upload_that_drips_fills_its_window_by_what_its_pieces_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(uploads, "WINDOW_BYTES", 100_000)
    data = stream(50_000)[1]

    async def scenario() -> int:
        body = await open_upload(arriving(data, 2), 0)
        assert isinstance(body, StreamedBody)
        feeding = asyncio.get_running_loop().create_task(body.feed())
        pieces = -1
        while pieces != len(body._chunks):  # until it has stopped to read, however slow the machine is
            pieces = len(body._chunks)
            await asyncio.sleep(0.1)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        return pieces

    assert 1000 < asyncio.run(scenario()) < 2000
