"""The credentials of a call of Flight: those of HTTP, and the user and password that drivers of Flight SQL have.

A password is an API key, or a token; the user is the name of its principal, or empty. A driver sends them once, in its
handshake, and gets what it has to send in each further call, which the server keeps no state of.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from lance_namespace.errors import UnauthenticatedError

from tiltyard.identity.credentials import API_KEY, AUTHORIZATION, MAX_BYTES
from tiltyard.identity.keys import PREFIX

if TYPE_CHECKING:
    import grpc

Headers = dict[bytes, bytes]

_KEY_BEGINS = f"{PREFIX}_".encode()


def read_headers(context: grpc.aio.ServicerContext) -> Headers:
    """Return the metadata of a call."""
    return {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in context.invocation_metadata() or ()
    }


def normalize_credentials(headers: Headers) -> tuple[Headers, str]:
    """Return headers that have a key or a token as calls of HTTP have them, and the user, if any, who has to own it.

    Raises UnauthenticatedError.
    """
    scheme, _, text = headers.get(AUTHORIZATION, b"").partition(b" ")
    user, secret = "", text.strip()
    if scheme.lower() == b"basic":
        user, secret = _read_basic(secret)
    elif scheme.lower() != b"bearer":
        return headers, ""
    others = {name: value for name, value in headers.items() if name not in (AUTHORIZATION, API_KEY)}
    if secret.startswith(_KEY_BEGINS):
        return {**others, API_KEY: secret}, user
    return {**others, AUTHORIZATION: b"Bearer " + secret}, user


def bearer_token(headers: Headers) -> str | None:
    """Return the header that has the credentials of normalized headers as a bearer token; None where there are none."""
    if API_KEY in headers and AUTHORIZATION not in headers:
        return f"Bearer {headers[API_KEY].decode()}"
    return headers[AUTHORIZATION].decode() if AUTHORIZATION in headers else None


def _read_basic(text: bytes) -> tuple[str, bytes]:
    """Return the user and the password. Raises UnauthenticatedError."""
    try:
        decoded = base64.b64decode(text, validate=True) if len(text) <= 2 * MAX_BYTES else b""
        user, colon, password = decoded.partition(b":")
        name = user.decode()
    except (binascii.Error, UnicodeDecodeError):
        colon, name, password = b"", "", b""
    if not colon or not password.isascii():
        raise UnauthenticatedError("The header Authorization has no user and password: send an API key as password.")
    return name, password
