"""Call BatchCommitTables through any client, also through one that lacks the method."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import TypeAlias

import lance_namespace as upstream
from lance.namespace import RestNamespace
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    ThrottlingError,
    UnsupportedOperationError,
)
from urllib3.exceptions import ConnectTimeoutError, HTTPError, MaxRetryError, NewConnectionError, SSLError

from tiltyard.calls.http_caller import HttpCaller

Send: TypeAlias = Callable[[upstream.BatchCommitTablesRequest, str | None], upstream.BatchCommitTablesResponse]
"""Sends a batch with an idempotency key, or without one: only then has the response credentials."""

TIMEOUT_SECONDS = 120.0
_ENDPOINT = re.compile(r'endpoint: "([^"]+)"')


class NotSentError(ServiceUnavailableError):
    """No connection was made, so the server has not received the batch."""


RETRYABLE_ERRORS = NotSentError, ThrottlingError
"""Errors for which nothing was committed, and a retry may succeed."""


def batch_sender(client: upstream.LanceNamespace, headers: Mapping[str, str], ssl_ca_cert: str | None = None) -> Send:
    """Return a function that sends batches through a client. Raises UnsupportedOperationError, TypeError."""
    if not isinstance(client, upstream.LanceNamespace):
        raise TypeError(
            f"A publication needs a LanceNamespace, not {type(client).__name__}: see lance_namespace.connect."
        )
    if type(client).batch_commit_tables is not upstream.LanceNamespace.batch_commit_tables:
        return lambda request, key: client.batch_commit_tables(request)
    endpoint = _ENDPOINT.search(client.namespace_id()) if isinstance(client, RestNamespace) else None
    if endpoint is None:
        raise UnsupportedOperationError(f"{type(client).__name__} cannot commit several tables in one batch.")
    return _http_sender(endpoint[1], headers, ssl_ca_cert)


def _http_sender(url: str, headers: Mapping[str, str], ssl_ca_cert: str | None) -> Send:
    """Send batches by HTTP: pylance's RestNamespace (14) has no method for them."""
    tls_files = {"ca_certs": ssl_ca_cert} if ssl_ca_cert else {}
    caller = HttpCaller(url, headers, retry_seconds=0, answer_seconds=TIMEOUT_SECONDS, tls_files=tls_files)

    def send(request: upstream.BatchCommitTablesRequest, key: str | None) -> upstream.BatchCommitTablesResponse:
        try:
            answer = caller.send("BatchCommitTables", key, **request.to_dict())
        except ServiceUnavailableError as error:
            if isinstance(error.__cause__, HTTPError):
                raise _connection_error(error.__cause__) from error
            raise
        return upstream.BatchCommitTablesResponse.model_validate(answer)

    return send


def _connection_error(error: HTTPError) -> LanceNamespaceError:
    """Translate the error of a request without response; NotSentError where no connection was made."""
    cause = error.reason if isinstance(error, MaxRetryError) else error
    if isinstance(cause, SSLError) and any(
        isinstance(argument, ssl.SSLCertVerificationError) for argument in cause.args
    ):
        return InvalidInputError(
            f"The certificate of the server cannot be verified ({cause}): set the authorities to trust, "
            "tiltyard.publish(client, ssl_ca_cert=…)."
        )
    if isinstance(cause, NewConnectionError | ConnectTimeoutError):
        return NotSentError(f"The server cannot be reached: {cause}")
    return ServiceUnavailableError(f"The server did not answer: {error}")


def is_refusal(error: BaseException) -> bool:
    """Whether an error means for certain that nothing was committed."""
    return isinstance(error, LanceNamespaceError) and not isinstance(
        error, InternalError | ServiceUnavailableError | ThrottlingError
    )
