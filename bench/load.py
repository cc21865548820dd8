"""The load generator: keep-alive connections that send prepared requests, one after the other, and check each answer.

Both servers get the same one: one process, one thread, uvloop and httptools. It says how busy it was itself, since
a generator at its limit would flatter the slower server.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import httptools
import uvloop

DRAIN_SECONDS = 60.0
Lanes: TypeAlias = Iterator[bytes] | Sequence[Iterator[bytes]]
"""Requests that all connections share, or those of each connection: what has to come in order stays in order."""
NO_ANSWER = 0
"""Stands for a status where the connection broke, or no answer came within DRAIN_SECONDS."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Load:
    """Duration and number of connections; requests of the first `warm_up` seconds do not count.

    With `count` it sends that many requests instead, however long that takes.
    """

    connections: int = 32
    seconds: float = 4.0
    warm_up: float = 0.5
    count: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one round. Latencies are those of requests that started in time, however late they ended."""

    rate: float
    p50: float
    p99: float
    longest: float
    failures: Counter[int]
    succeeded: int
    busy: float

    @property
    def failed(self) -> int:
        """Requests that were not answered with a success."""
        return self.failures.total()


class _Run:
    """The shared state of the connections of one round."""

    def __init__(self, load: Load) -> None:
        self._left: int | None = load.count or None
        self.begin = time.perf_counter() + (0 if load.count else load.warm_up)
        self.end = float("inf") if load.count else self.begin + load.seconds
        self.latencies: list[float] = []
        self.failures: Counter[int] = Counter()
        self.in_time = 0
        self.succeeded = 0
        self.last = self.begin

    def next(self, lane: Iterator[bytes]) -> bytes | None:
        """The next request to send, None when it is time to stop."""
        if self._left is not None:
            if not self._left:
                return None
            self._left -= 1
        elif time.perf_counter() >= self.end:
            return None
        return next(lane, None)

    def answered(self, started_at: float, status: int) -> None:
        """Count an answer."""
        now = time.perf_counter()
        if 200 <= status < 300:
            self.succeeded += 1
            if self.begin <= now < self.end:
                self.in_time += 1
                self.last = now
        else:
            self.failures[status] += 1
        if self.begin <= started_at:
            self.latencies.append(now - started_at)


class _Connection(asyncio.Protocol):
    """One connection: sends, waits for the answer, sends again; `left` is done when nothing more is to be sent."""

    def __init__(self, run: _Run, lane: Iterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._lane = lane
        self._begun: float | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.left: asyncio.Future[bool] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP gives this kind
        self._send()

    def _send(self) -> None:
        request = self._run.next(self._lane)
        if request is None:
            self._leave(stop=True)
            return
        self._begun = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """An answer is here whole."""
        started_at, self._begun = self._begun, None
        if started_at is not None:
            self._run.answered(started_at, self._parser.get_status_code())
        if self._parser.should_keep_alive():
            self._send()
        else:
            self._leave(stop=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_up()
        self._leave(stop=False)

    def give_up(self) -> None:
        """Count the request under way, if there is one, as not answered."""
        started_at, self._begun = self._begun, None
        if started_at is not None:
            self._run.answered(started_at, NO_ANSWER)

    def _leave(self, *, stop: bool) -> None:
        self._transport.close()
        if not self.left.done():
            self.left.set_result(stop)


async def _keep_sending(address: Address, run: _Run, lane: Iterator[bytes], deadline: float) -> None:
    """One caller: connects again whenever the server closed its connection."""
    loop = asyncio.get_running_loop()
    stop = False
    while not stop:
        _, connection = await loop.create_connection(lambda: _Connection(run, lane, loop), address.host, address.port)
        try:
            async with asyncio.timeout_at(deadline):
                stop = await connection.left
        except TimeoutError:
            connection.give_up()
            return
        if time.perf_counter() >= run.end:
            return


async def _drive(address: Address, requests: Lanes, load: Load) -> Measured:
    run = _Run(load)
    lanes = requests if isinstance(requests, Sequence) else [requests] * load.connections
    limit = load.seconds + load.warm_up + DRAIN_SECONDS if not load.count else 3600.0
    deadline = asyncio.get_running_loop().time() + limit
    started, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_keep_sending(address, run, lane, deadline) for lane in lanes))
    busy = (time.process_time() - busy) / (time.perf_counter() - started)
    window = load.seconds if not load.count else max(run.last - run.begin, 1e-9)
    ordered = sorted(run.latencies)
    p50, p99, longest = (_at(ordered, share) for share in (0.5, 0.99, 1.0))
    return Measured(run.in_time / window, p50, p99, longest, run.failures, run.succeeded, busy)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def drive(address: Address, requests: Lanes, load: Load) -> Measured:
    """Put a load on a server and measure it; several lanes are one for each connection. Garbage collection waits."""
    return drive_together(address, [(requests, load)])[0]


async def _drive_together(address: Address, loads: Sequence[tuple[Lanes, Load]]) -> list[Measured]:
    return await asyncio.gather(*(_drive(address, requests, load) for requests, load in loads))


def drive_together(address: Address, loads: Sequence[tuple[Lanes, Load]]) -> list[Measured]:
    """Put several loads on a server at the same time, and measure each."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_drive_together(address, loads))
    finally:
        gc.enable()


def words(measured: Sequence[Measured]) -> str:
    """Rate, p50 and p99 of some rounds, medians, and how many requests failed."""
    rate, p50, p99 = (median(getattr(one, name) for one in measured) for name in ("rate", "p50", "p99"))
    failed = sum(one.failed for one in measured)
    return f"{rate:,.0f}/s, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms" + (f", {failed} failed" if failed else "")
