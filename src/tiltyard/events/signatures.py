"""Signatures of webhooks, in the way of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over the id,
the time and the body of a message.

`verify` is for receivers in Python: `from tiltyard.events.signatures import verify`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""The headers of a message."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
MIN_SECRET_BYTES = 24
"""As Standard Webhooks asks for."""
TOLERANCE_SECONDS = 300
"""How old a message may be, and how far ahead its sender's clock: else anybody could send a recorded one again."""
_VERSION = "v1"


class WrongSignatureError(Exception):
    """A message that was not signed with the secret, or too long ago."""


def read_signing_secret(text: str) -> bytes:
    """Return the key of a secret: `whsec_` and its bytes in Base64. Raises ValueError for any other text."""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("a signing secret is whsec_ and bytes in Base64") from error
    if not text.startswith(SECRET_PREFIX) or len(key) < MIN_SECRET_BYTES:
        raise ValueError(f"a signing secret is whsec_ and at least {MIN_SECRET_BYTES} bytes in Base64")
    return key


def sign(key: bytes, id_: str, at: int, body: bytes) -> str:
    """Return the signature of a message; `at` is in seconds since 1970."""
    digest = hmac.new(key, b"%s.%d.%s" % (id_.encode(), at, body), hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(digest).decode()}"


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str:
    """Check a message that was received, and return its id. Raises WrongSignatureError, ValueError for a bad secret.

    `headers` are those of the request by name, in lower case.
    """
    key = read_signing_secret(secret)
    id_, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not id_ or not timestamp.isascii() or not timestamp.isdigit():
        raise WrongSignatureError("the message has no id, or no time")
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        raise WrongSignatureError("the message is too old, or of the future")
    expected = sign(key, id_, int(timestamp), body)
    if not any(hmac.compare_digest(expected, each) for each in headers.get(SIGNATURE, "").split(" ")):
        raise WrongSignatureError("the message has no signature by this secret")
    return id_
