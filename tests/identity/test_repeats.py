"""Exactly once, where callers are known: a key belongs to a principal, not to what it showed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import httpx

from tests.identity.answers import bearer
from tests.services.openid import OpenIdProvider
from tests.services.secured import Secured


def make_root(secured: Secured) -> None:
    """Let the provider's `root` do everything."""
    with secured.http("administrator") as http:
        made = http.post("/tiltyard/v1/principal/alter", json={"principal": "corp:root", "administrator": True})
    assert made.status_code == 200


def create(secured: Secured, name: str, headers: dict[str, str]) -> httpx.Response:
    url = f"{secured.url}/v1/namespace/{name}/create"
    return httpx.post(url, json={}, headers={"idempotency-key": f"the key for {name}", **headers}, timeout=60)


def test_repeat_with_a_newer_token_gets_the_first_answer(secured: Secured, provider: OpenIdProvider) -> None:
    make_root(secured)
    first = create(secured, "repeated", bearer(provider.token("root")))
    again = create(secured, "repeated", bearer(provider.token("root", groups=["later"])))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["idempotent-replayed"] == "true" and again.json() == first.json()


def test_same_key_of_another_principal_is_another_request(secured: Secured, provider: OpenIdProvider) -> None:
    make_root(secured)
    create(secured, "shared", bearer(provider.token("root")))
    other = create(secured, "shared", {"x-api-key": secured.keys["administrator"]})
    assert other.status_code == 409 and "idempotent-replayed" not in other.headers


def test_create_api_key_with_a_key_keeps_no_secret(secured: Secured) -> None:
    headers = {"idempotency-key": "kept?", "x-api-key": secured.keys["administrator"]}
    url = f"{secured.url}/tiltyard/v1/key/create"
    made = [
        httpx.post(url, json={"principal": "carol"}, headers=headers, timeout=60).json()["api_key"] for _ in range(2)
    ]
    assert made[0] != made[1]
    with closing(sqlite3.connect(f"{secured.server.root}/catalog.db")) as catalog:
        everything = "\n".join(catalog.iterdump())
    assert not any(key.split("_", 2)[2] in everything for key in made)
