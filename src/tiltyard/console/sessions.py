"""Sessions of signed-in people, sealed into a cookie: any process or replica of the catalog opens it.

A cookie holds who signed in and with which API key, encrypted and authenticated (AES-256-GCM) by a secret of the
catalog. Each request checks the key or the principal again, through the authenticator's cache: a revoked key ends its
sessions. A change needs a CSRF token besides, which is bound to the session.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from lance_namespace.errors import PermissionDeniedError

from tiltyard.identity.credentials import SessionIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SECRET_NAME = "console"  # noqa: S105 - the name of a secret, not one
SESSION_MS = 12 * 3_600_000
"""How long a session lasts at most."""
NONCE_BYTES = 12
MAX_SEALED = 4096
"""Characters of a cookie that are looked at: browsers keep no larger ones."""


class BrowserSession(msgspec.Struct, frozen=True):
    """One signed-in browser; `id` is new at each sign-in."""

    id: str
    identity: SessionIdentity


class Seals:
    """Seals values into cookies and opens them; each `purpose` has a key of its own."""

    def __init__(self, secret: bytes, clock: Callable[[], int]) -> None:
        """`secret` is shared by all processes of the catalog; `clock` gives ms since 1970."""
        self._secret = secret
        self._clock = clock
        self.catalog = hashlib.sha256(b"tiltyard console catalog\0" + secret).hexdigest()[:8]
        """Tells this catalog's cookies from those of others on the same host."""

    def seal(self, purpose: str, value: msgspec.Struct) -> str:
        """Return a value as text for a cookie."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher(purpose).encrypt(nonce, msgspec.json.encode(value), purpose.encode())
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def open(self, purpose: str, text: str, kind: type[T]) -> T | None:
        """Return the value that was sealed; None for a text that was not sealed here for this purpose."""
        if not text or len(text) > MAX_SEALED:
            return None
        try:
            data = base64.b64decode(text, b"-_", validate=True)
            plain = self._cipher(purpose).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], purpose.encode())
            return msgspec.json.decode(plain, type=kind)
        except (binascii.Error, InvalidTag, ValueError, msgspec.MsgspecError):
            return None

    def start_session(self, identity: SessionIdentity) -> BrowserSession:
        """Return a new session, which ends with its identity, or after `SESSION_MS`."""
        ends_at = min(identity.expires_at, self._clock() + SESSION_MS)
        return BrowserSession(secrets.token_urlsafe(16), msgspec.structs.replace(identity, expires_at=ends_at))

    def csrf_token(self, session: BrowserSession | None) -> str:
        """Return the token that changes of a session carry; without a session that of all visitors."""
        name = session.id if session is not None else ""
        return hmac.new(self._key("csrf"), name.encode(), hashlib.sha256).hexdigest()

    def check_csrf(self, session: BrowserSession | None, token: str) -> None:
        """Raise PermissionDeniedError for a change that does not carry its session's token."""
        if not hmac.compare_digest(self.csrf_token(session).encode(), token.encode()):
            raise PermissionDeniedError("This form is of another session: load its page again, and send it from there.")

    def _cipher(self, purpose: str) -> AESGCM:
        return AESGCM(self._key(purpose))

    def _key(self, purpose: str) -> bytes:
        return hmac.new(self._secret, b"tiltyard console 1\0" + purpose.encode(), hashlib.sha256).digest()
