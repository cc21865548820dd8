"""Let Lance find the rows, and read their columns: the route that answers what no other does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from lance.dataset import LanceScanner

from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.query.integer_filters import ROW_OFFSET
from tiltyard.tables.query.response import reserve_memory
from tiltyard.tables.query.routes.route import Cost, CountOffer, LanceOffer, Refused, join_plans
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import CountQuery, Query

_PREDICATE = Refused("it has a predicate")


@dataclass(slots=True)
class Scan(LanceOffer):
    """A search by Lance alone, a scanner for each query vector."""

    name: ClassVar[str] = "scan"
    cost = Cost.TABLE
    query: Query

    @classmethod
    def ask(cls, query: Query) -> Scan:
        """Return a scan."""
        return cls(query)

    def describe(self) -> str:
        return "Lance finds the rows, and reads their columns"

    def readers(self) -> Iterator[Reader]:
        for scanner in self.scanners():
            yield scanner.to_reader()

    def scanners(self) -> Iterator[LanceScanner]:
        return self.query.widened.scanners()

    def measure(self, ctx: Context) -> list[str]:
        """Return Lance's figures: it runs the same scanners for them."""
        reservation = reserve_memory(ctx, self.query.search)
        try:
            return [join_plans(ctx, self.scanners(), LanceScanner.analyze_plan)]
        finally:
            if reservation is not None:
                reservation.release()


def ask_row_count(query: CountQuery) -> CountOffer | Refused:
    """Return the count of all rows, which the manifest has, or that a predicate selects some of them."""
    return _PREDICATE if query.predicate is not None else CountOffer("row_count", query.snapshot.count_rows)


def ask_scan_count(query: CountQuery) -> CountOffer:
    """Return the count of the rows that a predicate selects."""
    return CountOffer(Scan.name, partial(_count, query.snapshot, query.predicate or "true"))


def _count(snapshot: CachedVersion, predicate: str) -> int:
    options = batch_options(snapshot, (), {"predicate": predicate}) | {"filter": predicate}
    if ROW_OFFSET in predicate.lower():  # Lance has this column in a scan, but not in a count
        scanner = make_scanner(snapshot.dataset, {"columns": [ROW_OFFSET], **options})
        return sum(batch.num_rows for batch in scanner.to_reader())
    # A scanner's errors about a predicate are clearer than those of `dataset.count_rows`.
    return make_scanner(snapshot.dataset, {"columns": [], "with_row_id": True, **options}).count_rows()
