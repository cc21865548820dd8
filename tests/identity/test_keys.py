"""API keys: which requests they authenticate, until when, and what of a key is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.identity.responses import LIST, SLACK_SECONDS, ask, refused, wait_for
from tests.services.postgres import PostgresServer
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess
from tests.services.wire import check_error
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.store import open_store, wall_clock


class Caller:
    """Calls operations on keys with one key."""

    def __init__(self, secured: Secured, name: str) -> None:
        self.http = secured.http(name)

    def __call__(self, path: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/tiltyard/v1/{path}", json=fields)


@pytest.fixture
def administrator(secured: Secured) -> Iterator[Caller]:
    caller = Caller(secured, "administrator")
    yield caller
    caller.http.close()


@pytest.fixture
def ann(secured: Secured) -> Iterator[Caller]:
    caller = Caller(secured, "ann")
    yield caller
    caller.http.close()


def key_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["api_key"]
    return text


@pytest.mark.parametrize("path", [LIST, "/v1/table/", "/v1/table"])
def test_call_without_credentials_is_refused(secured: Secured, path: str) -> None:
    with secured.http() as http:
        assert "x-api-key" in refused(http.get(path))


def test_call_with_a_key_is_answered(secured: Secured) -> None:
    for key in secured.keys.values():
        assert ask(secured.url, {"x-api-key": key}).status_code == 200


def test_upload_without_credentials_is_refused_before_its_body_is_read(secured: Secured) -> None:
    with secured.http() as http:
        refused(http.post("/v1/table/t/create", content=b"no arrow at all"))
        refused(http.post("/v1/table/t/insert", json={"identity": {"api_key": secured.keys["ann"]}}))


def test_unknown_key_is_refused_without_details(secured: Secured) -> None:
    mark, id_, secret = secured.keys["ann"].split("_", 2)
    parts_of_other_key = secured.keys["bob"].split("_", 2)
    messages = {
        refused(ask(secured.url, {"x-api-key": text}))
        for text in (
            "",
            "none",
            "tilt__",
            f"{mark}_{id_}_{secret[:-1]}",
            f"{mark}_{id_}_{secret}x",
            f"{mark}_{id_}_{parts_of_other_key[2]}",
            f"{mark}_{'0' * 16}_{secret}",
            f"{mark}_{id_[:-1]}_{secret}",
            f"{id_}_{secret}",
        )
    }
    assert messages == {"This API key is unknown."}
    headers = [(b"x-api-key", "tilt_€€€€€€€€€€€€€€€€_ü".encode())]
    assert refused(httpx.get(secured.url + LIST, headers=headers, timeout=60)) in messages


def test_key_as_a_bearer_is_the_key(secured: Secured) -> None:
    """Prometheus' operator, and other programs with one place for a secret, send no header of another name."""
    key = secured.keys["ann"]
    for scheme in ("Bearer", "bearer", "Bearer "):
        assert ask(secured.url, {"authorization": f"{scheme} {key}"}).status_code == 200
    assert ask(secured.url, {"authorization": f"Bearer {key}", "x-api-key": "any"}).status_code == 200
    assert "API key" in refused(ask(secured.url, {"authorization": f"Bearer {key[:-1]}", "x-api-key": key}))
    for name, status in (("ann", 403), ("administrator", 200)):
        headers = {"authorization": f"Bearer {secured.keys[name]}", "x-forwarded-for": "1.2.3.4"}
        assert httpx.get(f"{secured.url}/metrics", headers=headers).status_code == status


def test_token_as_a_key_is_refused(secured: Secured) -> None:
    refused(ask(secured.url, {"x-api-key": "eyJhbGciOiJub25lIn0.e30."}))


def test_repeated_credential_headers_are_refused(secured: Secured) -> None:
    """A proxy may have looked at the one, and the server would believe the other."""
    ann, bob = secured.keys["ann"], secured.keys["bob"]
    for twice in (
        [("x-api-key", ann), ("X-API-Key", bob)],
        [("authorization", "Bearer x"), ("Authorization", "Bearer y")],
    ):
        response = httpx.get(secured.url + LIST, headers=twice, timeout=60)
        assert response.status_code == 400 and "came twice" in response.json()["error"]
    assert httpx.get(secured.url + LIST, headers=[("x-api-key", ann), ("a", "1"), ("a", "2")], timeout=60).is_success


def test_identity_in_the_body_is_used_without_credential_headers(secured: Secured) -> None:
    url = secured.url + "/tiltyard/v1/key/list"
    for identity in ({"api_key": secured.keys["ann"]}, {"api_key": secured.keys["ann"], "auth_token": None}):
        response = httpx.post(url, json={"identity": identity}, timeout=60).json()
        assert {key["principal"] for key in response["keys"]} == {"ann"}
    refused(httpx.post(url, json={"identity": {"api_key": "none"}}, timeout=60))
    refused(httpx.post(url, json={"identity": {"auth_token": "none", "api_key": secured.keys["ann"]}}, timeout=60))
    refused(httpx.post(url, json={"identity": {}}, timeout=60))
    refused(httpx.post(url, content=b"no json", timeout=60))


