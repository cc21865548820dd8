"""Tokens of a trusted OpenID provider: which are accepted, and attacks that are refused."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from tests.identity.responses import ask, bearer, refused, wait_for
from tests.services.openid import OpenIdProvider, openid_provider
from tests.services.secured import Secured, secured_server
from tests.services.wire import check_error

DAY = 86_400
"""Longer than from where the tests are collected to where they run."""


def part(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def test_token_of_the_provider_is_accepted(secured: Secured, provider: OpenIdProvider) -> None:
    assert ask(secured.url, bearer(provider.token("ann"))).status_code == 200
    assert ask(secured.url, {"authorization": f"bearer {provider.token('ann', groups=['eng'])}"}).status_code == 200


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"exp": int(time.time()) - DAY}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": float("nan")}, "read"),
        ({"exp": "tomorrow"}, "exp"),
        ({"nbf": int(time.time()) + DAY}, "not yet valid"),
        ({"iat": int(time.time()) + DAY}, "future"),
        ({"aud": "another service"}, "aud"),
        ({"aud": None}, "aud"),
        ({"sub": None}, "has no name"),
        ({"sub": ""}, "invalid name"),
        ({"sub": "a\0b"}, "invalid name"),
        ({"sub": ["ann"]}, "sub"),
        ({"groups": {"eng": 1}}, "groups"),
        ({"groups": [1]}, "not a string"),
    ],
)
def test_token_with_an_invalid_claim_is_refused(
    secured: Secured, provider: OpenIdProvider, changed: dict[str, Any], says: str
) -> None:
    assert says in refused(ask(secured.url, bearer(provider.token("ann", **changed))))


def test_token_within_the_clock_skew_is_accepted(secured: Secured, provider: OpenIdProvider) -> None:
    now = int(time.time())
    for changed in ({"exp": now - 5}, {"nbf": now + 20, "iat": now + 20}):
        assert ask(secured.url, bearer(provider.token("ann", **changed))).status_code == 200


def test_token_for_several_audiences_with_ours_among_them_is_accepted(
    secured: Secured, provider: OpenIdProvider
) -> None:
    token = provider.token("ann", aud=["another", provider.settings["audience"]])
    assert ask(secured.url, bearer(token)).status_code == 200


def test_token_with_alg_none_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    for name in ("none", "None", "NONE"):
        for header in ({"alg": name}, {"alg": name, "kid": provider.keys[0].kid}):
            for signature in ("", "AAAA"):
                token = f"{part(header)}.{part(provider.claims('ann'))}.{signature}"
                refused(ask(secured.url, bearer(token)))


def test_token_signed_by_hmac_with_the_public_key_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    """Key confusion: who takes the header's word for the algorithm verifies with the public key as a secret."""
    public = provider.keys[0].as_pem(private=False)
    as_json = json.dumps(provider.keys[0].as_dict(private=False)).encode()
    for secret in (public, public.strip(), as_json):
        for kid in (provider.keys[0].kid, None):
            header = {"alg": "HS256", **({"kid": kid} if kid else {})}
            signed = f"{part(header)}.{part(provider.claims('ann'))}"
            mac = hmac.digest(secret, signed.encode(), "sha256")
            token = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
            refused(ask(secured.url, bearer(token)))


def test_token_of_a_foreign_issuer_is_refused(secured: Secured) -> None:
    """CVE-2026-27478: the token's own issuer must not say where its keys are."""
    with openid_provider() as foreign:
        assert "issuer of this token" in refused(ask(secured.url, bearer(foreign.token("ann"))))
        assert foreign.fetches == 0


def test_token_of_a_foreign_provider_that_names_our_issuer_is_refused(
    secured: Secured, provider: OpenIdProvider
) -> None:
    with openid_provider() as foreign:
        for header in ({}, {"kid": provider.keys[0].kid}):
            refused(ask(secured.url, bearer(foreign.token("ann", header, iss=provider.url))))


@pytest.mark.parametrize("slash", ["/", "/../", "%2f"])
def test_token_of_an_issuer_that_looks_like_ours_is_refused(
    secured: Secured, provider: OpenIdProvider, slash: str
) -> None:
    assert "issuer of this token" in refused(ask(secured.url, bearer(provider.token("ann", iss=provider.url + slash))))


def test_token_that_names_its_own_keys_is_refused_and_nothing_is_fetched(
    secured: Secured, provider: OpenIdProvider
) -> None:
    with openid_provider() as foreign:
        foreign_key = foreign.keys[0]
        for header in (
            {"jku": foreign.jwks_url},
            {"x5u": foreign.jwks_url},
            {"jku": foreign.jwks_url, "kid": provider.keys[0].kid},
            {"jwk": foreign_key.as_dict(private=False), "kid": provider.keys[0].kid},
        ):
            token_header = {"alg": "RS256", "kid": foreign_key.kid, **header}
            token = jwt.encode(token_header, provider.claims("ann"), foreign_key, algorithms=["RS256"])
            refused(ask(secured.url, bearer(token)))
        assert foreign.fetches == 0


