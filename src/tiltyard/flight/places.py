"""The calls that a process answers at once: so many of each caller, and fewer that have not sent their message yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, ThrottlingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAX_CALLS = 512
"""Calls that one process answers at once."""
MAX_CALLS_OF_CALLER = MAX_CALLS // 4
"""The same of one principal, or of one address where callers are not authenticated."""
MAX_WAITING = 64
"""Calls whose message has not come yet, and may be in memory in part; beyond it the oldest ends for a new one."""


class CallPlaces:
    """The calls of one process. Belongs to its event loop."""

    def __init__(self, message_seconds: float) -> None:
        """`message_seconds` is how long a call's message may take to come."""
        self._message_seconds = message_seconds
        self._by_caller: Counter[str] = Counter()
        self._waiting: dict[asyncio.Timeout, object] = {}
        """The connections that messages are waited for from, in the order in which the calls began."""

    @contextmanager
    def take(self, caller: str) -> Iterator[None]:
        """Take a place for a caller's call during the block. Raises ThrottlingError."""
        if self._by_caller[caller] >= MAX_CALLS_OF_CALLER:
            raise ThrottlingError(f"{MAX_CALLS_OF_CALLER} calls of yours are being answered: try again in a moment.")
        if self._by_caller.total() >= MAX_CALLS:
            raise ThrottlingError(f"{MAX_CALLS} calls are being answered already: try again in a moment.")
        self._by_caller[caller] += 1
        try:
            yield
        finally:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]

    @asynccontextmanager
    async def wait_for_message(self, connection: object) -> AsyncIterator[None]:
        """Bound the time of the block, which reads a message from a connection.

        Where many wait, the oldest ends of the connection that has the most. Raises InvalidInputError, ThrottlingError.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._message_seconds
        try:
            async with asyncio.timeout_at(ends_at) as timeout:
                self._waiting[timeout] = connection
                try:
                    if len(self._waiting) > MAX_WAITING:
                        self._end_oldest(loop.time())
                    yield
                finally:
                    self._waiting.pop(timeout, None)
        except TimeoutError:
            if loop.time() < ends_at:
                raise ThrottlingError("Too many calls wait for their message: try again in a moment.") from None
            message = f"The call's message took more than {self._message_seconds:g} s to come."
            raise InvalidInputError(message) from None

    def _end_oldest(self, now: float) -> None:
        """End the call that waits longest of the connection from which most do."""
        ((most, _),) = Counter(self._waiting.values()).most_common(1)
        oldest = next(timeout for timeout, connection in self._waiting.items() if connection is most)
        del self._waiting[oldest]  # it is woken later, and must not be ended twice
        if not oldest.expired():  # one whose time is over ends by itself
            oldest.reschedule(now)
