"""How many rows of ended queries, and how many ended queries, a process keeps."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tiltyard.api.deadlines import Deadline, DeadlineExceededError
from tiltyard.flight import queries, service
from tiltyard.flight.messages import MESSAGES
from tiltyard.flight.queries import AnsweredQuery, Queries, QueryState, SubmittedQuery
from tiltyard.flight.query_messages import join_messages
from tiltyard.flight.query_starter import QueryStarter, _Slot
from tiltyard.flight.service import FlightService


class EndedQuery:
    """A query as far as Queries knows it, which ends when it is told to."""

    def __init__(self, name: str, size: int) -> None:
        self.handle = SimpleNamespace(id=name)
        self.deadline = SimpleNamespace(remaining=60.0)
        self.principal = "ann"
        self.state = QueryState.RUNNING
        self.unread_bytes = 0
        self._size = size
        self._call: Callable[[Any], None] = lambda _: None

    def when_ended(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def end(self) -> None:
        self.state, self.unread_bytes = QueryState.FINISHED, self._size
        self._call(self)

    def drop_unread(self) -> int:
        dropped, self.unread_bytes = self.unread_bytes, 0
        return dropped


async def _run(kept: Queries, sizes: list[int]) -> list[Any]:
    added: list[Any] = [EndedQuery(str(number), size) for number, size in enumerate(sizes)]
    for query in added:
        kept.add(query)
    for query in added:
        query.end()
    return added


def test_rows_of_the_queries_that_ended_first_are_let_go() -> None:
    added = asyncio.run(_run(Queries(100), [60, 30, 50, 0, 40]))
    assert [query.unread_bytes for query in added] == [0, 0, 50, 0, 40]


def test_no_more_ended_queries_are_described_than_the_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(queries, "MAX_ENDED", 3)
    kept = Queries(100)
    asyncio.run(_run(kept, [1, 1, 1]))
    asyncio.run(_run(kept, [1]))  # named like the first
    reader: Any = SimpleNamespace(principal=SimpleNamespace(name="ann"))
    later: Any = EndedQuery("later", 1)

    async def add() -> None:
        kept.add(later)

    asyncio.run(add())
    known = [name for name in ("0", "1", "2", "later") if kept.find(SimpleNamespace(id=name), reader)]  # type: ignore[arg-type]
    assert known == ["1", "2", "later"]


class ProducedQuery:
    """A query as far as RunningQuery uses it, whose rows come, and whose end comes, when they are let through."""

    schema = pa.schema([])
    quiet_schema = pa.schema([("kind", pa.dictionary(pa.int32(), pa.string())), ("n", pa.decimal128(9, 2))])
    tables = grounds = first_messages = ()
    has_ended = False

    def __init__(self) -> None:
        self.rows, self.end = threading.Event(), threading.Event()
        self.messages = [b"rows"]

    def let_through(self) -> None:
        self.rows.set()
        self.end.set()

    def receive(self) -> list[bytes]:
        if self.messages:
            self.rows.wait(60)
            return [self.messages.pop(0)]
        self.end.wait(60)
        self.has_ended = True
        return []


async def _read_to_its_end() -> tuple[SubmittedQuery, weakref.ref[AnsweredQuery], list[bytes | None]]:
    ctx: Any = SimpleNamespace(
        principal=SimpleNamespace(name="ann"), settings=SimpleNamespace(max_result_bytes=0, send_timeout=60)
    )
    answered = AnsweredQuery(pa.schema([]), (), (), [b"rows"])
    with ThreadPoolExecutor(1) as pool:
        handle: Any = SimpleNamespace(id="one")
        query = SubmittedQuery(ctx, handle, answered, Deadline.start(60, "query"), pool)
        return query, weakref.ref(answered), [message async for message in query.messages(60)]


def test_query_that_was_read_to_its_end_keeps_no_rows_and_is_kept_by_no_timer() -> None:
    query, answered, messages = asyncio.run(_read_to_its_end())
    assert messages == [b"rows"]
    assert answered() is None
    assert query._expiry.cancelled()


async def _states_while_it_runs() -> list[Any]:
    ctx: Any = SimpleNamespace(
        principal=SimpleNamespace(name="ann"), settings=SimpleNamespace(max_result_bytes=0, send_timeout=60)
    )
    produced: Any = ProducedQuery()
    with ThreadPoolExecutor(1) as pool:
        query = SubmittedQuery(ctx, SimpleNamespace(id="one"), produced, Deadline.start(60, "query"), pool)  # type: ignore[arg-type]
        await query.wait_rows(0.01)
        states: list[Any] = [(query.state, query.unread_bytes)]
        produced.rows.set()
        await query.wait_rows(60)
        states.append(query.state)
        produced.end.set()
        await query.wait_ended(60)
        return [*states, (query.state, query.unread_bytes)]


def test_first_rows_are_waited_for_before_the_end() -> None:
    states = asyncio.run(_states_while_it_runs())
    assert states == [(QueryState.RUNNING, 0), QueryState.RUNNING, (QueryState.FINISHED, 4)]


async def _releases_of_a_late_read() -> list[bool]:
    end, released = threading.Event(), asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        owner: Any = SimpleNamespace()
        slot = _Slot(SimpleNamespace(release=released.set), pool)  # type: ignore[arg-type]
        with slot, pytest.raises(DeadlineExceededError):
            await QueryStarter._in_thread(owner, slot, Deadline.start(0.01, "query"), end.wait, 60)
        releases = [released.is_set()]
        end.set()
        await asyncio.wait_for(released.wait(), 60)
        return [*releases, released.is_set()]


def test_point_query_beyond_its_time_holds_its_slot_until_its_thread_has_ended() -> None:
    assert asyncio.run(_releases_of_a_late_read()) == [False, True]


async def _messages_of_a_quiet_query() -> list[bytes]:
    produced: Any = ProducedQuery()
    produced.schema = produced.quiet_schema
    produced.messages = [b"schema", b"rows"]
    ctx: Any = SimpleNamespace(
        principal=SimpleNamespace(name="ann"), settings=SimpleNamespace(max_result_bytes=0, send_timeout=60)
    )
    seen = []
    with ThreadPoolExecutor(1) as pool:
        query = SubmittedQuery(ctx, SimpleNamespace(id="one"), produced, Deadline.start(60, "query"), pool)  # type: ignore[arg-type]
        call: Any = SimpleNamespace(on_first_byte=lambda: None)
        async for message in FlightService._stream(SimpleNamespace(), call, query):  # type: ignore[arg-type]
            seen.append(message)
            if len(seen) == 5:  # the schema, and two batches, each behind the dictionary of its column
                produced.let_through()
    return seen


def test_quiet_query_sends_its_schema_once_and_then_batches_without_rows(monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "QUIET_SECONDS", 0.01)
    first, *batches, last = asyncio.run(_messages_of_a_quiet_query())
    assert last == b"rows", "the query's own schema is not sent again"
    stream = join_messages([MESSAGES["FlightData"].FromString(message) for message in (first, *batches)])
    table = pa.ipc.open_stream(stream).read_all()
    assert (table.num_rows, table.schema, len(batches)) == (0, ProducedQuery.quiet_schema, 4)
