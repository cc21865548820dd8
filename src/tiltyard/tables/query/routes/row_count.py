"""Count all rows of a version: its manifest has their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tiltyard.tables.query.routes.route import Refused

if TYPE_CHECKING:
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.tables.query.routes.route import CountQuery

_PREDICATE = Refused("it has a predicate")


class RowCount:
    """The route of counts without a predicate."""

    name: ClassVar[str] = "row_count"

    def ask_count(self, query: CountQuery) -> AllRows | Refused:
        """Return the count of all rows, or that a predicate selects some of them."""
        return AllRows(query.snapshot) if query.predicate is None else _PREDICATE


@dataclass(frozen=True, slots=True)
class AllRows:
    """The number of all rows."""

    snapshot: CachedVersion
    route: ClassVar[str] = RowCount.name

    def count(self) -> int:
        return self.snapshot.count_rows()
