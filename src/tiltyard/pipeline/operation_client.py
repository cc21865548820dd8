"""Call Tiltyard's own operations as a client: on a server by HTTP, or on a catalog in this process.

lance_namespace's clients know upstream's operations only. Paths and methods are those of `tiltyard.model.spec`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from lance_namespace.errors import InternalError, ServiceUnavailableError, from_error_code
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from tiltyard.model.ids import wire_delimiter
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from tiltyard.pipeline.table_location import CatalogConnection

RESPONSE_SECONDS = 60.0
RETRY_SECONDS = 120.0
"""Seconds for which requests to a server that does not answer are retried: longer than its replacement takes."""
KEYED = frozenset({"SubmitJob", "ClaimJob", "FinishJob", "MoveTable", "AlterTableAddColumns"})
"""Operations that are idempotent only with a key: their requests carry one."""
ONCE = frozenset({"CreateApiKey", "RotateApiKey"})
"""Operations that take no key, and make something new each time: their requests are not retried."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 2.0
_TLS_FILES = {"cert_file": "cert_file", "key_file": "key_file", "ssl_ca_cert": "ca_certs"}
"""A client's `tls.…` properties with files, and urllib3's arguments for them."""


class OperationClient:
    """Calls the operations of a catalog by name, with mappings for requests and responses."""

    def __init__(self, where: CatalogConnection, retry_seconds: float = RETRY_SECONDS) -> None:
        """Create a client of a catalog; requests that get no answer are retried for `retry_seconds`."""
        self.connection = where
        self._retry_seconds = retry_seconds
        self._properties = dict(where.properties)

    def call(self, name: str, /, *, retry_seconds: float | None = None, **request: Any) -> dict[str, Any]:
        """Call an operation with a JSON request and response (`SubmitJob`); fields that are None are left out.

        Where the server cannot be reached, the request is retried for `retry_seconds` instead of the client's default,
        unless it is of `ONCE`; its key makes a change happen once. Raises lance_namespace.errors,
        ServiceUnavailableError for a server that stays unreachable.
        """
        fields = {key: value for key, value in request.items() if value is not None}
        patience = self._retry_seconds if retry_seconds is None else retry_seconds
        deadline = time.monotonic() + (0 if name in ONCE else patience)
        pause, key = _FIRST_PAUSE_SECONDS, uuid.uuid4().hex
        while True:
            try:
                return self._send(name, fields, key)
            except ServiceUnavailableError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def pages(self, name: str, /, **request: Any) -> Iterator[dict[str, Any]]:
        """Yield all pages of an operation that answers in pages. Raises as `call` does."""
        token: str | None = None
        while True:
            page = self.call(name, page_token=token, **request)
            yield page
            token = page.get("page_token")
            if not token:
                return

    def _send(self, name: str, fields: Mapping[str, Any], key: str) -> dict[str, Any]:
        if self._pool is None:
            return _to_mapping(self.connection.client().call(name, fields))  # type: ignore[attr-defined]  # upstream has no such method
        operation = operations()[name]
        names = fields.get("id", ())
        delimiter = wire_delimiter(names)
        path = operation.path.replace("{id}", quote(delimiter.join(names), safe=""))
        url = f"{self._properties['uri'].rstrip('/')}{path}?{urlencode({'delimiter': delimiter})}"
        headers = {**({"Idempotency-Key": key} if name in KEYED else {}), **self.connection.headers}
        try:
            if operation.method == "GET":
                url = f"{url}&{urlencode({name: value for name, value in fields.items() if name != 'id'})}"
            body = {} if operation.method == "GET" else {"json": fields}
            response = self._pool.request(operation.method, url, headers=headers, timeout=RESPONSE_SECONDS, **body)
        except HTTPError as error:
            raise ServiceUnavailableError(
                f"{self._properties['uri']} did not answer: {failure_reason(error)}. "
                "Is it the address of a server that runs?"
            ) from error
        if response.status >= 300:
            raise _response_error(response.status, response.data)
        result: dict[str, Any] = json.loads(response.data or b"{}")
        return result

    @cached_property
    def _pool(self) -> PoolManager | None:
        """Return the connections to a server; None where the catalog is in this process."""
        if "uri" not in self._properties:
            return None
        files: dict[str, Any] = {
            argument: self._properties.get(f"tls.{property_name}") for property_name, argument in _TLS_FILES.items()
        }
        return PoolManager(retries=False, **{name: file for name, file in files.items() if file})


def failure_reason(error: HTTPError) -> str:
    """Return what is behind an error of urllib3, in a few words."""
    cause = error.__cause__ or error.__context__ or error
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return str(text).rstrip(".")


def _response_error(status: int, body: bytes) -> Exception:
    """Return the error that a response carries."""
    try:
        problem = json.loads(body)
        return from_error_code(int(problem["code"]), str(problem["error"]))
    except (ValueError, KeyError, TypeError):
        kind = ServiceUnavailableError if status in (502, 503, 504) else InternalError
        return kind(f"The server answered {status}.")


def _to_mapping(response: Any) -> dict[str, Any]:
    """Return a response of the catalog in process as a mapping; it is a model where upstream has one."""
    result: dict[str, Any] = response.model_dump(by_alias=True) if hasattr(response, "model_dump") else response
    return result
