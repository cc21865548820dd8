"""Server-sent events: what a caller may see at the moment of sending, behind any position, within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.events.receiver import eventually, kept_events, reading
from tests.services.cases import check_each
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.api.event_stream import MAX_READERS_OF_PRINCIPAL

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with authentication that keeps events."""
    with secured_server(tmp_path_factory.mktemp("events"), environ={"TILTYARD_EVENTS": "true"}) as server:
        yield server


@pytest.fixture
def admin(secured: Secured) -> Iterator[httpx.Client]:
    with secured.http("administrator") as client:
        yield client


def post(client: httpx.Client, path: str, body: object = None) -> None:
    content = {"content": body} if isinstance(body, bytes) else {"json": body or {}}
    headers = {"content-type": "application/vnd.apache.arrow.stream"} if isinstance(body, bytes) else {}
    response = client.post(path, headers=headers, **content)
    assert response.status_code == 200, response.text


def grant(client: httpx.Client, grantee: str, what: str = "add", **on: object) -> None:
    post(client, f"/tiltyard/v1/grant/{what}", {"grantee": grantee, "privileges": ["read"], **on})


def names_in(events: list[dict[str, object]]) -> str:
    return " ".join(map(str, events))


def test_reader_sees_events_of_what_it_may_see_and_no_other_name(secured: Secured, admin: httpx.Client) -> None:
    post(admin, "/v1/namespace/open/create")
    post(admin, "/v1/namespace/hidden/create")
    post(admin, "/v1/table/open$seen/create", stream(ROWS))
    grant(admin, "ann", object_kind="table", id=["open", "seen"])
    with (
        secured.http("ann") as ann,
        secured.http("bob") as bob,
        reading(ann) as of_ann,
        reading(bob) as of_bob,
        reading(admin, types="table") as of_admin,
    ):
        post(admin, "/v1/table/open$seen/insert", stream(ROWS))
        post(admin, "/v1/table/open$secret/create", stream(ROWS))
        post(admin, "/v1/table/hidden$secret/create", stream(ROWS))
        post(admin, "/v1/table/hidden$secret/rename", {"new_table_name": "moved", "new_namespace_id": ["open"]})
        grant(admin, "ann", object_kind="table", id=["open", "moved"])
        post(admin, "/v1/table/open$moved/insert", stream(ROWS))
        post(admin, "/v1/table/open$seen/drop")
        eventually(lambda: "table.dropped" in of_ann.types(), "the drop, which the grant in the trash shows")
        eventually(lambda: "table.dropped" in of_admin.types(), "the administrator's")
        assert {event["subject"] for event in of_ann.events} == {"open$seen", "open$moved"}
        assert "secret" not in names_in(of_ann.events) and "hidden" not in names_in(of_ann.events)
        assert not any(kind.startswith(("grant", "role", "key", "principal")) for kind in of_ann.types())
        assert not of_bob.events
        assert "secret" in names_in(of_admin.events)
        with reading(admin, after=of_admin.last_id) as again:
            post(admin, "/v1/table/open$seen/create", stream(ROWS))
            eventually(lambda: "table.created" in again.types(), "what is created anew")
        eventually(lambda: "open$seen" in names_in(kept_events(admin, types="table.created", object="open$seen")))
        assert kept_events(ann, types="table.created", object="open$seen")[1:] == [], (
            "the new table of the same name is another one, which was not granted"
        )
        grant(admin, "ann", "revoke", object_kind="table", id=["open", "moved"])
        eventually(lambda: "moved" not in names_in(kept_events(ann)), "a revocation hides what has happened, too")


def listed(client: httpx.Client, **fields: object) -> list[dict[str, Any]]:
    """Return all events that ListEvents has for a caller, page by page."""
    events, token = list[dict[str, Any]](), None
    while True:
        answer = client.post("/tiltyard/v1/event/list", json={"page_token": token, **fields} if token else fields)
        assert answer.status_code == 200, answer.text
        events += answer.json()["events"]
        if not (token := answer.json().get("page_token")):
            return events


