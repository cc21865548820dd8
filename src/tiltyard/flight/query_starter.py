"""Plan queries and start them: point queries and statements on views here, others in a process of their own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import UnsupportedOperationError
from msgspec import structs

from tiltyard.api.deadlines import Deadline
from tiltyard.api.execution.threaded import executor_for
from tiltyard.flight.encoding import BatchEncoder, encode_schema
from tiltyard.flight.queries import UNLIMITED_SECONDS, AnsweredQuery, Queries, StartedQuery, SubmittedQuery
from tiltyard.flight.view_statements import MAX_STATEMENT_SECONDS, SCHEMAS, RunningStatement, find_statement
from tiltyard.model.ids import Id
from tiltyard.model.operations import PoolName
from tiltyard.runtime.pool import Pool
from tiltyard.sql.point_queries import PointQuery, open_point_query, parse_point_query
from tiltyard.sql.processes import Form
from tiltyard.sql.remote_query import EXECUTE, RemoteQuery, note_decisions, query_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.api.app import Shared
    from tiltyard.api.limits.requests import QuerySlot
    from tiltyard.context import Context
    from tiltyard.flight.calls import Call
    from tiltyard.flight.handles import QueryHandle
    from tiltyard.sql.statements.view_statements import ViewStatement

PLAN = "PlanQuery"
"""What a call that plans a query does, in the audit log and the metrics."""
SPARE_THREADS = 4
"""Threads beyond those that wait for running queries: they start and end queries."""


class QueryStarter:
    """Starts the queries of one process, within its limits. Runs on the event loop; planning takes threads."""

    def __init__(self, shared: Shared, queries: Queries) -> None:
        """`queries` gets those that have started."""
        self._shared = shared
        self._queries = queries
        self._pool = shared.pools[PoolName.QUERIES]
        self._threads = Pool(
            "sql", "SQL queries, each as long as it runs", shared.services.settings.sql_queries + SPARE_THREADS
        )

    async def plan_schema(self, call: Call, handle: QueryHandle) -> pa.Schema:
        if (statement := find_statement(call.ctx, handle)) is not None:
            return SCHEMAS[statement.action]
        point_query = _point_query(call, handle)
        if point_query is not None:
            with (slot := self._slot(call)):
                deadline = query_deadline(call.ctx)
                opened = await self._in_thread(slot, deadline, open_point_query, call.ctx, point_query)
            if opened is not None:
                call.record_tables(PLAN, (point_query.table,))
                return opened.schema
        return (await self.plan(call, handle)).schema

    async def plan(self, call: Call, handle: QueryHandle, *, has_values: bool = True) -> RemoteQuery:
        """Plan a query that is not run. Raises what planning raises."""
        parameters = handle.parameters if has_values else None
        with self._slot(call):
            return await self._start_remotely(call, handle, PLAN, query_deadline(call.ctx), parameters=parameters)

    async def _start_remotely(
        self, call: Call, handle: QueryHandle, operation: str, deadline: Deadline, **options: Any
    ) -> RemoteQuery:
        """Start a query in a process of its own, and record its tables. Raises what planning raises."""
        ctx = structs.replace(call.ctx, database=Id(handle.database))
        processes = ctx.services.sql_processes
        if processes is None:
            raise UnsupportedOperationError("This server runs no SQL.")
        query = RemoteQuery(
            processes, query_request(ctx, handle.query, handle.namespace, **options), deadline.check_start
        )
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, query.start)
        except asyncio.CancelledError:
            query.kill()  # the thread that starts it closes it
            raise
        finally:
            call.record_tables(operation, query.tables)
            note_decisions(call.ctx, query)
        return query

    async def start(self, call: Call, handle: QueryHandle) -> SubmittedQuery:
        """Plan and start a query. Raises HttpError 429 and what planning raises."""
        slot = self._slot(call)
        with slot:
            deadline = query_deadline(call.ctx)
            started = await self._answer_point_query(call, handle, slot, deadline)
            if started is None and (statement := find_statement(call.ctx, handle)) is not None:
                started = await self._start_statement(call, handle, statement, slot)
                deadline = Deadline.start(MAX_STATEMENT_SECONDS, "statement")
            if started is None:
                options = {"form": Form.FLIGHT, "parameters": handle.parameters}
                started = await self._start_remotely(call, handle, EXECUTE, deadline, **options)
            query = SubmittedQuery(call.ctx, handle, started, deadline, self._threads)
            query.when_ended(lambda _: slot.release())
            slot.keep()
        self._queries.add(query)
        return query

    async def _start_statement(
        self, call: Call, handle: QueryHandle, statement: ViewStatement, slot: _Slot
    ) -> StartedQuery:
        """Call the operation of a statement on a materialized view, and record it, as by HTTP. Raises what it raises,
        and ServiceUnavailableError where it cannot be recorded.
        """
        running = RunningStatement(call.ctx, statement, Id(handle.database))
        call.record_operation(running.operation, running.tables)
        try:
            await self._in_thread(slot, query_deadline(call.ctx), running.start)
            await call.write_record()
        except BaseException:
            running.kill()
            asyncio.get_running_loop().run_in_executor(self._threads, running.close)
            raise
        return running

    async def _answer_point_query(
        self, call: Call, handle: QueryHandle, slot: _Slot, deadline: Deadline
    ) -> StartedQuery | None:
        """Answer a point query here, without a process; return None for any other query.

        Raises DeadlineExceededError.
        """
        point_query = _point_query(call, handle)
        if point_query is None:
            return None
        ctx = deadline.apply_to(call.ctx)
        answered: AnsweredQuery | None = await self._in_thread(slot, deadline, _read, ctx, point_query)
        if answered is not None:
            call.record_tables(EXECUTE, answered.tables)
        return answered

    async def _in_thread(self, slot: _Slot, deadline: Deadline, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function that reads a table in a thread, which holds the slot until it has ended.

        Raises DeadlineExceededError, and what the function raises.
        """
        running = asyncio.get_running_loop().run_in_executor(slot.pool, function, *arguments)
        try:
            await asyncio.wait([running], timeout=max(0.0, deadline.remaining))
        finally:
            if not running.done():
                slot.keep()
                running.add_done_callback(lambda _: slot.release())
        if not running.done():
            raise deadline.exceeded()
        return running.result()

    def _slot(self, call: Call) -> _Slot:
        """Acquire the slot of a query. Raises HttpError 429."""
        slot = self._shared.limits.acquire_slot(call.ctx, call.address)
        return _Slot(slot, executor_for(self._pool, call.ctx, call.address))