def test_token_with_an_unknown_critical_header_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    token_header = {"alg": "RS256", "kid": provider.keys[0].kid, "crit": ["proof"], "proof": "of possession"}
    anything = JWSRegistry({"proof": _any_parameter()}, ["RS256"])
    token = jwt.encode(token_header, provider.claims("ann"), provider.keys[0], registry=anything)
    refused(ask(secured.url, bearer(token)))


def test_token_that_was_cut_or_changed_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    token = provider.token("ann")
    head, _, signature = token.split(".")
    other_payload = provider.token("ann", groups=["administrators"]).split(".")[1]
    for broken in (
        token[:-1],
        token[:-20],
        token[1:],
        f"{head}.{other_payload}.{signature}",
        f"{head}..{signature}",
        f"{head}.{other_payload}.",
        f"{head}.{other_payload}",
        f"{token}.{signature}",
        f"{token}.",
        "a.b.c",
        "..",
        "{}",
        "x" * 20_000,
    ):
        refused(ask(secured.url, bearer(broken)))


def test_token_that_is_replayed_after_its_end_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    """A cached token is refused once it has expired; the leeway is 30 seconds."""
    token = provider.token("ann", exp=int(time.time()) - 24)
    assert ask(secured.url, bearer(token)).status_code == 200
    wait_for(lambda: ask(secured.url, bearer(token)).status_code != 200)
    assert "expired" in refused(ask(secured.url, bearer(token)))


def test_token_with_an_algorithm_that_is_not_the_keys_is_refused(secured: Secured, provider: OpenIdProvider) -> None:
    for algorithm in ("RS512", "PS256"):
        token_header = {"alg": algorithm, "kid": provider.keys[0].kid}
        token = jwt.encode(token_header, provider.claims("ann"), provider.keys[0], algorithms=[algorithm])
        refused(ask(secured.url, bearer(token)))
    key = RSAKey.generate_key(2048)
    for signing_key in (key, ECKey.generate_key("P-256")):
        algorithm = "RS256" if signing_key is key else "ES256"
        token_header = {"alg": algorithm, "kid": provider.keys[0].kid}
        refused(
            ask(
                secured.url,
                bearer(jwt.encode(token_header, provider.claims("ann"), signing_key, algorithms=[algorithm])),
            )
        )
    token = jwt.encode({"alg": "RS256"}, provider.claims("ann"), key, algorithms=["RS256"])
    refused(ask(secured.url, bearer(token)))


def test_authorization_of_another_scheme_is_refused(secured: Secured) -> None:
    for text in ("Basic YTpi", "Bearer", "", "Digest x"):
        assert "Bearer <token>" in refused(ask(secured.url, {"authorization": text}))


def test_keys_rotated_under_load_lose_no_request(tmp_path: Path) -> None:
    """Twice the provider signs with a new key, and publishes the last one for as long as its tokens live."""
    with openid_provider() as provider:
        environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": provider.settings})}
        with secured_server(tmp_path, environ=environ) as secured, ThreadPoolExecutor(4) as pool:
            done = threading.Event()
            calls: list[tuple[int, int, int]] = []

            def call(number: int) -> None:
                while not done.is_set():
                    rotations = provider.rotations
                    response = ask(secured.url, bearer(provider.token(f"user-{number}")))
                    calls.append((number, rotations, response.status_code))

            def all_use(rotations: int) -> bool:
                """Nobody is still on the way with a token of the key before."""
                calls_since = [number for number, then, _ in list(calls) if then == rotations]
                return all(calls_since.count(number) >= 5 for number in range(4))

            running = [pool.submit(call, number) for number in range(4)]
            for rotations, kind in enumerate(("EC", "RSA", "RSA"), 1):
                wait_for(lambda: all_use(rotations))  # noqa: B023 - called at once
                if rotations < 3:
                    provider.rotate(kind, keep=1)
            done.set()
            for future in running:
                future.result()
            assert {status for _, _, status in calls} == {200}
            assert provider.fetches == 3


def test_keys_named_by_unauthenticated_callers_are_fetched_a_few_times_a_minute(tmp_path: Path) -> None:
    with openid_provider() as provider, openid_provider() as foreign:
        environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": provider.settings})}
        with secured_server(tmp_path, environ=environ) as secured:
            for number in range(20):
                refused(ask(secured.url, bearer(foreign.token("ann", {"kid": f"k{number}"}, iss=provider.url))))
            assert ask(secured.url, bearer(provider.token("ann"))).status_code == 200
            assert provider.fetches == 5


def test_unavailable_provider_refuses_only_its_own_tokens(tmp_path: Path) -> None:
    with openid_provider() as provider:
        provider.away = True
        environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": provider.settings})}
        with secured_server(tmp_path, environ=environ) as secured:
            response = ask(secured.url, bearer(provider.token("ann")))
            assert response.status_code == 503 and check_error(response) == 17
            assert ask(secured.url, {"x-api-key": secured.keys["ann"]}).status_code == 200


def _any_parameter() -> Any:
    from joserfc.registry import HeaderParameter

    return HeaderParameter("anything", "str")