def test_latest_events_are_listed_as_the_stream_shows_them_newest_first(secured: Secured, admin: httpx.Client) -> None:
    post(admin, "/v1/namespace/latest/create")
    for name in ("one", "two"):
        post(admin, f"/v1/table/latest${name}/create", stream(ROWS))
    grant(admin, "ann", object_kind="table", id=["latest", "one"])
    post(admin, "/tiltyard/v1/protection/set", {"object_kind": "table", "id": ["latest", "one"], "kind": "deletion"})
    with secured.http("ann") as ann, secured.http("bob") as bob:
        found = listed(ann, object="latest", limit=1)
        assert [each["type"].split(".", 2)[2] for each in found] == [
            "protection.set.v1",
            "table.created.v1",
            "namespace.created.v1",
        ]
        assert "latest$two" not in str(found) and not listed(bob, object="latest")
        assert [json.loads(each["event"]) for each in found][::-1] == kept_events(ann, object="latest")
    assert len(listed(admin, types=["table.created"], object="latest")) == 2
    refused = admin.post("/tiltyard/v1/event/list", json={"types": ["x"] * 101})
    assert (refused.status_code, refused.json()["code"]) == (400, 13)


def test_own_job_is_seen_without_a_table_that_is_seen_no_more(secured: Secured, admin: httpx.Client) -> None:
    post(admin, "/v1/table/jobs_t/create", stream(ROWS))
    everything = {"grantee": "ann", "privileges": ["all"], "object_kind": "table", "id": ["jobs_t"]}
    post(admin, "/tiltyard/v1/grant/add", everything)
    with secured.http("ann") as ann, secured.http("bob") as bob:
        post(ann, "/v1/table/jobs_t/create_index", {"column": "id", "index_type": "BTREE"})
        eventually(lambda: "job.succeeded" in names_in(kept_events(ann, types="job")), "the index")
        assert "jobs_t" in names_in(kept_events(ann, types="job")) and not kept_events(bob)
        post(admin, "/tiltyard/v1/grant/revoke", everything)
        eventually(lambda: "jobs_t" not in names_in(kept_events(ann)), "the name is hidden")
        assert "job.succeeded" in names_in(kept_events(ann, types="job"))


def test_reader_goes_on_behind_its_last_event_and_is_told_of_a_loss(secured: Secured, admin: httpx.Client) -> None:
    post(admin, "/v1/namespace/r1/create")
    with reading(admin, types="namespace") as reader:
        post(admin, "/v1/namespace/r2/create")
        eventually(lambda: reader.events, "the first one")
        last = reader.last_id
    post(admin, "/v1/namespace/r3/create")
    admin.headers["last-event-id"] = last
    with reading(admin, types="namespace") as reader:
        eventually(lambda: reader.events, "what was missed")
        assert [event["subject"] for event in reader.events] == ["r3"]
    admin.headers["last-event-id"] = "restored.7"
    with reading(admin) as reader:
        eventually(lambda: reader.events, "the loss")
        assert reader.types()[0] == "events.lost"


def test_parameters_and_strangers_are_refused(secured: Secured, admin: httpx.Client) -> None:
    def status(client: httpx.Client, **parameters: str) -> int:
        return client.get("/tiltyard/v1/events", params=parameters).status_code

    with secured.http() as stranger:
        assert status(stranger) == 401
    cases = [({"after": "x"}, 400), ({"follow": "perhaps"}, 400), ({"type": "table"}, 400), ({"after": "a.b"}, 400)]
    check_each(cases, lambda case: status(admin, **case[0]) == case[1])
    assert admin.post("/tiltyard/v1/events").status_code == 405


def test_revoked_key_ends_its_reader_and_one_principal_has_a_bounded_number(
    secured: Secured, admin: httpx.Client
) -> None:
    made = admin.post("/tiltyard/v1/key/create", json={"principal": "bob"}).json()
    with (
        httpx.Client(base_url=secured.url, headers={"x-api-key": made["api_key"]}, timeout=60) as client,
        reading(client) as reader,
    ):
        post(admin, "/tiltyard/v1/key/revoke", {"key_id": made["api_key"].split("_")[1]})
        post(admin, "/v1/namespace/wakes/create")
        assert reader.ended.wait(30)
    many = admin.post("/tiltyard/v1/key/create", json={"principal": "many"}).json()["api_key"]  # without other readers
    with httpx.Client(base_url=secured.url, headers={"x-api-key": many}, timeout=60) as client, ExitStack() as readers:
        for _ in range(MAX_READERS_OF_PRINCIPAL):
            readers.enter_context(reading(client))
        assert client.get("/tiltyard/v1/events").status_code == 429


def test_server_stops_in_time_with_readers(tmp_path: Path) -> None:
    with (
        secured_server(tmp_path, environ={"TILTYARD_EVENTS": "true"}) as secured,
        secured.http("ann") as ann,
        reading(ann) as reader,
    ):
        assert secured.server.stop(timeout=5) == 0
        assert reader.ended.wait(5)
