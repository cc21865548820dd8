"""Queries that run in this process: started by their submission, read once, and ended by their deadline.

A query runs ahead of its reader by some megabytes of encoded rows, and then waits (backpressure). Its deadline counts
from its submission and includes its reading, so that a result nobody reads frees its memory, its session and its slot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from tiltyard.api.bodies.arrow_responses import ResponseTooLargeError
from tiltyard.api.errors import clear_tracebacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from concurrent.futures import Executor

    from tiltyard.api.deadlines import Deadline
    from tiltyard.context import Context
    from tiltyard.flight.handles import QueryHandle
    from tiltyard.model.ids import Id
    from tiltyard.sql.read_grounds import ReadGrounds

AHEAD_BYTES = 8 << 20
"""Bytes of encoded rows that a query holds for its reader."""
MAX_ENDED = 1_000
"""Ended queries whose state can still be described."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0
"""How long it is waited until a statement is asked again whether its job has ended."""
UNLIMITED_SECONDS = 3600.0
"""How long a query is kept where `query_timeout` is 0."""

log = logging.getLogger("tiltyard.flight")


class QueryState(StrEnum):
    """What a query is doing."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class QueryCancelledError(InvalidInputError):
    """The query was cancelled."""


class StartedQuery(Protocol):
    """A query as it was started: in a process, or answered already. `RemoteQuery` says what its members are."""

    schema: pa.Schema
    tables: tuple[Id, ...]
    grounds: tuple[ReadGrounds, ...]
    first_messages: Sequence[bytes]

    @property
    def has_ended(self) -> bool: ...

    def receive(self) -> list[bytes]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class AnsweredQuery:
    """A query whose rows were all read when it was started."""

    has_ended = True

    def __init__(
        self, schema: pa.Schema, tables: tuple[Id, ...], grounds: tuple[ReadGrounds, ...], messages: Sequence[bytes]
    ) -> None:
        self.schema = schema
        self.grounds = grounds
        self.tables = tables
        self.first_messages = messages

    def receive(self) -> list[bytes]:
        return []

    def kill(self) -> None:
        """Do nothing: it has ended."""

    def close(self) -> None:
        """Do nothing, likewise."""


ENDED = AnsweredQuery(pa.schema([]), (), (), ())
"""What is left of a query that has ended, for those who stop it."""


class SubmittedQuery:
    """A query that was started. Its methods run on the event loop."""

    def __init__(
        self, ctx: Context, handle: QueryHandle, query: StartedQuery, deadline: Deadline, pool: Executor
    ) -> None:
        """`query` was started; `pool` has the threads that wait for its process."""
        self.handle = handle
        self.ctx = ctx
        self.principal = ctx.principal.name
        self.schema = query.schema
        self.paths = query.tables
        self.grounds = query.grounds
        self.state = QueryState.RUNNING
        self.error: BaseException | None = None
        self.is_read = False
        self.deadline = deadline
        self.expires_at = time.time() + deadline.remaining
        self._query = query
        self._pool = pool
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._sent_bytes = 0
        self._changed = asyncio.Event()
        self._has_rows = asyncio.Event()
        """Set once the first of its rows have come, or it has ended without any."""
        self._has_ended = False
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(0.0, deadline.remaining), self.drop_unread)
        """Until then its rows wait for their reader. The loop holds what it is to call later, so it is cancelled."""
        self._task = loop.create_task(self._run())

    def when_ended(self, call: Callable[[SubmittedQuery], None]) -> None:
        """Call a function once the query's process is free, whatever came of it."""
        self._task.add_done_callback(lambda _: call(self))

    async def wait_rows(self, seconds: float) -> None:
        """Wait until the first rows have come, or the query has ended, up to some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_rows.wait()

    async def wait_ended(self, seconds: float) -> None:
        """Wait until the query has ended, up to some seconds."""
        await asyncio.wait([self._task], timeout=seconds)

    def cancel(self) -> None:
        """Stop the query. Idempotent, and without effect on one that has ended."""
        if self.state is QueryState.RUNNING:
            self.state = QueryState.CANCELLED
            self._query.kill()
            self._task.cancel()

    def end_with(self, error: BaseException) -> None:
        """End the query by an error, and let go of its rows: nothing more of it may be handed over."""
        self._query.kill()
        self._task.cancel()
        self._fail(error)
        self._messages.clear()
        self._bytes = 0
        self._notify()

    @property
    def has_rows(self) -> bool:
        """Whether the first rows have come, or the query has ended."""
        return self._has_rows.is_set()

    async def messages(self, quiet_seconds: float) -> AsyncIterator[bytes | None]:
        """Yield the rows as FlightData, behind their schema; once. None says that nothing came for `quiet_seconds`.

        Raises what has ended the query, if it failed, QueryCancelledError.
        """
        self.is_read = True
        self._expiry.cancel()
        while True:
            while self._messages:
                message = self._messages.popleft()
                self._bytes -= len(message)
                self._notify()
                yield message
            if self.state is QueryState.CANCELLED:
                raise QueryCancelledError("The query was cancelled.")
            if self.error is not None:
                raise self.error
            if self._has_ended:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(quiet_seconds):
                    await self._changed.wait()
            if not self._changed.is_set():
                yield None

    def _notify(self) -> None:
        self._changed.set()

    async def _run(self) -> None:
        """Run the query to its end, into the messages; then wait until its process is free."""
        try:
            async with asyncio.timeout(self.deadline.remaining):
                await self._produce()
            self.state = QueryState.FINISHED
        except TimeoutError:
            self._fail(self.deadline.exceeded())
        except asyncio.CancelledError:
            if self.error is None:
                self.state = QueryState.CANCELLED
        except Exception as error:  # noqa: BLE001  # its reader raises it
            self._fail(error)
        if self.state is not QueryState.FINISHED:
            self._query.kill()
            self._messages.clear()
            self._bytes = 0
        self._has_ended = True
        self._has_rows.set()
        self._notify()
        if not self._query.has_ended:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._query.close)
        self._query = ENDED  # it has its first rows, and those of a point query all, until it goes

    def _fail(self, error: BaseException) -> None:
        clear_tracebacks(error)
        self.state = QueryState.FAILED
        self.error = error
        if not isinstance(error, LanceNamespaceError):
            log.debug("query %s failed: %s", self.handle.id, error)

    async def _produce(self) -> None:
        """Take the rows from the query's process, and wait where the reader is slow."""
        loop = asyncio.get_running_loop()
        for message in self._query.first_messages:
            await self._put(message)
        pause = MIN_PAUSE_SECONDS
        while not self._query.has_ended:
            messages = await loop.run_in_executor(self._pool, self._query.receive)
            for message in messages:
                await self._put(message)
            if not (messages or self._query.has_ended):  # a statement's job goes on
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _put(self, message: bytes) -> None:
        limit = self.ctx.settings.max_result_bytes
        self._sent_bytes += len(message)
        if limit and self._sent_bytes > limit:
            raise ResponseTooLargeError(limit)
        while self._messages and self._bytes + len(message) > AHEAD_BYTES:
            self._changed.clear()
            await self._wait_for_reader()
        self._messages.append(message)
        self._bytes += len(message)
        self._has_rows.set()
        self._notify()

    async def _wait_for_reader(self) -> None:
        seconds = self.ctx.settings.send_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            message = f"Nothing of the query's rows was read for {seconds:g} s (send_timeout), so it was stopped."
            raise ServiceUnavailableError(message) from None

    def drop_unread(self) -> int:
        """Let go of rows that were not read yet; return their bytes."""
        dropped = self._bytes
        if not self.is_read:
            self.is_read = True
            self._messages.clear()
            self._bytes = 0
        return dropped

    @property
    def unread_bytes(self) -> int:
        """The bytes of an ended query's rows that wait for their reader."""
        return 0 if self.is_read or not self._has_ended else self._bytes


