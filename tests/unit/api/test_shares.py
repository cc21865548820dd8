"""Shares of searches that other servers spread: threads of their own, and no slot."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tiltyard.api.execution.forwarding import MAX_REPEATS, REPEATED_SHARE, Repeats
from tiltyard.api.execution.query import QueryExecution
from tiltyard.config import Settings
from tiltyard.context import Context


def test_a_share_runs_while_all_threads_of_queries_wait_for_others() -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a share takes no slot: its query has one, on the server that spreads it")

    exchange: Any = SimpleNamespace(
        body=b"{}",
        segments=("one",),
        log=SimpleNamespace(address=""),
        deadline=None,
        headers={},
        is_head=False,
        watch_client=lambda: None,
    )
    handler: Any = SimpleNamespace(function=lambda ctx, request: ctx.segments)
    ctx = Context(SimpleNamespace(decisions=None))  # type: ignore[arg-type]  # as far as it is used
    limits: Any = SimpleNamespace(acquire_slot=refuse)
    done = threading.Event()
    with ThreadPoolExecutor(1) as queries, ThreadPoolExecutor(1) as shares:
        queries.submit(done.wait)
        authorization: Any = None  # an administrator needs none
        execution = QueryExecution(handler, (queries, shares), Settings(), limits, authorization)
        try:
            assert asyncio.run(asyncio.wait_for(execution.run(exchange, ctx, None), 10)) == ("one",)
        finally:
            done.set()


def test_a_share_of_those_that_are_answered_may_be_asked_of_others_and_a_few_at_once() -> None:
    repeats = Repeats()
    assert sum(repeats.take() for _ in range(3 * MAX_REPEATS)) == MAX_REPEATS
    for _ in range(int(2.5 / REPEATED_SHARE)):
        repeats.note_answer()
    assert sum(repeats.take() for _ in range(3 * MAX_REPEATS)) == 2
    for _ in range(int(9 * MAX_REPEATS / REPEATED_SHARE)):
        repeats.note_answer()
    assert sum(repeats.take() for _ in range(3 * MAX_REPEATS)) == MAX_REPEATS
