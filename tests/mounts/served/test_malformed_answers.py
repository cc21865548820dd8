"""A mounted server that answers names, locations, tokens and pages that cannot be: one sentence each, and no 500."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

from tests.services.server import ServerProcess
from tests.services.stub_catalog import Answer, StubRequest, stub_catalog
from tests.services.wire import Wire, check_error, stream

HOSTILE = ("", "a\0b", "../x", "..", "/etc", "a\nb", "b\\\\c", "x" * 300)
TOKENS = count(1)


@pytest.fixture(scope="module")
def answers() -> dict[str, Callable[[StubRequest], Answer]]:
    """What the mounted server answers to operations, by their paths' ends; a test replaces them."""
    return {}


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory, answers: dict[str, Any]) -> Iterator[Wire]:
    """A server that mounts one that speaks Lance's protocol, as `theirs`, and its token service, as `tokens`."""
    root = tmp_path_factory.mktemp("served")

    def answer(request: StubRequest) -> Answer:
        path = unquote(urlsplit(request.path).path)
        for end, answered in answers.items():
            if path.endswith(end):
                return answered(request)
        return 200, {"properties": {}}

    with stub_catalog(answer) as stub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALFORMED_SECRET", "s")
        mount = {"kind": "lance", "uri": stub.url, "max_age": 0.0, "allowed_locations": [str(root / "lake")]}
        tokens = {**mount, "client_id": "c", "client_secret": "env:MALFORMED_SECRET", "oauth2_uri": f"{stub.url}/token"}
        environ = {"TILTYARD_MOUNTS": json.dumps({"theirs": mount, "tokens": tokens})}
        server = ServerProcess(root, environ=environ)
        with Wire(server.url) as wire:
            yield wire
        server.stop()


def test_names_that_nothing_can_have_are_not_listed(wire: Wire, answers: dict[str, Any]) -> None:
    answers["/list"] = lambda _: (200, {"tables": ["t", *HOSTILE], "namespaces": ["n", *HOSTILE]})
    assert wire.call("namespace", ["theirs"], "list", method="GET").json()["namespaces"] == ["n"]
    assert wire.call("namespace", ["theirs"], "table/list", method="GET").json()["tables"] == ["t"]


def test_pages_without_an_end_are_ended(wire: Wire, answers: dict[str, Any]) -> None:
    for names in ([], ["a", "b"]):
        for token in (lambda: "again", lambda: str(next(TOKENS))):
            answers["/list"] = lambda request, n=names, t=token: (200, {"namespaces": n, "page_token": t()})
            query: dict[str, str] = {"limit": "2"}
            for _ in range(200):
                listed = wire.http.get("/v1/namespace/theirs/list", params=query)
                if listed.status_code != 200 or not (following := listed.json().get("page_token")):
                    break
                query["page_token"] = following
            assert listed.status_code == 503, listed.text
            assert check_error(listed) == 17
            assert "repeats a page" in listed.json()["error"] or "does not end" in listed.json()["error"]
    answers.clear()
    assert wire.call("namespace", ["theirs", "n"], "describe").status_code == 200, "the mount is not taken to be away"


@pytest.mark.parametrize(
    "answer",
    [{}, {"location": None}, {"location": ""}, {"location": 7}, [], "text", b"no JSON", {"location": "a\r\nb"}],
)
def test_answer_without_a_usable_location_is_one_sentence(wire: Wire, answers: dict[str, Any], answer: object) -> None:
    answers["/describe"] = lambda request: (200, answer if "/v1/table/" in request.path else {})
    for _ in range(4):
        described = wire.http.post("/v1/table/theirs$n$t/describe", json={})
        assert described.status_code in (409, 503), described.text
        assert check_error(described) in (17, 19)
        assert "is tried again in" not in described.json()["error"]


def test_one_entry_that_cannot_be_opened_leaves_the_list_of_the_others(
    wire: Wire, answers: dict[str, Any], tmp_path: Path
) -> None:
    places = {"bad": {}, "outside": {"location": str(tmp_path)}, "strange": {"location": "a\r\nb"}}
    answers["/table/list"] = lambda _: (200, {"tables": [*places, "gone"]})
    answers["/describe"] = lambda request: (
        (200, places[name]) if (name := unquote(request.path).split("/")[3].rpartition("$")[2]) in places
        else (200, {}) if "/v1/namespace/" in request.path
        else (404, {"code": 4, "error": "gone"})
    )  # fmt: skip
    path = "/v1/namespace/theirs$n/table/list"
    listed = wire.http.get(path, params={"include_declared": "false"})
    assert (listed.status_code, listed.json()["tables"]) == (200, [])
    assert wire.http.get(path).json()["tables"] == [*places, "gone"]


def test_create_at_a_name_of_another_format_is_refused_in_each_mode(wire: Wire, answers: dict[str, Any]) -> None:
    """The other catalog says that the name is taken, and shows no Lance table under it."""
    answers.clear()
    answers["/declare"] = lambda _: (409, {"code": 5, "error": "taken"})
    answers["/describe"] = lambda request: (404, {"code": 4}) if "/v1/table/" in request.path else (200, {})
    for mode, sentence in (("create", "already"), ("exist_ok", "Choose another"), ("overwrite", "Choose another")):
        rows = stream(pa.table({"x": [1]}))
        refused = wire.call("table", ["theirs", "n", "t"], "create", rows, query={"mode": mode})
        assert (refused.status_code, check_error(refused)) == (409, 5), (mode, refused.text)
        assert sentence in refused.json()["error"], mode


def test_token_that_no_header_can_carry_is_one_sentence(wire: Wire, answers: dict[str, Any]) -> None:
    answers.clear()
    answers["/token"] = lambda _: (200, {"access_token": "a\r\nx-evil: 1"})
    described = wire.http.post("/v1/table/tokens$t/describe", json={})
    assert described.status_code == 503, described.text
    assert "no header can carry" in described.json()["error"]
    body = {"kind": "lance", "settings": {"uri": "http://127.0.0.1:1", "headers": {"x": "a\r\nb"}}}
    refused = wire.http.post("/tiltyard/v1/mount/evil/create", json=body)
    assert check_error(refused) == 13
    assert wire.call("table", ["own"], "create", stream(pa.table({"x": [1]}))).status_code == 200
