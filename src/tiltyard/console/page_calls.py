"""Calls of operations for a page: in this process, as its signed-in principal, within the limits of any client.

A page is a function that runs in a thread. What belongs to the event loop (slots, metrics, the audit) is done there.

Not a `tiltyard.calls.Caller`: a page reads responses by attribute, sees as others do, ends with its request's deadline,
and never sends a call again. What both share (the operation of a name, its checked request, its handler) is `calls`'.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.api.authentication import is_own_page
from tiltyard.api.errors import error_response
from tiltyard.api.metrics import is_local_request
from tiltyard.calls.caller import find_operation, make_request
from tiltyard.calls.in_process_caller import RowsBody, find_handler
from tiltyard.context import Context
from tiltyard.sql.processes import Form
from tiltyard.sql.read_grounds import REAUTHORIZE_SECONDS, check_grounds
from tiltyard.sql.remote_query import EXECUTE, QueryBatches, RemoteQuery, note_decisions, query_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from tiltyard.api.app import Shared
    from tiltyard.api.deadlines import Deadline
    from tiltyard.api.limits.requests import QuerySlot
    from tiltyard.api.metrics_history import MetricsHistory
    from tiltyard.api.request_log import LoggedRequest, ProcessCounts
    from tiltyard.model.ids import Id
    from tiltyard.model.operations import ArrowAnswer, BytesAnswer, Handler
    from tiltyard.model.principals import Principal
    from tiltyard.sql.read_grounds import ReadGrounds

T = TypeVar("T")


class PageCalls:
    """The operations that one page calls. Its methods run in the page's thread."""

    def __init__(
        self,
        shared: Shared,
        loop: asyncio.AbstractEventLoop,
        scope: Mapping[str, Any],
        request_id: str,
        principal: Principal,
        deadline: Deadline | None,
        has_client_left: Callable[[], bool] | None,
    ) -> None:
        self._shared = shared
        self._loop = loop
        self._scope = dict(scope)
        self._deadline = deadline
        self._has_client_left = has_client_left
        self.ctx = Context(shared.services, request_id, principal=principal, check_deadline=self.check)
        self._reader = self.ctx
        """The context of whoever looks: limits, the metrics and the audit have that one."""

    def without_deadline(self) -> PageCalls:
        """Return the same calls for a stream, which has an end of its own, and notices by itself who left."""
        return self._like(None, has_client_left=None)

    def without_end(self) -> PageCalls:
        """Return the same calls for work that may take long, and ends where its reader leaves."""
        return self._like(None, self._has_client_left)

    def seen_as(self, principal: Principal) -> PageCalls:
        """Return calls of operations that change nothing, with the privileges and policies of another principal.

        They are acts of this principal: its limits hold, and the audit has each as its own, with `see_as` in the
        context, whether or not it records what others read.
        """
        calls = self._like(self._deadline, self._has_client_left, principal)
        calls._reader = self.ctx
        return calls

    def _like(
        self,
        deadline: Deadline | None,
        has_client_left: Callable[[], bool] | None,
        principal: Principal | None = None,
    ) -> PageCalls:
        """Return calls of the same request, with another end, or of another principal."""
        who, request_id = principal or self.ctx.principal, self.ctx.request_id
        return PageCalls(self._shared, self._loop, self._scope, request_id, who, deadline, has_client_left)

    @property
    def is_local(self) -> bool:
        """Whether the reader is on this machine, and not behind a proxy on it: such a one may read the metrics."""
        headers = dict(self._scope["headers"])
        return is_local_request(self._scope, headers) and is_own_page(headers)

    @property
    def history(self) -> MetricsHistory:
        """The figures of the server over its last hours."""
        return self._shared.history

    def read_counts(self) -> bytes:
        """Return the counts of this process until now, as `MetricsHistory` and `read_processes` take them."""
        return self._on_loop(self._shared.log.counts.encoded)

    def read_processes(self, counts: bytes) -> list[ProcessCounts]:
        """Return the counts of all processes of this server."""
        return self._shared.log.counts.read_processes(counts)

    @property
    def _is_seen_as(self) -> bool:
        return self._reader is not self.ctx

    def check(self) -> None:
        """Raise ServiceUnavailableError once the page's time is over, or its reader has left."""
        if self._has_client_left is not None and self._has_client_left():
            raise ClientLeftError
        if self._deadline is not None:
            self._deadline.check()

    def call(self, name: str, /, **fields: Any) -> Any:
        """Run an operation (`DescribeTable`) and return its response. Raises what the operation raises."""
        with self._started(name, fields) as (handler, ctx, request):
            return handler.run(ctx, request)

    def pages(self, name: str, /, **fields: Any) -> Iterator[Any]:
        """Yield the responses of an operation that answers in pages. Raises as `call` does."""
        token: str | None = None
        while True:
            listed = self.call(name, page_token=token, **fields)
            yield listed
            if not (token := listed.page_token):
                return

    def allows(self, name: str, /, **fields: Any) -> bool:
        """Return whether the reader may call an operation: what a page offers. Raises ServiceUnavailableError."""
        operation, handler = find_operation(name), find_handler(name)
        if self._is_seen_as and handler.changes:
            return False
        try:
            handler.authorize(self.ctx, make_request(operation, fields))
        except (PermissionDeniedError, TableNotFoundError, NamespaceNotFoundError):
            return False
        return True

    def attempt(self, name: str, /, **fields: Any) -> Any:
        """Run an operation; return None where it cannot be done, as in a part of a page that may be missing."""
        try:
            return self.call(name, **fields)
        except LanceNamespaceError:
            return None

    @contextmanager
    def rows(self, **fields: Any) -> Iterator[ArrowAnswer]:
        """Run QueryTable in a block, and close its rows at the end. Raises HttpError 429, what the operation raises."""
        with self._started("QueryTable", fields) as (handler, ctx, request):
            answer: ArrowAnswer = handler.run(ctx, request)
            try:
                yield answer
            finally:
                if (close := getattr(answer.batches, "close", None)) is not None:
                    close()

    @contextmanager
    def blob(self, **fields: Any) -> Iterator[BytesAnswer]:
        """Run ReadTableBlob in a block, in which ranges of the blob can be read. Raises as `rows` does."""
        with self._started("ReadTableBlob", fields) as (handler, ctx, request):
            yield handler.run(ctx, request)

    def write(self, name: str, rows: pa.RecordBatchReader, /, **fields: Any) -> Any:
        """Run an operation that takes rows, and return its response. Raises what it raises, and what the rows raise."""
        with self._started(name, fields) as (handler, ctx, request):
            body = RowsBody(rows)
            try:
                return handler.run(ctx, request, body)
            except Exception as error:
                if body.failure in (None, error):
                    raise
                raise body.failure from None  # not what was made of it

    def authorize(self, name: str, /, **fields: Any) -> None:
        """Check that an operation may be called, without calling it. Raises what it would raise for its caller."""
        find_handler(name).authorize(self.ctx, make_request(find_operation(name), fields))

    @contextmanager
    def sql(self, text: str) -> Iterator[SqlAnswer]:
        """Run a query of SQL in a block, in a process of its own, as Arrow Flight does; end that at the end.

        The query ends, too, once the page's time is over, its reader has left, or may not read its tables any more.
        Raises HttpError 429, UnsupportedOperationError where no SQL is run, what planning it raises, as its batches do.
        """
        processes = self.ctx.services.sql_processes
        if processes is None:
            raise UnsupportedOperationError("This server runs no SQL.")
        with self._recorded(lambda logged: logged.set_query(EXECUTE, ()), is_query=True) as logged:
            query = RemoteQuery(processes, query_request(self.ctx, text, (), form=Form.STREAM), self.check)
            try:
                query.start()
            finally:
                logged.set_query(EXECUTE, query.tables)
                note_decisions(self.ctx, query)
            with closing(QueryBatches(query)) as batches:
                rows = self._while_readable(query.grounds, batches)
                yield SqlAnswer(query.schema, rows, query.tables, batches.has_next)

    def _while_readable(
        self, grounds: Sequence[ReadGrounds], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches for as long as their reader may read their tables. Raises why it may not any more."""
        checked_at = time.monotonic()
        for batch in batches:
            if time.monotonic() - checked_at > REAUTHORIZE_SECONDS:
                if not self._shared.authentication.is_open:
                    check_grounds(self.ctx, grounds)
                checked_at = time.monotonic()
            yield batch

    @contextmanager
    def _started(self, name: str, fields: Mapping[str, Any]) -> Iterator[tuple[Handler, Context, Any]]:
        """Authorize a call, within a slot if it is a query, and record its outcome at the end of the block."""
        operation, handler = find_operation(name), find_handler(name)
        if self._is_seen_as and handler.changes:
            raise PermissionDeniedError("To see as another principal changes nothing.")
        request = make_request(operation, fields)

        def describe(logged: LoggedRequest) -> None:
            logged.set_route(operation, handler, {})
            logged.request = request

        with self._recorded(describe, is_query=handler.query, status=operation.status):
            yield handler, handler.authorize(self.ctx, request), request

    @contextmanager
    def _recorded(
        self, describe: Callable[[LoggedRequest], None], *, is_query: bool, status: int = 200
    ) -> Iterator[LoggedRequest]:
        """Record the outcome of a block, which a query runs in within a slot; `status` is that of its success."""
        self.check()
        logged, slot = self._on_loop(lambda: self._begin(describe, is_query=is_query))
        try:
            try:
                yield logged
            finally:
                logged.ctx = structs.replace(self._reader, decided=self.ctx.decided.copy())
            logged.status = status
            if logged.is_audited_change:
                asyncio.run_coroutine_threadsafe(_write_record(logged), self._loop).result()
            logged.complete = True
        except (ClientLeftError, GeneratorExit):
            logged.status = status  # and cut
            raise
        except BaseException as error:
            known, body, _ = error_response(error, self.ctx.request_id) if _is_known(error) else (500, None, ())
            logged.status, logged.code = known, body.code if body is not None else None
            raise
        finally:
            self._loop.call_soon_threadsafe(_end, logged, slot)

    def _begin(
        self, describe: Callable[[LoggedRequest], None], *, is_query: bool
    ) -> tuple[LoggedRequest, QuerySlot | None]:
        """Acquire a query's slot, and start its record; on the event loop. Raises HttpError 429."""
        slot = None
        logged = self._shared.log.start(self._scope, self.ctx.request_id)
        describe(logged)
        if self._is_seen_as:
            logged.see_as(self.ctx.principal.name)
        logged.ctx = self._reader
        self.ctx.decided.clear()  # those of the page's call before
        if is_query:
            try:
                slot = self._shared.limits.acquire_slot(self._reader, logged.address)
            except Exception:
                logged.status = 429
                logged.end()
                raise
        return logged, slot

    def _on_loop(self, work: Callable[[], T]) -> T:
        """Run a short piece of work on the event loop, and return its result."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """The rows of a query, once, and the tables that it reads.

    `has_next` tells whether the next batch, or the end, has come within so many seconds.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    tables: Sequence[Id]
    has_next: Callable[[float], bool]


class ClientLeftError(Exception):
    """The reader of a page has closed its connection: there is nobody to send it to."""


async def _write_record(logged: LoggedRequest) -> None:
    """Write the audit record of a change, before its reader sees that it is done. Raises ServiceUnavailableError."""
    if (written := logged.before_response(logged.status)) is not None:
        await written


def _end(logged: LoggedRequest, slot: QuerySlot | None) -> None:
    logged.end()
    if slot is not None:
        slot.release()


def _is_known(error: BaseException) -> bool:
    return isinstance(error, Exception)
