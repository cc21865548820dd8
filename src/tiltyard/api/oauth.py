"""POST /oauth/token: issue a short-lived token for an API key (OAuth 2, RFC 6749, client credentials alone).

The client's id is its principal's name or the id of the key, its secret is the key. Errors have OAuth's fields and
those of this server's errors.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

import msgspec
from lance_namespace.errors import ErrorCode, UnauthenticatedError

from tiltyard.api.binding import Headers
from tiltyard.api.bodies.uploads import Receive, read_body
from tiltyard.api.errors import HttpError
from tiltyard.identity import Authenticator

PATH = b"/oauth/token"
OPERATION = "IssueToken"
"""The operation's name in the audit and the metrics: the specification has none."""
GRANT = "client_credentials"
MAX_BODY_BYTES = 64 << 10
FORM = b"application/x-www-form-urlencoded"
BASIC_CHALLENGE = ((b"www-authenticate", b'Basic realm="tiltyard", charset="UTF-8"'),)


class TokenResponse(NamedTuple):
    """The response of the endpoint."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """The credentials of a client."""

    id: str
    secret: str


class TokenRefusedError(Exception):
    """No token is issued; `word` is an error code of RFC 6749."""

    def __init__(self, word: str, description: str) -> None:
        super().__init__(description)
        self.word = word


class TokenEndpoint:
    """Issues tokens; keys are looked up in the threads of `pool`."""

    def __init__(self, authenticator: Authenticator, pool: Executor) -> None:
        self._authenticator = authenticator
        self._pool = pool

    async def issue(self, method: str, headers: Headers, receive: Receive, request_id: str) -> TokenResponse:
        """Return the response to a request for a token. Raises ServiceUnavailableError, HttpError 405 and 413."""
        if method != "POST":
            raise HttpError(405, ErrorCode.UNSUPPORTED, "Request tokens by POST.", ((b"allow", b"POST"),))
        body = await read_body(receive, MAX_BODY_BYTES)
        try:
            client = _client(headers, _form(headers, body))
            loop = asyncio.get_running_loop()
            token = await loop.run_in_executor(self._pool, self._authenticator.issue_token, client.id, client.secret)
        except TokenRefusedError as error:
            return TokenResponse(400, _error(error.word, str(error), ErrorCode.INVALID_INPUT, request_id))
        except UnauthenticatedError as error:
            body = _error("invalid_client", str(error), error.code, request_id)
            return TokenResponse(401, body, BASIC_CHALLENGE)
        life = self._authenticator.tokens.lifetime_seconds
        return TokenResponse(
            200, msgspec.json.encode({"access_token": token, "token_type": "Bearer", "expires_in": life})
        )


def _form(headers: Headers, body: bytes) -> Mapping[str, str]:
    """Return the fields of the form. Raises TokenRefusedError, also for a field that is given twice."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != FORM:
        raise TokenRefusedError("invalid_request", f"Send the fields as {FORM.decode()}.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise TokenRefusedError("invalid_request", "The form cannot be read.") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise TokenRefusedError("invalid_request", "A field is given twice.")
    if not fields.get("grant_type"):
        raise TokenRefusedError("invalid_request", f"The field grant_type is missing: it is {GRANT}.")
    if fields["grant_type"] != GRANT:
        raise TokenRefusedError("unsupported_grant_type", f"The only grant here is {GRANT}.")
    return fields


def _client(headers: Headers, fields: Mapping[str, str]) -> Client:
    """Return the client, from HTTP Basic or the form. Raises UnauthenticatedError for neither, TokenRefusedError."""
    authorization = headers.get(b"authorization")
    if authorization is not None:
        if "client_secret" in fields:
            raise TokenRefusedError(
                "invalid_request", "The client is authenticated twice: by HTTP Basic, and in the form."
            )
        return _basic(authorization)
    if not fields.get("client_id") or not fields.get("client_secret"):
        raise UnauthenticatedError("Send client_id and client_secret, by HTTP Basic or in the form.")
    return Client(fields["client_id"], fields["client_secret"])


def _basic(authorization: bytes) -> Client:
    """Read HTTP Basic; by RFC 6749 id and secret are form-encoded before they are joined."""
    scheme, _, encoded = authorization.partition(b" ")
    try:
        id_, separator, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError as error:  # binascii's is one
        raise UnauthenticatedError("The header Authorization cannot be read.") from error
    if scheme.lower() != b"basic" or not separator:
        raise UnauthenticatedError("Authenticate the client by HTTP Basic, or in the form.")
    return Client(unquote_plus(id_), unquote_plus(secret))


def _error(word: str, description: str, code: ErrorCode, request_id: str) -> bytes:
    fields: dict[str, Any] = {"error": word, "error_description": description, "code": int(code)}
    return msgspec.json.encode({**fields, "instance": request_id})
