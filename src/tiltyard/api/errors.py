"""Turn exceptions into error responses: one JSON shape on every route, with the status that follows from the code.

Codes map to statuses as in rest-namespace-implementation.txt; 21 to 23 are upstream's.
"""

from __future__ import annotations

import logging

from lance_namespace.errors import ErrorCode, LanceNamespaceError

from tiltyard.context import StaleReadError
from tiltyard.model.spec.models import ErrorResponse
from tiltyard.mounts.registry.circuit_breaker import MountPausedError
from tiltyard.storage.errors import StorageThrottledError, is_panic
from tiltyard.store.access.quotas import RequestsUsedUpError

log = logging.getLogger("tiltyard.api")

STATUS = {
    ErrorCode.UNSUPPORTED: 406,
    ErrorCode.NAMESPACE_NOT_FOUND: 404,
    ErrorCode.NAMESPACE_ALREADY_EXISTS: 409,
    ErrorCode.NAMESPACE_NOT_EMPTY: 409,
    ErrorCode.TABLE_NOT_FOUND: 404,
    ErrorCode.TABLE_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_INDEX_NOT_FOUND: 404,
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_TAG_NOT_FOUND: 404,
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: 409,
    ErrorCode.TRANSACTION_NOT_FOUND: 404,
    ErrorCode.TABLE_VERSION_NOT_FOUND: 404,
    ErrorCode.TABLE_COLUMN_NOT_FOUND: 404,
    ErrorCode.INVALID_INPUT: 400,
    ErrorCode.CONCURRENT_MODIFICATION: 409,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
    ErrorCode.INVALID_TABLE_STATE: 409,
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: 400,
    ErrorCode.THROTTLING: 429,
    ErrorCode.TABLE_BRANCH_NOT_FOUND: 404,
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: 409,
}

BEARER_CHALLENGE = ((b"www-authenticate", b'Bearer realm="tiltyard"'),)


class HttpError(Exception):
    """A request is refused with a status of HTTP's own, which does not follow from the code."""

    def __init__(
        self, status: int, code: ErrorCode, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def error_response(error: BaseException, request_id: str) -> tuple[int, ErrorResponse, tuple[tuple[bytes, bytes], ...]]:
    """Return status, body and headers for an exception.

    An unexpected one is logged with its traceback; the client gets the request id to quote.
    """
    if isinstance(error, HttpError):
        return error.status, _body(error, error.code, request_id), error.headers
    if isinstance(error, LanceNamespaceError):
        if error.code is ErrorCode.INTERNAL:
            log.error("request %s failed", request_id, exc_info=error)
        return STATUS[error.code], _body(error, error.code, request_id), _headers(error)
    log.error("request %s failed", request_id, exc_info=error)
    who = "Lance" if is_panic(error) else "The server"
    generic = Exception(f"{who} failed on this request; the log has the details under the id in `instance`.")
    return 500, _body(generic, ErrorCode.INTERNAL, request_id), ()


def _headers(error: LanceNamespaceError) -> tuple[tuple[bytes, bytes], ...]:
    if error.code is ErrorCode.UNAUTHENTICATED:
        return BEARER_CHALLENGE
    if isinstance(error, MountPausedError | StaleReadError | RequestsUsedUpError):
        return ((b"retry-after", b"%d" % error.seconds),)
    is_throttled = error.code is ErrorCode.THROTTLING or isinstance(error, StorageThrottledError)
    return ((b"retry-after", b"1"),) if is_throttled else ()


def clear_tracebacks(error: BaseException) -> None:
    """Clear the tracebacks of an error and its causes: their frames hold bodies, and futures that hold the error."""
    errors: list[BaseException | None] = [error]
    while errors:
        cause = errors.pop()
        if cause is not None and cause.__traceback__ is not None:
            cause.__traceback__ = None
            errors += (cause.__cause__, cause.__context__)


def _body(error: BaseException, code: ErrorCode, request_id: str) -> ErrorResponse:
    return ErrorResponse(error=str(error), code=int(code), instance=request_id)
