"""Credentials in headers and bodies; their secret is in no text made of them."""

from __future__ import annotations

import msgspec
import pytest

from tiltyard.identity.credentials import CredentialKind, Credentials, from_body, from_headers

SECRET = "hush-0123456789"


def same_secret_everywhere() -> list[Credentials]:
    """Return the credentials read from each place of a request, all with the same secret."""
    body = {"identity": {"api_key": SECRET}}
    token = {"identity": {"api_key": "other", "auth_token": SECRET}}
    places = [
        from_headers({b"x-api-key": SECRET.encode()}),
        from_headers({b"authorization": f"Bearer {SECRET}".encode(), b"x-api-key": b"other"}),
        from_body(msgspec.json.encode(body)),
        from_body(msgspec.json.encode(token)),
    ]
    return [credentials for credentials in places if credentials is not None]


def test_same_secret_gives_equal_credentials_from_headers_and_body() -> None:
    key, token, key_in_body, token_in_body = same_secret_everywhere()
    assert (key, token) == (key_in_body, token_in_body)
    assert [key.kind, token.kind] == [CredentialKind.KEY, CredentialKind.TOKEN]
    assert key.digest != token.digest


@pytest.mark.parametrize("to_text", [repr, str, "{}".format, "{!r}".format, lambda credentials: f"{[credentials]}"])
def test_text_of_credentials_has_no_secret(to_text: object) -> None:
    assert callable(to_text)
    for credentials in same_secret_everywhere():
        text = to_text(credentials)
        assert SECRET not in text
        assert repr(credentials.digest) not in text
