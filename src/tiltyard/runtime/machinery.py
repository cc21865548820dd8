"""Count the machinery of a process: caches, batchers and queues, pools of threads, kinds of child processes.

Each is made where it is used, with a name and a line of purpose, as a `Cache`, `Batcher`, `Pool` or `ChildProcess`, or
as what extends `Machine`. The registry has all that live, for /metrics, the console's page of the server, and the end
of the process; `scripts/make_machinery.py` writes the table of docs/architecture.md from the code that makes them.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from abc import ABCMeta, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

log = logging.getLogger("tiltyard")


class Kind(StrEnum):
    """What a piece of machinery is."""

    CACHE = "cache"
    POOL = "pool"
    BATCHER = "batcher"
    CHILD = "child process"


class MachineFigures(msgspec.Struct):
    """The pieces of one kind and name in a process: how many there are, and the sums of their figures.

    Figures are `size` and `bound` (bytes where `unit` says so, else entries, threads or processes), `hits` and `misses`
    since the start, `waiting` and `active`; each piece has those that it can tell.
    """

    kind: str
    name: str
    purpose: str
    unit: str
    pieces: int
    figures: dict[str, float]


class _Registered(ABCMeta):
    """Registers a piece once it is whole: a reader of figures may come at any time."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        machine = super().__call__(*args, **kwargs)
        with _lock:
            _machines.add(machine)
        return machine


class Machine(metaclass=_Registered):
    """A piece of machinery, registered as long as it lives."""

    kind: ClassVar[Kind]
    unit = "entries"

    def __init__(self, name: str, purpose: str) -> None:
        """`name` is of one place in the code; what several objects make there, counts together."""
        self.name = name
        self.purpose = purpose

    @abstractmethod
    def figures(self) -> Mapping[str, float]:
        """Return the figures of this piece, as `MachineFigures` has them."""

    @abstractmethod
    def close(self) -> None:
        """Begin nothing more, and drop what is held. Idempotent."""


_machines: weakref.WeakSet[Machine] = weakref.WeakSet()
_lock = threading.Lock()


def _forget_parents() -> None:
    """Let a forked process have none of its parent's machinery: its threads and child processes are the parent's."""
    global _lock  # noqa: PLW0603  # another thread may have held it
    _lock = threading.Lock()
    _machines.clear()


os.register_at_fork(after_in_child=_forget_parents)


def machines() -> list[Machine]:
    """Return all machinery of this process that lives."""
    with _lock:
        return list(_machines)


def read_figures() -> list[MachineFigures]:
    """Return the figures of this process's machinery, by kind and name."""
    found: dict[tuple[str, str], MachineFigures] = {}
    for machine in machines():
        key = machine.kind, machine.name
        total = found.get(key)
        if total is None:
            total = found[key] = MachineFigures(*key, machine.purpose, machine.unit, 0, {})
        total.pieces += 1
        for figure, number in machine.figures().items():
            total.figures[figure] = total.figures.get(figure, 0) + number
    return [found[key] for key in sorted(found)]


def close_machinery(pieces: Iterable[Machine] | None = None) -> None:
    """Close all machinery of this process, which ends: child processes first, what they and threads use afterwards.

    A piece that cannot be closed is logged, and keeps no other from it.
    """
    order = list(reversed(Kind))
    for machine in sorted(machines() if pieces is None else pieces, key=lambda each: order.index(each.kind)):
        try:
            machine.close()
        except Exception:
            log.exception("the %s '%s' could not be closed", machine.kind, machine.name)


class Counts:
    """How many events of each name there were since the process started. Safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[name] += 1

    def read(self) -> dict[str, int]:
        """Return the counts by name."""
        with self._lock:
            return dict(self._counts)
