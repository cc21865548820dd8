"""Idempotency keys with authentication: a key belongs to a principal, not to its credentials."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.identity.responses import bearer
from tests.services.openid import OpenIdProvider
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream


def make_root(secured: Secured) -> None:
    """Let the provider's `root` do everything."""
    with secured.http("administrator") as http:
        response = http.post("/tiltyard/v1/principal/alter", json={"principal": "corp:root", "administrator": True})
    assert response.status_code == 200


def create(secured: Secured, name: str, headers: dict[str, str]) -> httpx.Response:
    url = f"{secured.url}/v1/namespace/{name}/create"
    return httpx.post(url, json={}, headers={"idempotency-key": f"the key for {name}", **headers}, timeout=60)


def test_repeat_with_a_newer_token_gets_the_first_response(secured: Secured, provider: OpenIdProvider) -> None:
    make_root(secured)
    first = create(secured, "repeated", bearer(provider.token("root")))
    repeated = create(secured, "repeated", bearer(provider.token("root", groups=["later"])))
    assert (first.status_code, repeated.status_code) == (200, 200)
    assert repeated.headers["idempotent-replayed"] == "true" and repeated.json() == first.json()


def test_same_key_of_another_principal_is_another_request(secured: Secured, provider: OpenIdProvider) -> None:
    make_root(secured)
    create(secured, "shared", bearer(provider.token("root")))
    second = create(secured, "shared", {"x-api-key": secured.keys["administrator"]})
    assert second.status_code == 409 and "idempotent-replayed" not in second.headers


def test_insert_of_a_disconnected_client_is_not_repeated_by_another_principal(tmp_path: Path) -> None:
    """lancedb's inserts are identified by their bodies: of two principals, neither gets the other's response."""
    body, kind = stream(pa.table({"id": [1, 2]})), {"content-type": "application/vnd.apache.arrow.stream"}
    hold = tmp_path / "held"
    with secured_server(tmp_path / "data", environ={"TILTYARD_FAULT": f"before_answer=hold@{hold}"}) as secured:
        url = f"{secured.url}/v1/table/told"

        def insert(principal: str, request: str, timeout: float = 60) -> httpx.Response:
            headers = {"x-request-id": request, "x-lancedb-database": "db", "x-api-key": secured.keys[principal]}
            return httpx.post(f"{url}/insert/", content=body, headers=headers | kind, timeout=timeout)

        with secured.http("administrator") as http:
            assert http.post(f"{url}/create", content=body, headers=kind).status_code == 200
            hold.touch()
            with pytest.raises(httpx.ReadTimeout):
                insert("administrator", "first", timeout=0.5)
            hold.unlink()
            refused = insert("bob", "of one who may not")
            assert refused.status_code == 404, refused.text
            repeated = insert("administrator", "second")
            assert (repeated.json()["version"], repeated.headers["idempotent-replayed"]) == (2, "true")
            assert http.post(f"{url}/count_rows", json={}).json() == 4


def test_create_api_key_with_an_idempotency_key_stores_no_secret(secured: Secured) -> None:
    headers = {"idempotency-key": "kept?", "x-api-key": secured.keys["administrator"]}
    url = f"{secured.url}/tiltyard/v1/key/create"
    responses = [
        httpx.post(url, json={"principal": "carol"}, headers=headers, timeout=60).json()["api_key"] for _ in range(2)
    ]
    assert responses[0] != responses[1]
    with closing(sqlite3.connect(f"{secured.server.root}/catalog.db")) as catalog:
        everything = "\n".join(catalog.iterdump())
    assert not any(key.split("_", 2)[2] in everything for key in responses)
