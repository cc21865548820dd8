"""Credentials: where a request has them, and that nobody reads them anywhere else."""

from __future__ import annotations

import msgspec
import pytest

from tiltyard.identity.credentials import Credentials, Kind, from_body, from_headers

SECRET = "hush-0123456789"


def found() -> list[Credentials]:
    """The same secret in each place that a request may have it."""
    body = {"identity": {"api_key": SECRET}}
    token = {"identity": {"api_key": "other", "auth_token": SECRET}}
    places = [
        from_headers({b"x-api-key": SECRET.encode()}),
        from_headers({b"authorization": f"Bearer {SECRET}".encode(), b"x-api-key": b"other"}),
        from_body(msgspec.json.encode(body)),
        from_body(msgspec.json.encode(token)),
    ]
    return [credentials for credentials in places if credentials is not None]


def test_same_secret_is_the_same_wherever_it_is() -> None:
    key, token, key_in_body, token_in_body = found()
    assert (key, token) == (key_in_body, token_in_body)
    assert [key.kind, token.kind] == [Kind.KEY, Kind.TOKEN]
    assert key.digest != token.digest


@pytest.mark.parametrize("shown", [repr, str, "{}".format, "{!r}".format, lambda one: f"{[one]}"])
def test_what_is_printed_shows_no_secret(shown: object) -> None:
    assert callable(shown)
    for credentials in found():
        text = shown(credentials)
        assert SECRET not in text
        assert repr(credentials.digest) not in text
