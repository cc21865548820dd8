"""Several servers on one catalog and one root: commits of one are visible to the others at once."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.faults.conftest import ROWS, Installation
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

pytestmark = pytest.mark.extended

Talk = Callable[[ServerProcess], Wire]


def test_servers_on_one_catalog_see_each_others_commits_at_once(installation: Installation, talk: Talk) -> None:
    first, second = (talk(installation.start()) for _ in range(2))
    first.good(first.namespace(["n"], "create", {"properties": {"a": "b"}}))
    assert second.good(second.namespace(["n"], "describe"))["properties"] == {"a": "b"}
    first.good(first.table(["n", "t"], "create", stream(ROWS)))
    for turn in range(10):
        writer, reader = (first, second) if turn % 2 else (second, first)
        assert reader.table(["n", "t"], "count_rows").text == str(100 * (turn + 1))
        version = writer.good(writer.table(["n", "t"], "insert", stream(ROWS)))["version"]
        description = reader.good(reader.table(["n", "t"], "describe", query={"load_detailed_metadata": "true"}))
        assert description["version"] == version
        assert reader.table(["n", "t"], "count_rows").text == str(100 * (turn + 2))
    second.good(second.table(["n", "t"], "rename", {"new_table_name": "u"}))
    assert first.table(["n", "t"], "exists").status_code == 404
    assert first.table(["n", "u"], "count_rows").text == "1100"
    first.good(first.table(["n", "u"], "drop"))
    assert second.table(["n", "u"], "count_rows").status_code == 404
    second.good(second.table(["n", "u"], "create", stream(ROWS)))
    assert first.table(["n", "u"], "count_rows").text == "100"


def test_servers_that_share_a_secret_take_each_others_page_tokens(installation: Installation, talk: Talk) -> None:
    first, second = (talk(installation.start()) for _ in range(2))
    for name in "abc":
        first.good(first.namespace([name], "create"))
    page = first.good(first.namespace([], "list", method="GET", query={"limit": 1}))
    following = second.good(second.namespace([], "list", method="GET", query={"page_token": page["page_token"]}))
    assert page["namespaces"] + following["namespaces"] == ["a", "b", "c"]


def test_concurrent_writers_on_two_servers_lose_nothing(installation: Installation, talk: Talk) -> None:
    wires = [talk(installation.start()) for _ in range(2)]
    wires[0].good(wires[0].table(["t"], "create", stream(ROWS.schema)))

    def write(number: int) -> int:
        wire = wires[number % 2]
        row = pa.table({"id": pa.array([number], pa.int64()), "text": [str(number)]})
        return wire.table(["t"], "insert", stream(row)).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(write, range(60))) == {200}
    for wire in wires:
        assert wire.table(["t"], "count_rows").text == "60"


def test_server_processes_of_one_server_answer_alike(installation: Installation, talk: Talk) -> None:
    server = installation.start("--workers", "2")
    wires = [talk(server) for _ in range(8)]  # a connection stays with the process that took it
    for wire in wires:
        assert wire.http.get("/health/ready").status_code == 200
    wires[0].good(wires[0].table(["t"], "create", stream(ROWS)))
    assert {wire.table(["t"], "count_rows").text for wire in wires} == {"100"}
    for number, wire in enumerate(wires, 1):
        wire.good(wire.table(["t"], "insert", stream(ROWS)))
        assert {other.table(["t"], "count_rows").text for other in wires} == {str(100 * (number + 1))}
    for wire in wires:
        wire.http.close()
    assert server.stop() == 0


def connections_of(process: int, port: int) -> int:
    """Count the connections to a port that a process has."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"}

    def is_one(file: Path) -> bool:
        try:
            return str(file.readlink()) in established
        except FileNotFoundError:  # closed meanwhile
            return False

    return sum(map(is_one, Path(f"/proc/{process}/fd").iterdir()))


def test_connections_come_to_a_process_that_was_stuck_when_they_were_opened(installation: Installation) -> None:
    server = installation.start("--workers", "2")
    address = urlsplit(server.url)
    assert address.hostname and address.port
    clients = [http.client.HTTPConnection(address.hostname, address.port, timeout=60) for _ in range(8)]

    def ask() -> None:
        for client in clients:
            client.request("GET", "/health/live")
            response = client.getresponse()
            response.read()
            assert response.status == 200

    def spread() -> list[int]:
        return sorted(connections_of(process, address.port) for process in server.workers)

    while len(server.workers) < 2:
        time.sleep(0.1)
    stuck = server.workers[1]
    os.kill(stuck, signal.SIGSTOP)
    try:
        ask()
        assert spread() == [0, 8]
    finally:
        os.kill(stuck, signal.SIGCONT)
    until = time.monotonic() + 60
    while spread() != [4, 4] and spread() != [3, 5]:
        assert time.monotonic() < until, spread()
        ask()
    for client in clients:
        client.close()
    assert server.stop() == 0
