"""Bound what the running queries of a process hold together: places, and memory.

Memory is bounded by estimates made before they run, or, of SQL, by what the process of each is seen to have.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, ThrottlingError

from tiltyard.runtime.pool import RESERVED_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable


def allow(principal: str, size: int) -> None:
    """Refuse nothing."""


class MemoryBudget:
    """Bytes that queries hold, of all principals and of each; a principal has at most half. Safe from any thread."""

    def __init__(self, total: int, check: Callable[[str, int], None] = allow) -> None:
        """`check` is told of a principal and of all the bytes that it is to have, and may refuse them."""
        self._total = total
        self._check = check
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Return the bytes that are reserved."""
        with self._lock:
            return self._used.total()

    def used_by(self, principal: str) -> int:
        """Return the bytes that are reserved for a principal."""
        with self._lock:
            return self._used[principal]

    def reserve(self, principal: str | None, size: int) -> Reservation:
        """Reserve bytes for a query until they are released; None is a caller whom nothing tells from others.

        Raises InvalidInputError for more than a principal may ever have, ThrottlingError for more than is free, and
        what `check` raises.
        """
        share = self._total if principal is None else self._total // 2
        if size > share:
            raise InvalidInputError(
                f"This query takes about {size >> 20} MiB of memory: {share >> 20} at most, so ask for fewer rows (k), "
                "or for fewer columns."
            )
        name = principal or ""
        if principal is not None:
            self._check(principal, self.used_by(principal) + size)
        with self._lock:
            is_free = self._used[name] + size <= share and self._used.total() + size <= self._total
            if is_free:
                self._used[name] += size
        if not is_free:
            raise ThrottlingError(
                f"The queries that run already take the memory for queries, and this one takes {-(-size >> 20)} MiB: "
                "try again in a moment."
            )
        return Reservation(self, name, size)

    def resize(self, reservation: Reservation, size: int) -> None:
        """Reserve as many bytes as a running query is seen to have. Raises as `reserve` does."""
        name, before = reservation.name, reservation.size
        if name and size > before:
            self._check(name, self.used_by(name) + size - before)
        share = self._total // 2 if name else self._total
        with self._lock:
            others, own = self._used.total() - before, self._used[name] - before
            is_free = size <= before or (own + size <= share and others + size <= self._total)
            if is_free:
                self._used[name] += size - before
                reservation.size = size
        if not is_free and not others:
            raise InvalidInputError(f"The query took more memory than {share >> 20} MiB: narrow it.")
        if not is_free:
            raise ThrottlingError(
                f"The queries that run take more memory than all may have, yours {own + size >> 20} MiB, so this one"
                " was ended: try again in a moment."
            )

    def release(self, name: str, size: int) -> None:
        """Release bytes that were reserved."""
        with self._lock:
            self._used[name] -= size
            if not self._used[name]:
                del self._used[name]


class Reservation:
    """Bytes of a query, until `release`; a query that is dropped without it releases them, too."""

    __slots__ = ("_budget", "name", "size")

    def __init__(self, budget: MemoryBudget, name: str, size: int) -> None:
        self._budget, self.name, self.size = budget, name, size

    def resize(self, size: int) -> None:
        """Reserve what the query has by now. Raises as `MemoryBudget.resize`."""
        self._budget.resize(self, size)

    def release(self) -> None:
        """Release the bytes. Idempotent."""
        size, self.size = self.size, 0
        if size:
            self._budget.release(self.name, size)

    def __del__(self) -> None:
        self.release()


class FairPlaces:
    """Places of work that holds them for long, as an SQL query's process, and who has them. Thread-safe.

    The rule is that of a `FairPool`, but nothing waits: a principal alone has all places but the reserved ones, which
    are for principals that have none.
    """

    def __init__(self, places: int, what: str) -> None:
        """`what` names in errors those who have places: "SQL queries"."""
        self._places = places
        self._reserved = max(min(1, places - 1), places // RESERVED_SHARE)
        self._what = what
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How many places are taken."""
        with self._lock:
            return self._taken.total()

    def take(self, principal: str | None) -> None:
        """Take a place until `leave`; None is a caller whom nothing tells from others. Raises ThrottlingError."""
        name = principal or ""
        with self._lock:
            taken, own = self._taken.total(), self._taken[name]
            if taken >= self._places:
                raise ThrottlingError(f"{taken} {self._what} run already: try again in a moment.")
            if name and own and taken >= self._places - self._reserved:
                raise ThrottlingError(
                    f"{own} {self._what} of yours run already, and the last {self._reserved} places are for others: "
                    "try again in a moment."
                )
            self._taken[name] += 1

    def leave(self, principal: str | None) -> None:
        """Give a place back."""
        name = principal or ""
        with self._lock:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]
