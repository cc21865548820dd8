"""Look rows up by one value of an indexed column: Lance's index finds them, and their columns are in memory.

Where the index is in memory, too, that takes Lance half a millisecond. Its way to a thread and back, concurrently with
others, would take as long again, so it runs on the event loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from tiltyard.tables.query.routes.cached_columns import CachedReader
from tiltyard.tables.query.routes.route import BatchReader, Cost, LanceOffer, Pace, Purpose, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lance
    from lance.dataset import LanceScanner

    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import OutputRows, Query

_LOOKUP = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(?:-?\d{1,19}|'[^'\\]{0,256}')\s*")
_INDICES = frozenset({"btree", "bitmap"})
MANY_ROWS = 256
"""Rows with one value from which on the look-ups of a column get a limit."""

_OTHER_FILTER = Refused("its filter is not one value of a column, alone")
_NO_INDEX = Refused("its column has no BTREE or BITMAP that covers all rows")
_SLOW = Refused("look-ups in this version were too slow for the event loop a moment ago")


@dataclass(frozen=True, slots=True)
class LookupColumns:
    """Columns of a version with an index that covers all rows; those with many rows of one value; the pace."""

    columns: frozenset[str]
    with_many_rows: set[str] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)

    def has_few_rows(self, column: str) -> bool:
        """Return whether a column has an index that covers all rows, and no value of many rows was seen."""
        return column in self.columns and column not in self.with_many_rows


def lookup_columns(dataset: lance.LanceDataset) -> LookupColumns:
    """Read the look-up columns of a version."""
    return LookupColumns(_fully_indexed_columns(dataset))


def is_lookup(expression: str) -> bool:
    """Return whether a filter is one value of a column."""
    return _LOOKUP.fullmatch(expression) is not None


@dataclass(slots=True)
class PointLookup(LanceOffer):
    """A look-up of the rows with one value of a column.

    A limit makes Lance take a fifth longer for it, and saves nothing where few rows have the value.
    """

    name: ClassVar[str] = "point_lookup"
    cost = Cost.INDEX
    query: Query
    output: OutputRows
    column: str
    lookups: LookupColumns

    @classmethod
    def ask(cls, query: Query) -> PointLookup | Refused:
        """Return the look-up of a search, or why it is none."""
        expression = query.only_filter
        if expression is None or (match := _LOOKUP.fullmatch(expression)) is None:
            return _OTHER_FILTER
        if isinstance(output := query.output, Refused):
            return output
        lookups = query.search.snapshot.fact(lookup_columns)
        if match[1] not in lookups.columns:
            return _NO_INDEX
        if query.purpose is Purpose.LOOP and not lookups.pace.is_fast:
            return _SLOW
        return cls(query, output, match[1], lookups)

    def describe(self) -> str:
        return f"Lance looks rows up in the index of '{self.column}', and their columns are in memory"

    def readers(self) -> Iterator[Reader]:
        started = perf_counter()
        reader = CachedReader(next(self.scanners()).to_reader(), self.output, self.query, self._note_rows)
        if self.query.purpose is not Purpose.LOOP:
            yield reader
            return
        batches = tuple(reader)
        self.lookups.pace.record(perf_counter() - started)
        yield BatchReader(reader.schema, batches)

    def scanners(self) -> Iterator[LanceScanner]:
        search = self.query.addresses(self.output)
        if self.lookups.has_few_rows(self.column):
            search.options.pop("limit", None)
        return search.scanners()

    def _note_rows(self, count: int) -> None:
        if count > MANY_ROWS:
            self.lookups.with_many_rows.add(self.column)


def _fully_indexed_columns(dataset: lance.LanceDataset) -> frozenset[str]:
    """Return the columns with a BTREE or BITMAP index that covers all fragments."""
    fragments = {fragment.fragment_id for fragment in dataset.get_fragments()}
    return frozenset(
        index.field_names[0]
        for index in dataset.describe_indices()
        if index.index_type.lower() in _INDICES
        and len(index.field_names) == 1
        and fragments <= {number for segment in index.segments for number in segment.fragment_ids}
    )