class Queries:
    """The queries of this process by id: those that run, and the last ones that have ended."""

    def __init__(self, kept_bytes: int) -> None:
        """`kept_bytes` is how many bytes of rows ended queries may hold together for their readers."""
        self._kept_bytes = kept_bytes
        self._queries: dict[str, SubmittedQuery] = {}
        self._unread: list[SubmittedQuery] = []
        """Those that ended before their rows were read, in the order of their ends; some were read since."""

    def add(self, query: SubmittedQuery) -> None:
        """Keep a query, and let go of the oldest that have ended where there are many."""
        self._queries[query.handle.id] = query
        query.when_ended(self._limit_kept)
        excess = len(self._queries) - MAX_ENDED
        for old in list(islice(self._queries.values(), max(0, excess))):
            if old.state is not QueryState.RUNNING:
                del self._queries[old.handle.id]

    def find(self, handle: QueryHandle, ctx: Context) -> SubmittedQuery | None:
        """Return the caller's query of this handle, None for one that this process does not know as its own."""
        query = self._queries.get(handle.id)
        return query if query is not None and query.principal == ctx.principal.name else None

    def take_unread(self, handle: QueryHandle, ctx: Context) -> SubmittedQuery | None:
        """Return the caller's query if its rows can still be read. Raises QueryCancelledError."""
        query = self.find(handle, ctx)
        if query is not None and query.state is QueryState.CANCELLED:
            raise QueryCancelledError("The query was cancelled.")
        return None if query is None or query.is_read else query

    def _limit_kept(self, ended: SubmittedQuery) -> None:
        """Let go of the rows of the queries that ended first, where all together hold too many."""
        self._unread = [query for query in (*self._unread, ended) if query.unread_bytes]
        excess = sum(query.unread_bytes for query in self._unread) - self._kept_bytes
        for query in self._unread:
            if excess <= 0:
                break
            excess -= query.drop_unread()

    def cancel_all(self) -> None:
        """Stop all queries."""
        for query in self._queries.values():
            query.cancel()
