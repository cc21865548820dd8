"""Places of work that holds them for long, as an SQL query's process: one principal leaves some of them to others.

The rule is that of threads (`fair_executor`), but nothing waits: a principal alone has all places but the reserved
ones, which are for principals that have none.
"""

from __future__ import annotations

import threading
from collections import Counter

from lance_namespace.errors import ThrottlingError

RESERVED_SHARE = 4
"""One reserved place for so many, at least one where there are several."""


class FairPlaces:
    """So many places, and who has them. Thread-safe."""

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
