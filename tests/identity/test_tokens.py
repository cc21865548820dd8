"""POST /oauth/token: who gets a token, what it authenticates, and when it expires."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from tests.identity.responses import ask, bearer, refused, wait_for
from tests.services.postgres import PostgresServer
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess
from tiltyard.store import open_store

GRANT = {"grant_type": "client_credentials"}


def request_token(url: str, client_id: str, secret: str) -> httpx.Response:
    return httpx.post(f"{url}/oauth/token", data={**GRANT, "client_id": client_id, "client_secret": secret}, timeout=60)


def token_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["token_type"] == "Bearer" and body["expires_in"] == 900
    assert response.headers["cache-control"] == "no-store"
    token: str = body["access_token"]
    return token


def check_refusal(response: httpx.Response, status: int, error: str) -> None:
    body = response.json()
    assert (response.status_code, body["error"]) == (status, error), body
    assert body["error_description"] and body["code"] and body["instance"] == response.headers["x-request-id"]


def unsigned(token: str, part: int) -> dict[str, object]:
    text = token.split(".")[part]
    decoded: dict[str, object] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return decoded


def test_token_requested_by_form_or_by_basic_is_accepted(secured: Secured) -> None:
    key = secured.keys["ann"]
    by_form = request_token(secured.url, "ann", key)
    by_id = request_token(secured.url, key.split("_")[1], key)
    by_basic = httpx.post(f"{secured.url}/oauth/token", data=GRANT, auth=("ann", key), timeout=60)
    for response in (by_form, by_id, by_basic):
        assert ask(secured.url, bearer(token_of(response))).status_code == 200


def test_token_is_of_its_principal(secured: Secured) -> None:
    for name, status in (("ann", 403), ("administrator", 200)):
        token = token_of(request_token(secured.url, name, secured.keys[name]))
        response = httpx.post(f"{secured.url}/tiltyard/v1/principal/list", json={}, headers=bearer(token), timeout=60)
        assert response.status_code == status


def test_token_for_a_client_whose_name_needs_encoding(secured: Secured) -> None:
    with secured.http("administrator") as http:
        created = http.post("/tiltyard/v1/key/create", json={"principal": "zoë & the + %41"})
    assert created.status_code == 200
    name, key = "zoë & the + %41", created.json()["api_key"]
    encoded = base64.b64encode(f"{quote(name, safe='')}:{key}".encode()).decode()
    response = httpx.post(
        f"{secured.url}/oauth/token", data=GRANT, headers={"authorization": f"Basic {encoded}"}, timeout=60
    )
    token_of(response)
    token_of(request_token(secured.url, name, key))


def test_token_request_by_another_grant_is_refused(secured: Secured) -> None:
    credentials = {"client_id": "ann", "client_secret": secured.keys["ann"]}
    for grant in ("password", "authorization_code", "refresh_token", "CLIENT_CREDENTIALS", "x"):
        response = httpx.post(f"{secured.url}/oauth/token", data={"grant_type": grant, **credentials}, timeout=60)
        check_refusal(response, 400, "unsupported_grant_type")


def test_token_request_of_an_unknown_client_is_refused(secured: Secured) -> None:
    for client, secret in (("ann", secured.keys["bob"]), ("ann", "none"), ("", secured.keys["ann"]), ("ann", "")):
        response = request_token(secured.url, client, secret)
        check_refusal(response, 401, "invalid_client")
        assert response.headers["www-authenticate"].startswith("Basic ")
    url = f"{secured.url}/oauth/token"
    for authorization in ("Basic", "Basic !", "Basic YW5u", f"Bearer {secured.keys['ann']}"):
        check_refusal(
            httpx.post(url, data=GRANT, headers={"authorization": authorization}, timeout=60), 401, "invalid_client"
        )


def test_token_request_that_is_not_a_form_is_refused(secured: Secured) -> None:
    url, credentials = f"{secured.url}/oauth/token", {"client_id": "ann", "client_secret": secured.keys["ann"]}
    check_refusal(httpx.post(url, json={**GRANT, **credentials}, timeout=60), 400, "invalid_request")
    check_refusal(httpx.post(url, data=credentials, timeout=60), 400, "invalid_request")
    check_refusal(httpx.post(url, timeout=60), 400, "invalid_request")
    form = {"content-type": "application/x-www-form-urlencoded"}
    for body in (b"grant_type=client_credentials&grant_type=client_credentials", b"grant_type=%ff", b"\xff=\xff"):
        check_refusal(httpx.post(url, content=body, headers=form, timeout=60), 400, "invalid_request")
    twice = httpx.post(url, data={**GRANT, **credentials}, auth=("ann", secured.keys["ann"]), timeout=60)
    check_refusal(twice, 400, "invalid_request")
    assert httpx.get(url, timeout=60).status_code == 405
    assert httpx.post(url, content=b"x" * 70_000, headers=form, timeout=60).status_code == 413


def test_token_that_was_cut_or_changed_is_refused(secured: Secured) -> None:
    token = token_of(request_token(secured.url, "ann", secured.keys["ann"]))
    head, claims, signature = token.split(".")
    as_other = base64.urlsafe_b64encode(json.dumps({**unsigned(token, 1), "sub": "administrator"}).encode())
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": unsigned(token, 0)["kid"]}).encode())
    for broken in (
        token[:-2],
        f"{head}.{claims}.",
        f"{head}.{as_other.rstrip(b'=').decode()}.{signature}",
        f"{none.rstrip(b'=').decode()}.{claims}.",
        f"{none.rstrip(b'=').decode()}.{claims}.{signature}",
    ):
        refused(ask(secured.url, bearer(broken)))


def test_token_signed_by_another_catalog_or_by_no_key_is_refused(secured: Secured) -> None:
    token = token_of(request_token(secured.url, "ann", secured.keys["ann"]))
    header, claims = unsigned(token, 0), unsigned(token, 1)
    for secret, kid in ((b"x" * 32, header["kid"]), (b"x" * 32, "another"), (b"tiltyard" * 4, header["kid"])):
        forged = jwt.encode({"alg": "HS256", "kid": kid}, claims, OctKey.import_key(secret), algorithms=["HS256"])
        refused(ask(secured.url, bearer(forged)))


def test_token_expires_with_the_key_that_it_was_issued_for(secured: Secured) -> None:
    with secured.http("administrator") as http:
        key = http.post("/tiltyard/v1/key/create", json={"principal": "judy"}).json()["api_key"]
        token = token_of(request_token(secured.url, "judy", key))
        assert ask(secured.url, bearer(token)).status_code == 200
        assert http.post("/tiltyard/v1/key/revoke", json={"key_id": key.split("_")[1]}).status_code == 200
    wait_for(lambda: ask(secured.url, bearer(token)).status_code == 401)
    assert "revoked" in refused(ask(secured.url, bearer(token)))
    check_refusal(request_token(secured.url, "judy", key), 401, "invalid_client")


def test_token_of_one_replica_is_accepted_by_the_other_until_all_are_revoked(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    db = postgres.new_database()
    with secured_server(tmp_path, db=db) as secured:
        second = ServerProcess(tmp_path, "--auth", "--db", db)
        try:
            tokens = [token_of(request_token(url, "ann", secured.keys["ann"])) for url in (secured.url, second.url)]
            for url in (secured.url, second.url):
                for token in tokens:
                    assert ask(url, bearer(token)).status_code == 200
            with open_store(db) as store:
                store.delete_signing_keys()
            for url in (secured.url, second.url):
                for token in tokens:
                    wait_for(lambda: ask(url, bearer(token)).status_code == 401)  # noqa: B023 - called at once
            token = token_of(request_token(second.url, "ann", secured.keys["ann"]))
            assert ask(secured.url, bearer(token)).status_code == 200
        finally:
            second.stop()


def test_token_expires_after_its_lifetime(tmp_path: Path) -> None:
    """With a life of a minute at least, and half a minute of skew, the clock is what a test has to move."""
    from tiltyard.identity.tokens import ServerTokens

    now = int(time.time() * 1000)
    with open_store(f"sqlite:///{tmp_path}/catalog.db", clock=lambda: now) as store:
        tokens = ServerTokens(store, lambda: now, 60)
        text = tokens.issue("ann", "key").encode()
        kid = str(unsigned(text.decode(), 0)["kid"])
        assert tokens.verify(text, kid).principal == "ann"
        now += 89_000
        assert tokens.verify(text, kid).principal == "ann"
        now += 2_000
        with pytest.raises(Exception, match="expired"):
            tokens.verify(text, kid)


def test_signing_keys_rotate_after_a_day_and_verify_for_as_long_as_their_tokens_live(tmp_path: Path) -> None:
    from tiltyard.identity.tokens import SIGNING_MS, ServerTokens

    now = int(time.time() * 1000)
    with open_store(f"sqlite:///{tmp_path}/catalog.db", clock=lambda: now) as store:
        tokens = ServerTokens(store, lambda: now, 900)
        now += SIGNING_MS - 1
        first = tokens.issue("ann", "key")
        now += 10
        last = tokens.issue("ann", "key")
        kids = [str(unsigned(token, 0)["kid"]) for token in (first, last)]
        assert kids[0] == kids[1]  # made by the first issue, so it signs for a day from there
        now += SIGNING_MS
        newer = tokens.issue("ann", "key")
        assert unsigned(newer, 0)["kid"] != kids[0]
        with pytest.raises(Exception, match="expired"):
            tokens.verify(first.encode(), kids[0])
