"""What calls the operations of a catalog as one principal, wherever the catalog is.

A request is the same wherever it runs: its fields are checked here, by the model of the operation, and an answer is
what a server would send as JSON. So are retries: while a catalog is away, or asks for fewer requests, a call waits and
is sent again, with the idempotency key that makes a change happen once.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    ServiceUnavailableError,
    ThrottlingError,
    UnsupportedOperationError,
)

from tiltyard.model.spec import Operation, models, operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

COMMAND_RETRY_SECONDS = 5.0
"""How long a command, or the first call of a job, is sent again: somebody waits, and the address may be wrong."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
ONCE = frozenset({"CreateApiKey", "RotateApiKey"})
"""Operations that take no idempotency key, and double: they are not sent again. What declares them, a server has."""

T = TypeVar("T")


class Caller(ABC):
    """Calls operations by name (`DescribeTable`), with the fields of the request; those that are None are left out."""

    def __init__(self, address: str, retry_seconds: float = COMMAND_RETRY_SECONDS) -> None:
        """`address` is what people call the catalog; requests are sent again for `retry_seconds`."""
        self.address = address
        self._retry_seconds = retry_seconds

    def call(self, name: str, /, *, retry_seconds: float | None = None, **fields: Any) -> Any:
        """Call an operation with a JSON request; return its response, a mapping for most operations.

        `retry_seconds` replace the caller's own. Raises lance_namespace.errors; InvalidInputError for fields that are
        not the operation's, ServiceUnavailableError for a catalog that stays away.
        """
        operation = find_operation(name)
        request, key = make_request(operation, fields), uuid.uuid4().hex
        seconds = self._retry_seconds if retry_seconds is None else retry_seconds
        return _retry(lambda: self._answer(operation, request, key), seconds if self._may_repeat(operation) else 0)

    def read(self, name: str, /, **fields: Any) -> pa.RecordBatchReader:
        """Call an operation that returns rows, which come as they are taken.

        Raises as `call` does; the reader raises lance_namespace.errors, or pa.ArrowException or OSError where a
        connection is cut.
        """
        operation = find_operation(name)
        request = make_request(operation, fields)
        return _retry(lambda: self._rows(operation, request), self._retry_seconds)

    def write(self, name: str, rows: pa.RecordBatchReader, /, key: str | None = None, **fields: Any) -> Any:
        """Call an operation that takes rows, which are read as they are written; return its response.

        `key` is the request's idempotency key. Raises as `call` does, and what the rows raise, without another try:
        rows are read once.
        """
        operation = find_operation(name)
        return self._upload(operation, make_request(operation, fields), rows, key or uuid.uuid4().hex)

    def pages(self, name: str, /, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield all pages of an operation that answers in pages. Raises as `call` does."""
        token: str | None = None
        while True:
            page = self.call(name, page_token=token, **fields)
            yield page
            token = page.get("page_token")
            if not token:
                return

    def entries(self, name: str, field: str, /, **fields: Any) -> Iterator[Any]:
        """Yield what is in a field of all pages of an operation that lists. Raises as `call` does."""
        for page in self.pages(name, **fields):
            yield from page[field]

    @abstractmethod
    def query_sql(self, text: str, address: str | None = None) -> pa.RecordBatchReader:
        """Run a SELECT over the tables of the catalog; a server serves it at an address, by default at its next port.

        Raises lance_namespace.errors, as the reader does.
        """

    def readable_schema(self, table: Sequence[str], version: int | None = None, branch: str | None = None) -> pa.Schema:
        """Return the columns of a table that the principal may read, as its rows have them. Raises as `call` does."""
        with self.read("QueryTable", **schema_query(table, version, branch)) as rows:
            return rows.schema

    def _may_repeat(self, operation: Operation) -> bool:
        """Return whether a request that may have been done is sent again."""
        return operation.name not in ONCE

    @abstractmethod
    def close(self) -> None:
        """Close connections, and what was opened for the caller alone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _answer(self, operation: Operation, request: Any, key: str) -> Any:
        """Send a request with a JSON response; return that."""

    @abstractmethod
    def _rows(self, operation: Operation, request: Any) -> pa.RecordBatchReader:
        """Send a request for rows."""

    @abstractmethod
    def _upload(self, operation: Operation, request: Any, rows: pa.RecordBatchReader, key: str) -> Any:
        """Send a request with rows."""


def schema_query(table: Sequence[str], version: int | None = None, branch: str | None = None) -> dict[str, Any]:
    """Return the fields of QueryTable by which a principal sees its columns and none of the rows."""
    return {"id": list(table), "k": 0, "vector": {}, "version": version, "branch": branch}


def find_operation(name: str) -> Operation:
    """Return an operation of the specification by its name. Raises UnsupportedOperationError."""
    operation = operations().get(name)
    if operation is None:
        raise UnsupportedOperationError(f"{name} is not supported.")
    return operation


def make_request(operation: Operation, fields: Mapping[str, Any]) -> Any:
    """Return the request of an operation with these fields; None for one without a model.

    Numbers may be text, as forms and command lines have them. Raises InvalidInputError for a value that is not the
    operation's.
    """
    if operation.request is None:
        return None
    present = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(present, getattr(models, operation.request), strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The request is not what {operation.name} takes: {error}") from error


def _retry(send: Callable[[], T], seconds: float) -> T:
    """Return the answer of a request, which is sent again for `seconds` while the catalog is away or busy."""
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            return send()
        except (ServiceUnavailableError, ThrottlingError):
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE_SECONDS)
