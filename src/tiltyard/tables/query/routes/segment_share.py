"""Find the nearest rows of some segments of an index, for another server of the catalog that merges them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from lance_namespace.errors import InvalidInputError

from tiltyard.model.operations import ArrowAnswer
from tiltyard.tables.query.routes.route import Cost, LanceOffer, Refused
from tiltyard.tables.query.scanners import make_scanner
from tiltyard.tables.query.segment_shares import ANSWERED_FOR, vector_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lance.dataset import LanceScanner

    from tiltyard.context import Context
    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import Query

_WHOLE = Refused("no other server asks for the rows of some segments")


@dataclass(slots=True)
class SegmentShare(LanceOffer):
    """A search of some segments, exactly as the server that asks has planned it."""

    name: ClassVar[str] = "segment_share"
    cost = Cost.INDEX
    query: Query

    @classmethod
    def ask(cls, query: Query) -> SegmentShare | Refused:
        """Return the search of the segments that a sub-query names. Raises InvalidInputError for unknown ones."""
        if not query.segments:
            return _WHOLE
        search = query.search
        known = search.snapshot.fact(vector_segments).get(search.nearest[0]["column"]) if search.nearest else None
        if known is None or len(search.nearest) > 1 or not set(query.segments) <= set(known.segments):
            raise InvalidInputError("This version has no vector index with these segments: search the table itself.")
        return cls(query)

    def describe(self) -> str:
        return f"Lance searches {len(self.query.segments)} segments of the index for another server"

    def answer(self, ctx: Context) -> ArrowAnswer:
        """Answer with the metadata that says for which segments. Raises as others do."""
        if ctx.services.table_servers is not None:
            ctx.services.table_servers.note_spread(self.query.path)
        response = LanceOffer.answer(self, ctx)
        schema = response.schema.with_metadata({ANSWERED_FOR: ",".join(self.query.segments)})
        return replace(response, schema=schema, batches=[batch.cast(schema) for batch in response.batches])

    def readers(self) -> Iterator[Reader]:
        for scanner in self.scanners():
            yield scanner.to_reader()

    def scanners(self) -> Iterator[LanceScanner]:
        search = self.query.search
        options = {**search.options, "index_segments": list(self.query.segments)}
        yield make_scanner(search.dataset, options, search.nearest[0])
