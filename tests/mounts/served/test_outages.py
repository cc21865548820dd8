"""A mounted catalog that is away, silent or slow: what is below it fails in bounded time, and nothing else notices."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream

TIMEOUT = 1.0
"""Seconds after which the mount gives up a call."""
PROMPT = 1.0
"""Seconds within which a request that has nothing to do with the mount is answered, on a busy machine."""


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as listener:
        yield listener.getsockname()[1]


def mounting(port: int, **more: Any) -> dict[str, str]:
    mount = {"kind": "lance", "uri": f"http://127.0.0.1:{port}", "timeout": TIMEOUT, "connect_timeout": TIMEOUT, **more}
    return {"TILTYARD_MOUNTS": json.dumps({"away": mount})}


@pytest.fixture
def server(tmp_path: Path, silent: int) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, environ=mounting(silent))
    with Wire(server.url) as wire:
        wire.call("table", ["own"], "create", stream(pa.table({"id": [1, 2, 3]})))
    yield server
    server.stop()


def describe(server: ServerProcess, *path: str) -> tuple[int, float]:
    """Return the code of the error of a description, and how long it took."""
    with Wire(server.url) as wire:
        began = time.monotonic()
        response = wire.http.post(f"/v1/table/{'$'.join(path)}/describe", json={})
        return check_error(response), time.monotonic() - began


def test_silent_catalog_is_17_in_bounded_time_and_then_at_once(server: ServerProcess) -> None:
    for _ in range(3):
        code, seconds = describe(server, "away", f"t{_}")
        assert code == 17
        assert seconds < 5 * TIMEOUT
    code, seconds = describe(server, "away", "t")
    assert code == 17
    assert seconds < TIMEOUT / 2
    with Wire(server.url) as wire:
        listed = wire.http.get("/v1/namespace/away/table/list")
        assert listed.status_code == 503
        assert "tried again in" in listed.json()["error"]
        assert int(listed.headers["retry-after"]) >= 1


def test_silent_catalog_costs_other_namespaces_nothing(server: ServerProcess) -> None:
    def flood(number: int) -> int:
        return describe(server, "away", f"t{number}")[0]

    with ThreadPoolExecutor(120) as pool, Wire(server.url) as wire:
        flooding = [pool.submit(flood, number) for number in range(300)]
        times = []
        while not all(each.done() for each in flooding):
            began = time.monotonic()
            assert wire.call("table", ["own"], "count_rows").json() == 3
            assert wire.call("namespace", [], "list", method="GET").json()["namespaces"] == ["away"]
            times.append(time.monotonic() - began)
            time.sleep(0.02)
        assert {each.result() for each in flooding} == {17}
    assert sorted(times)[len(times) // 2] < PROMPT
    with Wire(server.url) as wire:
        metrics = wire.http.get("/health/live")
        assert metrics.status_code == 200


def test_health_names_the_mount_as_degraded_and_the_server_as_ready(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        assert wire.http.get("/health/ready").json()["status"] == "ok"
        for number in range(3):
            describe(server, "away", f"t{number}")
        ready = wire.http.get("/health/ready")
        assert ready.status_code == 200
        assert ready.json()["status"] == "degraded"
        assert "mount away" in ready.json()["checks"]
        (mount,) = wire.http.post("/tiltyard/v1/mount/list", json={}).json()["mounts"]
        assert mount["outage"]


def test_catalog_that_comes_back_is_served_again(tmp_path: Path) -> None:
    theirs = ServerProcess(tmp_path / "theirs")
    ours = ServerProcess(
        tmp_path / "ours",
        environ=mounting(int(theirs.url.rsplit(":", 1)[1]), max_age=0, allowed_locations=[str(tmp_path)]),
    )
    try:
        with Wire(theirs.url) as wire:
            wire.call("table", ["t"], "create", stream(pa.table({"id": [1, 2, 3]})))
        with Wire(ours.url) as wire:
            assert wire.call("table", ["away", "t"], "count_rows").json() == 3
            theirs.kill()
            codes = {describe(ours, "away", "t")[0] for _ in range(5)}
            assert codes == {17}
            theirs.start()
            until = time.monotonic() + 30
            while wire.http.post("/v1/table/away$t/count_rows", json={}).status_code != 200:
                assert time.monotonic() < until
                time.sleep(0.1)
            assert wire.http.get("/health/ready").json()["status"] == "ok"
    finally:
        ours.stop()
        theirs.stop()


def test_lookups_of_one_name_at_once_are_one_call(tmp_path: Path) -> None:
    calls: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listener:
        threading.Thread(target=answer_slowly, args=(listener, calls), daemon=True).start()
        server = ServerProcess(tmp_path, environ=mounting(listener.getsockname()[1], max_age=5.0))
        try:
            with ThreadPoolExecutor(8) as pool:
                codes = list(pool.map(lambda _: describe(server, "away", "t")[0], range(8)))
            assert set(codes) == {4}
            assert describe(server, "away", "t")[0] == 4
        finally:
            server.stop()
    assert len([call for call in calls if b"/t/describe" in call]) == 1


def test_throttled_catalog_is_21_with_a_time_to_wait_and_is_not_away(tmp_path: Path) -> None:
    calls: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listener:
        threading.Thread(target=answer_slowly, args=(listener, calls, 429, 21), daemon=True).start()
        server = ServerProcess(tmp_path, environ=mounting(listener.getsockname()[1], max_age=0))
        try:
            with Wire(server.url) as wire:
                for _ in range(5):
                    throttled = wire.call("table", ["away", "t"], "describe")
                    assert (throttled.status_code, throttled.json()["code"]) == (429, 21)
                    assert int(throttled.headers["retry-after"]) >= 1
                assert wire.http.get("/health/ready").json()["status"] == "ok"
        finally:
            server.stop()
    assert len(calls) >= 5


def answer_slowly(listener: socket.socket, calls: list[bytes], status: int = 404, code: int = 4) -> None:
    """Answer each request after a while with an error: there is no such table."""
    body = json.dumps({"error": "no such table", "code": code}).encode()
    head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                calls.append(data.partition(b"\r\n")[0])
                time.sleep(0.3)
                connection.sendall(head + body)

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(connection,), daemon=True).start()
