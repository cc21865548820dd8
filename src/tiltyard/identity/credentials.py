"""Credentials of a request: an API key or a token, in its headers or in its body."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec
from lance_namespace.errors import UnauthenticatedError

from tiltyard.identity.keys import PREFIX

AUTHORIZATION = b"authorization"
API_KEY = b"x-api-key"
MAX_BYTES = 16 << 10
"""Largest credential: tokens with many groups have a few thousand bytes."""


class CredentialKind(StrEnum):
    """What the credentials are."""

    KEY = "api key"
    TOKEN = "token"  # noqa: S105 - the name of a kind, not a secret
    SESSION = "session"
    """A `SessionIdentity` that was unsealed from a cookie: no request can bring one otherwise."""


_KEY_BEGINS = f"{PREFIX}_".encode()
_DIGEST_PREFIXES = {kind: kind.encode() + b"\0" for kind in CredentialKind}


class Credentials(msgspec.Struct, frozen=True):
    """A key or a token, not verified yet. `digest` identifies it in caches, so that these hold no secret.

    Its repr, as in a log line, shows neither.
    """

    kind: CredentialKind
    text: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.kind})"

    @classmethod
    def of(cls, kind: CredentialKind, text: bytes) -> Credentials:
        """Create them from the text of a key or token. Raises UnauthenticatedError if that is too long."""
        if len(text) > MAX_BYTES:
            raise UnauthenticatedError(f"The {kind} has more than {MAX_BYTES} bytes.")
        return cls(kind, text, hashlib.sha256(_DIGEST_PREFIXES[kind] + text).digest())


class SessionIdentity(msgspec.Struct, frozen=True):
    """Who signed in to a session: verified then, and checked again by each request.

    `key_id` is the API key that the session ends with, None for one of an OpenID provider, whose token had `groups`;
    `expires_at` is in ms since 1970.
    """

    name: str
    groups: tuple[str, ...]
    key_id: str | None
    expires_at: int

    def credentials(self) -> Credentials:
        """Return the credentials of a request of this session."""
        return Credentials.of(CredentialKind.SESSION, msgspec.json.encode(self))


class _Identity(msgspec.Struct):
    api_key: str | None = None
    auth_token: str | None = None


class _IdentityBody(msgspec.Struct):
    identity: _Identity | None = None


_body_decoder = msgspec.json.Decoder(_IdentityBody)


def from_headers(headers: Mapping[bytes, bytes]) -> Credentials | None:
    """Return the credentials in headers (names in lower case); None without any.

    `Authorization: Bearer` has a token or a key, by how it begins: what scrapes metrics sends no other header. It takes
    precedence over `x-api-key`, since lancedb always sends some key. Raises UnauthenticatedError for another scheme.
    """
    authorization = headers.get(AUTHORIZATION)
    if authorization is not None:
        scheme, _, text = authorization.partition(b" ")
        secret = text.strip()
        if scheme.lower() != b"bearer" or not secret:
            raise UnauthenticatedError("The header Authorization is not 'Bearer <token>': send a token or an API key.")
        kind = CredentialKind.KEY if secret.startswith(_KEY_BEGINS) else CredentialKind.TOKEN
        return Credentials.of(kind, secret)
    key = headers.get(API_KEY)
    return None if key is None else Credentials.of(CredentialKind.KEY, key)


def from_body(body: bytes) -> Credentials | None:
    """Return the credentials in the field `identity` of a JSON body; None without any, or if the body is not JSON."""
    try:
        identity = _body_decoder.decode(body).identity if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if identity is None:
        return None
    if identity.auth_token is not None:
        return Credentials.of(CredentialKind.TOKEN, identity.auth_token.encode())
    return None if identity.api_key is None else Credentials.of(CredentialKind.KEY, identity.api_key.encode())
