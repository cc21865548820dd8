"""Outcomes of other threads, on their way to the event loop: those that come together wake it once."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any


class Arrivals:
    """What has come and was not handed on yet. Belongs to one event loop; outcomes may come from any thread."""

    def __init__(self) -> None:
        self._come: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._due = False

    async def of(self, future: Future[Any]) -> Any:
        """The outcome of a future. Raises what it raises."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._arrived, answer))
        return await answer

    def _arrived(self, answer: asyncio.Future[Any], done: Future[Any]) -> None:
        self._come.append((answer, done))
        if self._due:  # `_hand_on` takes this back before it looks, so nothing is left lying
            return
        self._due = True
        loop = answer.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._hand_on)

    def _hand_on(self) -> None:
        self._due = False
        while self._come:
            answer, done = self._come.popleft()
            if answer.done():  # its caller has left
                continue
            if error := done.exception():
                answer.set_exception(error)
            else:
                answer.set_result(done.result())
