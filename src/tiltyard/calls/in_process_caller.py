"""Call the operations of a catalog in this process: the functions of a server, without its sockets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InternalError, LanceNamespaceError, UnsupportedOperationError

from tiltyard.calls.caller import COMMAND_RETRY_SECONDS, Caller, find_operation
from tiltyard.context import Context, do_nothing
from tiltyard.model.operations import Handler, bound_operations
from tiltyard.model.spec import Shape

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.context import Services
    from tiltyard.model.operations import ArrowAnswer, ArrowBody
    from tiltyard.model.principals import Principal
    from tiltyard.model.spec import Operation


class InProcessCaller(Caller):
    """Calls operations on the services of this process, as one principal: what it may not do is refused, as by HTTP.

    No request has an idempotency key. Where a database's connection is lost as it commits, nobody knows whether a
    change was made: what doubles is not sent again.
    """

    def __init__(
        self,
        services: Services,
        principal: Principal,
        *,
        retry_seconds: float = COMMAND_RETRY_SECONDS,
        on_close: Callable[[], None] = do_nothing,
        run_sql: Callable[[Context, str], ArrowAnswer] | None = None,
    ) -> None:
        """`on_close` closes what was opened for this caller alone; `run_sql` runs queries (`bootstrap.run_sql`)."""
        super().__init__(services.settings.root, retry_seconds)
        self._services = services
        self._principal = principal
        self._on_close = on_close
        self._run_sql = run_sql

    def context(self) -> Context:
        """Return the context of a request."""
        return Context(self._services, uuid.uuid4().hex, principal=self._principal)

    def run(self, operation: Operation, request: Any, body: ArrowBody | None = None) -> Any:
        """Run an operation within the principal's privileges; return what its function does.

        Raises lance_namespace.errors, InternalError for all others; what the rows of the body raised, if they did.
        """
        try:
            with internal_errors(operation.name):
                handler = find_handler(operation.name)
                ctx = handler.authorize(self.context(), request)
                return handler.run(ctx, request) if body is None else handler.run(ctx, request, body)
        except LanceNamespaceError as error:
            if body is not None and body.failure not in (None, error):
                raise body.failure from None  # not what was made of it
            raise

    def query_sql(self, text: str, address: str | None = None) -> pa.RecordBatchReader:
        import pyarrow as pa

        if self._run_sql is None:
            raise UnsupportedOperationError("SQL is not run here.")
        with internal_errors("The query"):
            answer = self._run_sql(self.context(), text)
        return pa.RecordBatchReader.from_batches(answer.schema, answer.batches)

    def _may_repeat(self, operation: Operation) -> bool:
        return not find_handler(operation.name).doubles

    def close(self) -> None:
        """Close what was opened for this caller."""
        self._on_close()

    def _answer(self, operation: Operation, request: Any, key: str) -> Any:
        answer = self.run(operation, request)
        if operation.response_shape is Shape.MAP and isinstance(answer, msgspec.Struct):
            answer = msgspec.structs.asdict(answer)["metadata"]  # the wire has the map alone
        return {} if answer is None else msgspec.to_builtins(answer, str_keys=True)

    def _rows(self, operation: Operation, request: Any) -> pa.RecordBatchReader:
        import pyarrow as pa

        answer = self.run(operation, request)
        return pa.RecordBatchReader.from_batches(answer.schema, answer.batches)

    def _upload(self, operation: Operation, request: Any, rows: pa.RecordBatchReader, key: str) -> Any:
        return msgspec.to_builtins(self.run(operation, request, RowsBody(rows)), str_keys=True)


@contextmanager
def internal_errors(name: str) -> Iterator[None]:
    """Raise InternalError for whatever an operation fails with that is no error of the specification."""
    try:
        yield
    except LanceNamespaceError:
        raise
    except Exception as error:
        raise InternalError(f"{name} failed: {error}") from error


@cache
def _operations() -> Mapping[str, tuple[Operation, Handler | None]]:
    return bound_operations()


def find_handler(name: str) -> Handler:
    """Return what serves an operation. Raises UnsupportedOperationError."""
    handler = _operations().get(name, (find_operation(name), None))[1]
    if handler is None:
        raise UnsupportedOperationError(f"{name} is not supported by this server.")
    return handler


class RowsBody:
    """Rows of this process, as the Arrow body of a request. `failure` is what they raised, if they did."""

    size = None

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows; once."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Any:
        try:
            yield from self._rows
        except BaseException as error:
            self.failure = error
            raise
