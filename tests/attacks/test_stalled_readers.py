"""Clients that ask for large answers and do not read them."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pytest

from tests.attacks.watchdog import MemoryWatchdog, attacked_server, resident_mib
from tests.faults.conftest import wait_until
from tests.services.sockets import connect
from tests.services.wire import stream

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.services.server import ServerProcess

ANSWER_MIB = 60
READERS = 16
EACH_MIB = 40
"""What one of them may hold until freed memory is given back: Lance's pages and batches, and the chunks under way."""
KEPT_MIB = 250
"""What may stay of it, in caches and between what is in use: a quarter of what whole answers would leave."""
SHAPES = {"narrow": 1000, "wide": 100_000}
"""Bytes of a row."""
SECONDS = 3
LAST_CHUNK = b"\r\n0\r\n\r\n"


def fill(server: ServerProcess, row_bytes: int) -> bytes:
    """Make the table `t` of text that does not compress; return a request for all of it."""
    rows = (ANSWER_MIB << 20) // row_bytes
    texts = pa.array([os.urandom(row_bytes // 2).hex() for _ in range(rows)])
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "text": texts})
    body = stream(table, most_rows=max(1, (1 << 20) // row_bytes))
    assert httpx.post(f"{server.url}/v1/table/t/create", content=body, timeout=120).status_code == 200
    query = json.dumps({"vector": None, "k": rows}).encode()
    return b"POST /v1/table/t/query HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(query), query)


def begin(stack: ExitStack, server: ServerProcess, query: bytes) -> socket.socket:
    """Ask, and see that the answer begins."""
    connection = stack.enter_context(connect(server.url))
    connection.sendall(query)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return the last bytes before the end."""
    last = b""
    try:
        while part := connection.recv(1 << 20):
            last = last[-16:] + part
    except ConnectionError:
        pass
    return last


def is_still(server: ServerProcess) -> bool:
    """Return whether a server's memory has stopped changing."""
    first = resident_mib(server.process.pid)
    time.sleep(0.5)
    return abs(resident_mib(server.process.pid) - first) < 2


def connections(server: ServerProcess) -> int:
    """Return the number of other connections."""
    text = httpx.get(f"{server.url}/metrics").text
    line = next(line for line in text.splitlines() if 'what="connections"' in line)
    return int(float(line.rpartition(" ")[2])) - 1


@pytest.mark.extended
@pytest.mark.parametrize("shape", SHAPES)
def test_readers_that_do_not_read_hold_a_window_of_their_answers_are_ended_and_leave_nothing(
    tmp_path: Path, shape: str
) -> None:
    environ = {"TILTYARD_SEND_TIMEOUT": str(5 * SECONDS), "TILTYARD_PAGE_CACHE_BYTES": "0"}
    with attacked_server(tmp_path, bound_mib=1000, environ=environ) as server, ExitStack() as stack:
        query = fill(server, SHAPES[shape])
        wait_until(lambda: is_still(server), "what the table took is given back")
        before = resident_mib(server.process.pid)
        with MemoryWatchdog(server.process.pid, before + READERS * EACH_MIB):
            readers = [begin(stack, server, query) for _ in range(READERS)]
            wait_until(lambda: is_still(server), "nobody makes any more of the answers")
        wait_until(lambda: connections(server) == 0, "they are ended")
        for reader in readers:
            assert not read_all(reader).endswith(LAST_CHUNK)  # half an answer must not look whole
        wait_until(lambda: resident_mib(server.process.pid) < before + KEPT_MIB, "memory is given back", seconds=60)


def test_reader_that_reads_slowly_is_served(tmp_path: Path) -> None:
    environ = {"TILTYARD_SEND_TIMEOUT": str(SECONDS)}
    with attacked_server(tmp_path, environ=environ) as server, ExitStack() as stack:
        reader = begin(stack, server, fill(server, SHAPES["narrow"]))
        until = time.monotonic() + 3 * SECONDS
        while time.monotonic() < until:
            assert reader.recv(64 << 10)
            time.sleep(0.1)
        read, last = 0, b""
        while not last.endswith(LAST_CHUNK):
            part = reader.recv(1 << 20)
            assert part
            read, last = read + len(part), last[-16:] + part
        assert read > (ANSWER_MIB << 20) // 2
