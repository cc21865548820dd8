"""A catalog on a server, by HTTP: operations by name, rows as they stream in and out."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from lance_namespace.errors import InternalError, ServiceUnavailableError, ThrottlingError, from_error_code
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from tiltyard.model.ids import wire_delimiter
from tiltyard.model.spec import ARROW_STREAM, JSON, Operation, Shape, operations
from tiltyard.pipeline.operation_client import failure_reason

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 310.0
"""How long a server may be silent: longer than a query may take there by default."""
RETRY_SECONDS = 5.0
"""How long a request is repeated that gets no answer; its idempotency key makes a change happen once."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 1.0
_MAX_ERROR_BYTES = 1 << 20


class ServerCatalog:
    """Runs operations on a server. `url` is its address, `key` an API key, `token` one of a provider; none where they
    are empty.

    `headers` are the credentials.
    """

    is_local = False

    def __init__(self, url: str, key: str, token: str | None = None) -> None:
        self.address = url.rstrip("/")
        self.key = key
        self.headers = {"x-api-key": key} if key else {"authorization": f"Bearer {token}"} if token else {}
        self._pool = PoolManager(
            retries=False, timeout=Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS), maxsize=16, block=False
        )

    def call(self, name: str, /, **request: Any) -> Any:
        """Run an operation with a JSON request; return its response, a mapping for most operations.

        Fields that are None are left out. Raises lance_namespace.errors, ServiceUnavailableError for a server that
        does not answer.
        """
        operation = operations()[name]
        fields = {field: value for field, value in request.items() if value is not None}
        headers = {"Idempotency-Key": uuid.uuid4().hex, "accept": JSON}
        deadline, pause = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                response = self._send(operation, fields, headers, _json_body(operation, fields))
                return json.loads(_read_all(response, self.address) or b"{}")
            except (ServiceUnavailableError, ThrottlingError):
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def read(self, name: str, /, **request: Any) -> pa.RecordBatchReader:
        """Run an operation that returns rows; they are read from the connection as they are taken.

        Raises as `call` does; the reader raises pa.ArrowException or OSError where the connection is cut.
        """
        import pyarrow as pa

        operation = operations()[name]
        fields = {field: value for field, value in request.items() if value is not None}
        response = self._send(operation, fields, {"accept": ARROW_STREAM}, _json_body(operation, fields))
        return pa.ipc.open_stream(pa.PythonFile(_Download(response, self.address), mode="r"))

    def write(self, name: str, rows: pa.RecordBatchReader, /, key: str, **request: Any) -> Any:
        """Run an operation that takes rows, which are sent as they are read; return its response.

        The request has the idempotency key `key`. Raises as `call` does, without trying again.
        """
        headers = {"content-type": ARROW_STREAM, "accept": JSON, "Idempotency-Key": key}
        fields = {field: value for field, value in request.items() if value is not None}
        upload = _Upload(rows)
        try:
            response = self._send(operations()[name], fields, headers, upload)
            return json.loads(_read_all(response, self.address) or b"{}")
        except ServiceUnavailableError:
            if upload.failure is not None:  # the rows could not be read: that, not the connection, has to be told
                raise upload.failure from None
            raise

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _send(
        self, operation: Operation, fields: Mapping[str, Any], headers: Mapping[str, str], body: bytes | _Upload | None
    ) -> BaseHTTPResponse:
        url = f"{self.address}{_path(operation, fields)}"
        try:
            response = self._pool.request(
                operation.method,
                url,
                headers={**self.headers, **headers, **({"content-type": JSON} if isinstance(body, bytes) else {})},
                body=body,
                preload_content=False,
                redirect=False,  # a key is for this server alone
            )
        except HTTPError as error:
            raise ServiceUnavailableError(
                f"{self.address} does not answer ({failure_reason(error)}): is that the address of a server that runs?"
            ) from error
        if response.status >= 300:
            raise _response_error(response.status, _read_all(response, self.address))
        return response


def _path(operation: Operation, fields: Mapping[str, Any]) -> str:
    """Return the path and the query string of a request."""
    names = fields.get("id", ())
    delimiter = wire_delimiter(names)
    path = operation.path.replace("{id}", quote(delimiter.join(names) or delimiter, safe=""))
    for name in ("index_name", "column", "row_id"):
        path = path.replace(f"{{{name}}}", quote(str(fields.get(name, "")), safe=""))
    in_query = _query_names(operation)
    pairs = [("delimiter", delimiter)]
    for name, value in fields.items():
        if name in in_query:
            pairs.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return f"{path}?{urlencode(pairs)}"


def _json_body(operation: Operation, fields: Mapping[str, Any]) -> bytes | None:
    if operation.method == "GET" or operation.request_shape is Shape.ARROW:
        return None
    in_query = _query_names(operation)
    return json.dumps({name: value for name, value in fields.items() if name not in in_query}).encode()


def _query_names(operation: Operation) -> frozenset[str]:
    """Return the fields of a request that stand in its query string: none where a model is its body."""
    if operation.method != "GET" and operation.request_shape is Shape.OBJECT:
        return frozenset()
    return frozenset(parameter.name for parameter in operation.parameters) - {"delimiter", "id"}


def _read_all(response: BaseHTTPResponse, address: str) -> bytes:
    try:
        return response.read()
    except HTTPError as error:
        raise ServiceUnavailableError(f"{address} cut the connection ({failure_reason(error)}): try again.") from error
    finally:
        response.release_conn()


def _response_error(status: int, body: bytes) -> Exception:
    """Return the error that a response carries."""
    try:
        problem = json.loads(body[:_MAX_ERROR_BYTES])
        return from_error_code(int(problem["code"]), str(problem["error"]))
    except (ValueError, KeyError, TypeError):
        kind = ServiceUnavailableError if status in (502, 503, 504) else InternalError
        return kind(f"The server answered {status} without a message: is that the address of Tiltyard?")


class _Download:
    """A response as a file that pyarrow reads."""

    closed = False

    def __init__(self, response: BaseHTTPResponse, address: str) -> None:
        self._response = response
        self._address = address

    def read(self, size: int = -1) -> bytes:
        try:
            return self._response.read(None if size < 0 else size)
        except HTTPError as error:
            raise ConnectionError(f"{self._address} cut the connection ({failure_reason(error)})") from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
        self._response.close()


class _Upload(Iterable[bytes]):
    """Rows as the chunks of an Arrow stream. `failure` is what the rows raised, if they did."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        import pyarrow as pa

        sink = _Chunks()
        try:
            with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), self._rows.schema) as writer:
                for batch in self._rows:
                    writer.write_batch(batch)
                    yield from sink.take()
            yield from sink.take()
        except Exception as error:
            self.failure = error
            raise


class _Chunks:
    """Collects what is written, for someone to take."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> Iterator[bytes]:
        parts, self._parts = self._parts, []
        yield b"".join(parts)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True
