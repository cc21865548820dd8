"""The page of events: the latest by filter, the sinks with what waits, what they did not take, and what mends that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.console.test_server_page import CSRF, FRAGMENT
from tests.console.test_versions import words
from tests.events.receiver import Receiver, eventually, short_type, sinks_of
from tests.services.secured import secured_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook that refuses namespaces for themselves."""
    with Receiver(lambda event: 422 if short_type(event) == "namespace.created" else 204) as running:
        yield running


def test_events_are_filtered_and_what_a_sink_refused_is_sent_again(tmp_path: Path, receiver: Receiver) -> None:
    server = ServerProcess(tmp_path / "root", environ=sinks_of(hook={"url": receiver.url, "attempts": 1}))
    with Wire(server.url) as wire, httpx.Client(base_url=f"{server.url}/console", timeout=60) as http:
        assert "No events yet" in http.get("/events").text
        for name in ("a", "b"):
            wire.good(wire.namespace([name], "create"))
        wire.good(wire.namespace(["b"], "drop"))
        text = eventually(lambda: (found := words(http.get("/events"))).count("in step") and found, "the sink has all")
        assert re.search(r"hook in step 0 2 of hook", text) and "namespace.dropped" in text
        part = http.get("/events", params={"type": "namespace.created", "object": "b"}, headers=FRAGMENT).text
        assert part.count("namespace.created") == 1 and "namespace.dropped" not in part and "<html" not in part
        page = http.get("/events/dead-letters", params={"sink": "hook"})
        assert words(page).count("status 422") == 2
        csrf = CSRF.search(page.text)
        assert csrf is not None

        def act(action: str, **fields: str) -> httpx.Response:
            return http.post("/events", data={"csrf": csrf[1], "action": action, "sink": "hook", **fields})

        receiver.answer = lambda _: 204
        assert act("resend").status_code == 303
        eventually(lambda: receiver.types().count("namespace.created") == 2, "the dead letters")
        assert "No dead letters" in eventually(
            lambda: "No dead" in (found := http.get("/events/dead-letters?sink=hook").text) and found
        )
        assert act("replay", since="all").status_code == 303
        eventually(lambda: receiver.types().count("namespace.dropped") == 2, "all once more")
        assert act("retry").status_code == 303
        refused = act("replay", since="ever")
        assert refused.status_code == 400 and "since hour, day, all" in refused.text
        assert http.get("/events/dead-letters?sink=none").status_code == 400
        with http.stream("GET", "/events/changes") as changes:
            lines = changes.iter_lines()
            assert next(line for line in lines if line.startswith("data: ")) == 'data: {"position": 3}'
            wire.good(wire.namespace(["c"], "create"))
            assert next(line for line in lines if line.startswith("data: ")) == 'data: {"position": 4}'
    assert server.stop() == 0


def test_server_without_events_says_how_to_keep_them(http: httpx.Client) -> None:
    assert "No events are kept" in http.get("/events").text


def test_sinks_are_for_administrators(tmp_path: Path) -> None:
    with secured_server(tmp_path, environ={"TILTYARD_EVENTS": "true"}) as secured, secured.http("ann") as ann:
        for path in ("sink/list", "dead_letter/list", "dead_letter/resend", "replay"):
            answer = ann.post(f"/tiltyard/v1/event/{path}", json={} if path == "sink/list" else {"sink": "hook"})
            assert answer.status_code == 403, path
        with secured.http("administrator") as admin:
            answer = admin.post("/tiltyard/v1/event/replay", json={"sink": "hook", "after": 1})
            assert answer.status_code == 400 and "no event sink" in answer.text
