"""What strikes servers while clients call them: kills, suspensions, clocks that are set, lost answers of S3."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.services.proxy import Proxy
from tests.services.server import ServerProcess
from tests.services.skewed_clock import SkewedServer

CLOCKS = (-86_400, -120, -2, 0, 2, 120, 86_400)
"""By how many seconds clocks are wrong."""
MAX_SUSPENDED_SECONDS = 2.5
"""Longer than the leases of these tests."""


@dataclass(frozen=True, slots=True)
class Disturber:
    """Strikes servers, or one of the processes of one, and the way to their object store."""

    servers: Sequence[ServerProcess]
    storage: Proxy | None = None

    def disturb(self, source: random.Random, seconds: float) -> None:
        """Strike every half second or so, and leave all as it was but the clocks."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(source.uniform(0.2, 0.8))
            source.choice(self._ways())(source)
        if self.storage is not None:
            self.storage.mend()

    def _ways(self) -> list[Callable[[random.Random], None]]:
        ways = [self._kill, self._suspend]
        if any(isinstance(server, SkewedServer) for server in self.servers):
            ways.append(self._set_clock)
        return ways + [self._lose_answers] * 3 if self.storage is not None else ways

    def _kill(self, source: random.Random) -> None:
        """Kill a server and start it again, or one of its processes, which it starts again itself."""
        server = source.choice(self.servers)
        if "--workers" in server.flags:
            _signal(source.choice(server.workers or [0]), signal.SIGKILL)
        else:
            server.kill()
            server.start()

    def _suspend(self, source: random.Random) -> None:
        server = source.choice(self.servers)
        process = source.choice((server.workers if "--workers" in server.flags else []) or [server.process.pid])
        _signal(process, signal.SIGSTOP)
        time.sleep(source.uniform(0.1, MAX_SUSPENDED_SECONDS))
        _signal(process, signal.SIGCONT)

    def _set_clock(self, source: random.Random) -> None:
        server = source.choice([server for server in self.servers if isinstance(server, SkewedServer)])
        server.set_clock(source.choice(CLOCKS))

    def _lose_answers(self, source: random.Random) -> None:
        assert self.storage is not None
        for _ in range(source.randint(1, 3)):
            self.storage.lose(b"PUT ")


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it was killed, and its successor has another id
        if process:
            os.kill(process, number)
