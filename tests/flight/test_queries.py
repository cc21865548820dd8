"""How many rows of ended queries, and how many ended queries, a process keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tiltyard.flight import queries
from tiltyard.flight.queries import Queries, QueryState


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
