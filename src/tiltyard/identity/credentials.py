"""What a caller shows of itself: an API key or a token, in headers or in a body."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec
from lance_namespace.errors import UnauthenticatedError

AUTHORIZATION = b"authorization"
API_KEY = b"x-api-key"
LONGEST = 16 << 10
"""Bytes of a credential: tokens with many groups have a few thousand."""


class Kind(StrEnum):
    """What was shown."""

    KEY = "api key"
    TOKEN = "token"  # noqa: S105 - the name of a kind, no secret


_MARKS = {kind: kind.encode() + b"\0" for kind in Kind}


class Credentials(msgspec.Struct, frozen=True):
    """A key or a token, not looked at yet. `digest` stands for it in memory, so that no secret is kept there.

    What is printed of it, as in a log line, shows neither.
    """

    kind: Kind
    text: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.kind})"

    @classmethod
    def of(cls, kind: Kind, text: bytes) -> Credentials:
        """Make them. Raises UnauthenticatedError for what is too long to be any."""
        if len(text) > LONGEST:
            raise UnauthenticatedError(f"The {kind} has more than {LONGEST} bytes.")
        return cls(kind, text, hashlib.sha256(_MARKS[kind] + text).digest())


class _Identity(msgspec.Struct):
    api_key: str | None = None
    auth_token: str | None = None


class _Identified(msgspec.Struct):
    identity: _Identity | None = None


_body = msgspec.json.Decoder(_Identified)


def from_headers(headers: Mapping[bytes, bytes]) -> Credentials | None:
    """What the headers show (names in lower case); None without any.

    A token wins over a key, since lancedb sends some key always. Raises UnauthenticatedError for another scheme.
    """
    authorization = headers.get(AUTHORIZATION)
    if authorization is not None:
        scheme, _, text = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not text.strip():
            raise UnauthenticatedError("The header Authorization is not 'Bearer <token>': send a token, or x-api-key.")
        return Credentials.of(Kind.TOKEN, text.strip())
    key = headers.get(API_KEY)
    return None if key is None else Credentials.of(Kind.KEY, key)


def from_body(body: bytes) -> Credentials | None:
    """What the field `identity` of a JSON body shows; None without any, or if it is no such body."""
    try:
        identity = _body.decode(body).identity if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if identity is None:
        return None
    if identity.auth_token is not None:
        return Credentials.of(Kind.TOKEN, identity.auth_token.encode())
    return None if identity.api_key is None else Credentials.of(Kind.KEY, identity.api_key.encode())