class _Slot:
    """The slot of a query: released at the end of the block, unless the query keeps it."""

    def __init__(self, slot: QuerySlot | None, pool: Executor) -> None:
        """`pool` has the threads of the query's principal."""
        self._slot = slot
        self.pool = pool
        self._is_kept = False

    def __enter__(self) -> None:
        """Do nothing: it was acquired."""

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self.release()

    def keep(self) -> None:
        """Leave it to `release`."""
        self._is_kept = True

    def release(self) -> None:
        """Free the slot."""
        if self._slot is not None:
            self._slot.release()


def query_deadline(ctx: Context) -> Deadline:
    """Start the deadline of a query."""
    return Deadline.start(ctx.settings.query_timeout or UNLIMITED_SECONDS, "query")


def _point_query(call: Call, handle: QueryHandle) -> PointQuery | None:
    """Return the point query that a query is, if any. Raises InvalidInputError."""
    if len(handle.query) > call.ctx.settings.sql_max_length:
        return None
    return parse_point_query(handle.query, Id(handle.namespace), Id(handle.database), handle.parameters)


def _read(ctx: Context, query: PointQuery) -> AnsweredQuery | None:
    """Return the rows of a point query as FlightData; None where it is left to DataFusion."""
    opened = open_point_query(ctx, query)
    batches = None if opened is None else opened.read(ctx)
    if opened is None or batches is None:
        return None
    encoder = BatchEncoder(opened.schema)
    messages = [encode_schema(opened.schema)]
    messages += [b"".join(parts) for batch in batches for parts in encoder.encode(batch)]
    return AnsweredQuery(opened.schema, (query.table,), (opened.grounds,), messages)
