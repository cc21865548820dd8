"""A webhook's receiver, and a reader of server-sent events."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import httpx

from tiltyard.events.signatures import verify

SECRET = "whsec_" + "c2lnbmluZ3NpZ25pbmdzaWduaW5nc2lnbmluZw=="
SECONDS = 60


def eventually(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Return what `condition` returns, once that is true."""
    deadline = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not become true"
        time.sleep(0.02)
    return result


class Receiver:
    """Answers with what `answer(event)` returns: a status, or None for no answer at all. Checks each signature."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], int | None] = lambda _: 204, *, is_signed: bool = True
    ) -> None:
        self.answer = answer
        self.events: list[dict[str, Any]] = []
        """Those that were taken, in the order of their coming."""
        self.tries: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.stop_hanging = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                event = json.loads(body)
                named = {name.lower(): value for name, value in self.headers.items()}
                receiver.headers.append(named)
                assert not is_signed or verify(SECRET, named, body) == event["id"]
                receiver.tries.append(event["id"])
                status = receiver.answer(event)
                if status is None:
                    receiver.stop_hanging.wait(SECONDS)
                    status = 500
                elif status < 300:
                    receiver.events.append(event)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Be silent."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def types(self, subject: str | None = None) -> list[str]:
        """Return the types of the events that were taken, without what all have in common."""
        wanted = [event for event in self.events if subject is None or event.get("subject") == subject]
        return [short_type(event) for event in wanted]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_hanging.set()
        self.server.shutdown()
        self.server.server_close()


def short_type(event: dict[str, Any]) -> str:
    """Return the type of an event without what all have in common."""
    name: str = event["type"]
    return name.removeprefix("io.tiltyard.").removesuffix(".v1")


def sinks_of(**sinks: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a server with these sinks; webhooks have a secret."""
    signed = {
        name: ({"secret": "env:SIGNING"} if sink.get("url", "").startswith("http") else {}) | sink
        for name, sink in sinks.items()
    }
    return {"TILTYARD_EVENT_SINKS": json.dumps(signed), "SIGNING": SECRET}


class Reader:
    """Reads server-sent events in a thread; `events` has what has come, `last_id` the id of the last one."""

    def __init__(self, client: httpx.Client, **parameters: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.last_id = ""
        self.ended = threading.Event()
        self._started = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(client, parameters), daemon=True)
        self._thread.start()
        assert self._started.wait(SECONDS)

    def _read(self, client: httpx.Client, parameters: dict[str, str]) -> None:
        try:
            with suppress(httpx.HTTPError), client.stream("GET", "/tiltyard/v1/events", params=parameters) as response:
                assert response.status_code == 200, response.read()
                assert response.headers["content-type"].startswith("text/event-stream")
                self._started.set()
                for line in response.iter_lines():
                    if self._stop.is_set():
                        return
                    self._take(line)
        finally:
            self._started.set()
            self.ended.set()

    def _take(self, line: str) -> None:
        name, _, value = line.partition(": ")
        if name == "id":
            self.last_id = value
        elif name == "data":
            self.events.append(json.loads(value))

    def types(self) -> list[str]:
        return [short_type(event) for event in self.events]

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def reading(client: httpx.Client, **parameters: str) -> Iterator[Reader]:
    """Read events while the block runs."""
    reader = Reader(client, **parameters)
    try:
        yield reader
    finally:
        reader.stop()


def kept_events(client: httpx.Client, **parameters: str) -> list[dict[str, Any]]:
    """Return the events that are kept, and that the caller may see."""
    answer = client.get("/tiltyard/v1/events", params={"after": "oldest", "follow": "false", **parameters})
    assert answer.status_code == 200, answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
