"""Call the operations of a server by HTTP, by the routes of the specification; rows stream in and out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from lance_namespace.errors import InternalError, ServiceUnavailableError, from_error_code
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from tiltyard.calls.caller import COMMAND_RETRY_SECONDS, Caller, find_operation, make_request
from tiltyard.model.ids import wire_delimiter
from tiltyard.model.spec import ARROW_STREAM, JSON, Operation, Shape

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 310.0
"""How long a server may be silent: longer than a query may take there by default."""
MAX_ERROR_BYTES = 1 << 20
CONNECTIONS = 16


class HttpCaller(Caller):
    """Calls the operations of a server. `headers` are the credentials, which go with each request."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_seconds: float = COMMAND_RETRY_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        tls_files: Mapping[str, str] | None = None,
    ) -> None:
        """`tls_files` are arguments of urllib3's pools: `cert_file`, `key_file`, `ca_certs`."""
        super().__init__(url.rstrip("/"), retry_seconds)
        self.headers = dict(headers or {})
        timeout = Timeout(connect=CONNECT_SECONDS, read=answer_seconds)
        files: dict[str, Any] = dict(tls_files or {})
        self._pool = PoolManager(retries=False, timeout=timeout, maxsize=CONNECTIONS, block=False, **files)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def send(self, name: str, key: str | None, /, **fields: Any) -> Any:
        """Call an operation once with an idempotency key, or without one; return its response.

        Raises as `call` does; a ServiceUnavailableError without a response has urllib3's error as its cause.
        """
        operation = find_operation(name)
        return self._answer(operation, make_request(operation, fields), key)

    def query_sql(self, text: str, address: str | None = None) -> pa.RecordBatchReader:
        from tiltyard.calls.flight_sql import query_server

        return query_server(self.address, self.headers, text, address)

    def read_lines(self, path: str) -> Iterator[bytes]:
        """Iterate over the lines of a page as they come. Raises as `call` does."""
        try:
            response = self._pool.request(
                "GET", f"{self.address}{path}", headers=self.headers, preload_content=False, redirect=False
            )
            if response.status >= 300:
                raise _response_error(response.status, self._read_all(response))
            yield from _lines(response.stream())
        except HTTPError as error:
            raise ServiceUnavailableError(
                f"{self.address} cut the connection ({failure_reason(error)}): try again."
            ) from error

    def _answer(self, operation: Operation, request: Any, key: str | None) -> Any:
        path, body = _encode(operation, request)
        keyed = {"Idempotency-Key": key} if key else {}
        return self._decode(self._send(operation, path, body, {"accept": JSON, **keyed}))

    def _rows(self, operation: Operation, request: Any) -> pa.RecordBatchReader:
        import pyarrow as pa

        path, body = _encode(operation, request)
        response = self._send(operation, path, body, {"accept": ARROW_STREAM})
        return pa.ipc.open_stream(pa.PythonFile(_Download(response, self.address), mode="r"))

    def _upload(self, operation: Operation, request: Any, rows: pa.RecordBatchReader, key: str) -> Any:
        headers = {"content-type": ARROW_STREAM, "accept": JSON, "Idempotency-Key": key}
        upload = _Upload(rows)
        try:
            return self._decode(self._send(operation, _encode(operation, request)[0], upload, headers))
        except ServiceUnavailableError:
            if upload.failure is not None:  # the rows could not be read: that, not the connection, has to be told
                raise upload.failure from None
            raise

    def _send(
        self, operation: Operation, path: str, body: bytes | _Upload | None, headers: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """Return a response, whose body has still to be read. Raises the error that it carries."""
        content = {"content-type": JSON} if isinstance(body, bytes) else {}
        try:
            response = self._pool.request(
                operation.method,
                f"{self.address}{path}",
                headers={**self.headers, **headers, **content},
                body=body,
                preload_content=False,
                redirect=False,  # a key is for this server alone
            )
        except HTTPError as error:
            raise ServiceUnavailableError(
                f"{self.address} does not answer ({failure_reason(error)}): is that the address of a server that runs?"
            ) from error
        if response.status >= 300:
            raise _response_error(response.status, self._read_all(response))
        return response

    def _decode(self, response: BaseHTTPResponse) -> Any:
        return json.loads(self._read_all(response) or b"{}")

    def _read_all(self, response: BaseHTTPResponse) -> bytes:
        try:
            return response.read()
        except HTTPError as error:
            reason = failure_reason(error)
            raise ServiceUnavailableError(f"{self.address} cut the connection ({reason}): try again.") from error
        finally:
            response.release_conn()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Iterate over the lines of a text that comes in pieces."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


def key_headers(key: str) -> dict[str, str]:
    """Return the headers of an API key; none where it is empty."""
    return {"x-api-key": key} if key else {}


def failure_reason(error: HTTPError) -> str:
    """Return what is behind an error of urllib3, in a few words."""
    cause = error.__cause__ or error.__context__ or error
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return str(text).rstrip(".")


def _encode(operation: Operation, request: Any) -> tuple[str, bytes | None]:
    """Return the path of a request with its query string, and its body: fields are in one of them."""
    fields: dict[str, Any] = {} if request is None else msgspec.to_builtins(request, str_keys=True)
    names = fields.get("id", ())
    delimiter = wire_delimiter(names)
    parts = {"id": delimiter.join(names) or delimiter}
    path = re.sub(
        r"\{(\w+)\}", lambda part: quote(str(parts.get(part[1], fields.get(part[1], ""))), safe=""), operation.path
    )
    pairs: list[tuple[str, str]] = [("delimiter", delimiter)]
    if operation.method == "GET" or operation.request_shape is Shape.ARROW:
        body = None
    elif operation.request_shape is Shape.MAP:
        body = msgspec.json.encode(fields.pop("metadata", {}))
    else:
        return f"{path}?{urlencode(pairs)}", None if request is None else msgspec.json.encode(request)
    for name, value in fields.items():
        if name != "id" and f"{{{name}}}" not in operation.path:
            pairs += [(name, _text(each)) for each in (value if isinstance(value, list) else [value])]
    return f"{path}?{urlencode(pairs)}", body


def _text(value: Any) -> str:
    """Return a value as it stands in a query string: JSON, but for text."""
    return value if isinstance(value, str) else json.dumps(value)


def _response_error(status: int, body: bytes) -> Exception:
    """Return the error that a response carries."""
    try:
        problem = json.loads(body[:MAX_ERROR_BYTES])
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