def test_headers_take_precedence_over_identity_in_the_body(secured: Secured) -> None:
    body = {"identity": {"api_key": secured.keys["administrator"]}}
    url = secured.url + "/tiltyard/v1/principal/list"
    assert httpx.post(url, json=body, timeout=60).status_code == 200
    assert httpx.post(url, json=body, headers={"x-api-key": secured.keys["ann"]}, timeout=60).status_code == 403
    refused(httpx.post(url, json=body, headers={"x-api-key": "none"}, timeout=60))


def test_body_of_an_unauthenticated_caller_is_read_up_to_a_limit(secured: Secured) -> None:
    body = b'{"identity": {"api_key": "%s"}, "page_token": "%s"}' % (secured.keys["ann"].encode(), b"x" * (1 << 20))
    response = httpx.post(secured.url + "/tiltyard/v1/key/list", content=body, timeout=60)
    assert response.status_code == 413 and check_error(response) == 13


def test_create_api_key_creates_a_principal_and_returns_the_key_once(secured: Secured, administrator: Caller) -> None:
    created = administrator("key/create", principal="cleo", note="nightly", expires_in_seconds=3600)
    key = key_of(created)
    assert ask(secured.url, {"x-api-key": key}).status_code == 200
    listed = administrator("key/list", principal="cleo")
    (entry,) = listed.json()["keys"]
    entry.pop("last_used_at_millis", None)  # written beside the request
    assert entry == created.json()["key"] and (entry["note"], entry["key_id"]) == ("nightly", key.split("_")[1])
    assert key.split("_", 2)[2] not in listed.text


def test_create_api_key_stores_no_secret_in_the_catalog(secured: Secured, administrator: Caller) -> None:
    secret = key_of(administrator("key/create", principal="carol")).split("_", 2)[2]
    with closing(sqlite3.connect(f"{secured.server.root}/catalog.db")) as catalog:
        assert secret not in "\n".join(catalog.iterdump())


@pytest.mark.parametrize(
    "wrong",
    [
        {"principal": ""},
        {"principal": "corp:zoe"},
        {"principal": "everybody"},
        {"principal": "tiltyard"},
        {"principal": "x", "expires_in_seconds": 0},
        {"principal": "x", "expires_in_seconds": -5},
        {"principal": "x", "expires_in_seconds": 2**62},
        {"principal": "x", "note": "n" * 1001},
        {},
    ],
)
def test_create_api_key_with_invalid_fields_is_400(administrator: Caller, wrong: dict[str, Any]) -> None:
    response = administrator("key/create", **wrong)
    assert response.status_code == 400 and check_error(response) == 13


def test_key_that_expired_is_refused(secured: Secured, administrator: Caller) -> None:
    key = key_of(administrator("key/create", principal="carol", expires_in_seconds=1))
    wait_for(lambda: ask(secured.url, {"x-api-key": key}).status_code == 401)
    assert "expired" in refused(ask(secured.url, {"x-api-key": key}))


def test_rotate_api_key_lets_both_work_for_the_overlap(secured: Secured, administrator: Caller) -> None:
    old = key_of(administrator("key/create", principal="dora", note="loads"))
    assert ask(secured.url, {"x-api-key": old}).status_code == 200
    rotated = administrator("key/rotate", key_id=old.split("_")[1], overlap_seconds=6)
    new = key_of(rotated)
    assert rotated.json()["key"]["note"] == "loads" and rotated.json()["key"]["principal"] == "dora"
    for key in (old, new):
        assert ask(secured.url, {"x-api-key": key}).status_code == 200
    wait_for(lambda: ask(secured.url, {"x-api-key": old}).status_code == 401)
    assert ask(secured.url, {"x-api-key": new}).status_code == 200
    assert administrator("key/rotate", key_id=old.split("_")[1]).status_code == 400


def test_rotate_api_key_of_ones_own_lives_no_longer_than_it(secured: Secured, administrator: Caller) -> None:
    old = key_of(administrator("key/create", principal="erin", expires_in_seconds=3600))
    ends = administrator("key/list", principal="erin").json()["keys"][0]["expires_at_millis"]
    for wish in ({}, {"expires_in_seconds": 10**6}):
        body = {"key_id": old.split("_")[1], **wish}
        rotated = httpx.post(secured.url + "/tiltyard/v1/key/rotate", json=body, headers={"x-api-key": old}, timeout=60)
        assert rotated.json()["key"]["expires_at_millis"] == ends


def test_keys_of_others_do_not_exist_for_callers_who_are_not_administrators(
    secured: Secured, administrator: Caller, ann: Caller
) -> None:
    id_ = secured.keys["bob"].split("_")[1]
    for path in ("key/rotate", "key/revoke"):
        existing, missing = ann(path, key_id=id_), ann(path, key_id="0" * 16)
        assert (existing.status_code, missing.status_code) == (400, 400)
        assert existing.json()["error"].replace(id_, "0" * 16) == missing.json()["error"]
    assert {key["principal"] for key in ann("key/list").json()["keys"]} == {"ann"}
    for path, fields in (
        ("key/list", {"principal": "bob"}),
        ("key/create", {"principal": "ann"}),
        ("principal/list", {}),
        ("principal/alter", {"principal": "ann", "administrator": True}),
    ):
        response = ann(path, **fields)
        assert response.status_code == 403 and check_error(response) == 15
    assert ask(secured.url, {"x-api-key": secured.keys["bob"]}).status_code == 200


