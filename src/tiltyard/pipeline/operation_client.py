"""Tiltyard's own operations, called as a client: on a server by HTTP, or on a catalog in this process.

lance_namespace's clients know upstream's operations only. What is called here, and where, is in `tiltyard.model.spec`.
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

from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from tiltyard.pipeline.table_location import Connection

RESPONSE_TIMEOUT = 60.0
RETRY_SECONDS = 120.0
"""How long a server that does not answer is asked again: longer than one takes to be replaced."""
KEYED = frozenset({"SubmitJob", "ClaimJob", "FinishJob"})
"""What is not the same if it is done twice: it goes under a key, and then it is."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_TLS_FILES = {"cert_file": "cert_file", "key_file": "key_file", "ssl_ca_cert": "ca_certs"}
"""The files that a client's `tls.…` properties name, as urllib3 calls them."""


class OperationClient:
    """The operations of a catalog, by their names, with mappings for requests and answers."""

    def __init__(self, where: Connection, patience: float = RETRY_SECONDS) -> None:
        """Calls on a catalog; a server that does not answer is asked again for `patience` seconds."""
        self.connection = where
        self._patience = patience
        self._properties = dict(where.properties)

    def call(self, name: str, /, *, patience: float | None = None, **request: Any) -> dict[str, Any]:
        """Call an operation that takes and answers JSON (`SubmitJob`); fields that are None are left out.

        A server that cannot be reached is asked again for `patience` seconds, if not as long as for all calls; a key
        makes sure that a change is made once. Raises lance_namespace.errors, ServiceUnavailableError for a server that
        stays away.
        """
        fields = {key: value for key, value in request.items() if value is not None}
        deadline, pause, key = (
            time.monotonic() + (self._patience if patience is None else patience),
            _FIRST_PAUSE,
            uuid.uuid4().hex,
        )
        while True:
            try:
                return self._once(name, fields, key)
            except ServiceUnavailableError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def pages(self, name: str, /, **request: Any) -> Iterator[dict[str, Any]]:
        """Call an operation that answers in pages, to the last one; each page. Raises as `call` does."""
        token: str | None = None
        while True:
            page = self.call(name, page_token=token, **request)
            yield page
            token = page.get("page_token")
            if not token:
                return

    def _once(self, name: str, fields: Mapping[str, Any], key: str) -> dict[str, Any]:
        if self._pool is None:
            return _to_mapping(self.connection.client().call(name, fields))  # type: ignore[attr-defined]  # the twin's own
        operation = operations()[name]
        path = operation.path.replace("{id}", quote("$".join(fields.get("id", ())), safe=""))
        url = f"{self._properties['uri'].rstrip('/')}{path}?delimiter=%24"
        headers = {**({"Idempotency-Key": key} if name in KEYED else {}), **self.connection.headers}
        try:
            if operation.method == "GET":
                url = f"{url}&{urlencode({name: value for name, value in fields.items() if name != 'id'})}"
            body = {} if operation.method == "GET" else {"json": fields}
            answer = self._pool.request(operation.method, url, headers=headers, timeout=RESPONSE_TIMEOUT, **body)
        except HTTPError as error:
            told = f"{self._properties['uri']} did not answer: {error}. Is it the address of a server that runs?"
            raise ServiceUnavailableError(told) from error
        if answer.status >= 300:
            raise _response_error(answer.status, answer.data)
        found: dict[str, Any] = json.loads(answer.data or b"{}")
        return found

    @cached_property
    def _pool(self) -> PoolManager | None:
        """The connections to a server; None where the catalog is in this process."""
        if "uri" not in self._properties:
            return None
        files: dict[str, Any] = {urllib3s: self._properties.get(f"tls.{own}") for own, urllib3s in _TLS_FILES.items()}
        return PoolManager(retries=False, **{name: file for name, file in files.items() if file})


def _response_error(status: int, body: bytes) -> Exception:
    """The error that an answer carries."""
    try:
        found = json.loads(body)
        return from_error_code(int(found["code"]), str(found["error"]))
    except (ValueError, KeyError, TypeError):
        kind = ServiceUnavailableError if status in (502, 503, 504) else InternalError
        return kind(f"The server answered {status}.")


def _to_mapping(answer: Any) -> dict[str, Any]:
    """An answer of the twin, which is a model where upstream has one."""
    found: dict[str, Any] = answer.model_dump(by_alias=True) if hasattr(answer, "model_dump") else answer
    return found
