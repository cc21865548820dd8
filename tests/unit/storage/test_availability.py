"""Stores that are asked whether they respond: when requests are refused, and when not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.services.ports import reserve_port
from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.storage import availability
from tiltyard.storage.availability import AvailabilityMonitor

ROOT = "s3://bucket/tables"


class _Store(BaseHTTPRequestHandler):
    """Answers each request with one status."""

    status = 404
    asked: list[str]

    def do_HEAD(self) -> None:  # http.server's name
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name it has there
        pass


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[AvailabilityMonitor]:
    monkeypatch.setattr(availability, "PROBE_SECONDS", 0.02)
    monitor = AvailabilityMonitor()
    yield monitor
    monitor.stop()


def options(port: int) -> dict[str, str]:
    return {
        "aws_endpoint": f"http://127.0.0.1:{port}", "allow_http": "true", "aws_region": "us-east-1",
        "aws_access_key_id": "testing", "aws_secret_access_key": "testing",
    }  # fmt: skip


def is_refused(monitor: AvailabilityMonitor, values: dict[str, str]) -> bool:
    try:
        monitor.check(ROOT, values)
    except StorageUnavailableError as error:
        return error.__cause__ is not None  # which the log says
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("status", [404, 403, 429, 503])
def test_store_that_answers_is_used_whatever_it_says(monitor: AvailabilityMonitor, status: int) -> None:
    asked: list[str] = []
    handler = type("Handler", (_Store,), {"status": status, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        values = options(server.server_port)
        monitor.start()
        assert not is_refused(monitor, values)
        wait_for(lambda: len(asked) > 3)
        assert not is_refused(monitor, values)
        server.shutdown()
    assert set(asked) == {"/bucket/tables/.tiltyard-probe"}


def test_store_that_does_not_answer_is_refused_until_it_does(monitor: AvailabilityMonitor) -> None:
    port, reserved = reserve_port()
    values = options(port)
    monitor.start()
    assert not is_refused(monitor, values)
    wait_for(lambda: is_refused(monitor, values))
    reserved.close()
    handler = type("Handler", (_Store,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wait_for(lambda: not is_refused(monitor, values))
        server.shutdown()


def test_stores_are_not_asked_before_a_server_starts_to(monitor: AvailabilityMonitor) -> None:
    port, reserved = reserve_port()
    for _ in range(3):
        assert not is_refused(monitor, options(port))
    reserved.close()