def test_revoke_api_key_of_ones_own_ends_it(secured: Secured, administrator: Caller) -> None:
    key = key_of(administrator("key/create", principal="fay"))
    body = {"key_id": key.split("_")[1]}
    done = httpx.post(secured.url + "/tiltyard/v1/key/revoke", json=body, headers={"x-api-key": key}, timeout=60)
    assert done.json()["key"]["revoked_at_millis"] > 0
    wait_for(lambda: ask(secured.url, {"x-api-key": key}).status_code == 401)


def test_alter_principal_disables_all_keys_and_enables_them_again(secured: Secured, administrator: Caller) -> None:
    key = {"x-api-key": key_of(administrator("key/create", principal="gwen"))}
    assert ask(secured.url, key).status_code == 200
    assert administrator("principal/alter", principal="gwen", disabled=True).json()["principal"]["disabled"]
    wait_for(lambda: ask(secured.url, key).status_code == 401)
    assert "disabled" in refused(ask(secured.url, key))
    administrator("principal/alter", principal="gwen", disabled=False)
    wait_for(lambda: ask(secured.url, key).status_code == 200)
    names = [entry["name"] for entry in administrator("principal/list").json()["principals"]]
    assert names == sorted(names) and {"administrator", "ann", "bob", "gwen"} <= set(names)


def test_alter_principal_of_the_caller_cannot_lock_it_out(administrator: Caller) -> None:
    for change in ({"disabled": True}, {"administrator": False}):
        response = administrator("principal/alter", principal="administrator", **change)
        assert response.status_code == 400 and check_error(response) == 13


def test_list_api_keys_pages(administrator: Caller) -> None:
    for _ in range(3):
        key_of(administrator("key/create", principal="hedy"))
    first = administrator("key/list", principal="hedy", limit=2).json()
    second = administrator("key/list", principal="hedy", limit=2, page_token=first["page_token"]).json()
    assert len({key["key_id"] for key in first["keys"] + second["keys"]}) == 3 and "page_token" not in second
    assert administrator("key/list", page_token=first["page_token"]).status_code == 400


def test_use_of_a_key_is_recorded(secured: Secured, administrator: Caller) -> None:
    key = key_of(administrator("key/create", principal="iris"))

    def used() -> int | None:
        last: int | None = administrator("key/list", principal="iris").json()["keys"][0].get("last_used_at_millis")
        return last

    assert used() is None
    ask(secured.url, {"x-api-key": key})
    wait_for(used)
    first = used()
    ask(secured.url, {"x-api-key": key})
    assert used() == first  # at most once a minute


def test_revoked_key_is_refused_by_a_second_replica_within_5_seconds(tmp_path: Path, postgres: PostgresServer) -> None:
    db = postgres.new_database()
    with secured_server(tmp_path, db=db) as secured:
        second = ServerProcess(tmp_path, "--auth", "--db", db)
        try:
            ann = {"x-api-key": secured.keys["ann"]}
            for url in (secured.url, second.url):
                assert ask(url, ann).status_code == 200
            body = {"key_id": secured.keys["ann"].split("_")[1]}
            with secured.http("administrator") as http:
                assert http.post("/tiltyard/v1/key/revoke", json=body).status_code == 200
            wait_for(lambda: ask(second.url, ann).status_code == 401, 5 + SLACK_SECONDS)
            assert "revoked" in refused(ask(second.url, ann))
        finally:
            second.stop()


@pytest.mark.extended
def test_unavailable_database_refuses_all_requests_after_two_seconds(tmp_path: Path, postgres: PostgresServer) -> None:
    db = postgres.new_database()
    with secured_server(tmp_path, db=db) as secured:
        ann = {"x-api-key": secured.keys["ann"]}
        assert ask(secured.url, ann).status_code == 200
        postgres.stop("fast")
        try:
            wait_for(lambda: ask(secured.url, ann).status_code == 503)
            with ThreadPoolExecutor(2) as pool:  # each waits for a connection until it gives up
                responses = list(pool.map(partial(ask, secured.url), (ann, {"x-api-key": secured.keys["bob"]})))
            assert [(response.status_code, check_error(response)) for response in responses] == [(503, 17)] * 2
        finally:
            postgres.start()
        wait_for(lambda: ask(secured.url, ann).status_code == 200)


def test_keys_of_one_catalog_are_unknown_to_another(tmp_path: Path, secured: Secured) -> None:
    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        foreign = create_key(store, wall_clock, "administrator", NewKeyOptions(), administrator=True).text
    refused(ask(secured.url, {"x-api-key": foreign}))
