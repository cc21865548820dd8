"""Let Lance find the rows, and read their columns: the route that answers what no other does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lance.dataset import LanceScanner

from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.query.response import reserve_memory
from tiltyard.tables.query.routes.route import Cost, LanceOffer, join_plans
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import CountQuery, Query

ROW_OFFSET = "_rowoffset"


class Scan:
    """The route of everything that is left."""

    name: ClassVar[str] = "scan"

    def ask(self, query: Query) -> ScanOffer:
        """Return a scan."""
        return ScanOffer(query)

    def ask_count(self, query: CountQuery) -> ScanCount:
        """Return a count by a scan."""
        return ScanCount(query)


@dataclass(slots=True)
class ScanOffer(LanceOffer):
    """A search by Lance alone, a scanner for each query vector."""

    route: ClassVar[str] = Scan.name
    query: Query

    @property
    def cost(self) -> Cost:
        return Cost.TABLE

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


@dataclass(frozen=True, slots=True)
class ScanCount:
    """A count of the rows that a predicate selects."""

    query: CountQuery
    route: ClassVar[str] = Scan.name

    def count(self) -> int:
        snapshot, predicate = self.query.snapshot, self.query.predicate
        if predicate is None:
            return snapshot.count_rows()
        options = batch_options(snapshot, (), {"predicate": predicate}) | {"filter": predicate}
        if ROW_OFFSET in predicate.lower():  # Lance has this column in a scan, but not in a count
            scanner = make_scanner(snapshot.dataset, {"columns": [ROW_OFFSET], **options})
            return sum(batch.num_rows for batch in scanner.to_reader())
        # A scanner's errors about a predicate are clearer than those of `dataset.count_rows`.
        return make_scanner(snapshot.dataset, {"columns": [], "with_row_id": True, **options}).count_rows()
