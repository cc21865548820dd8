"""Readers of a search: Lance finds the rows, and fetches them too unless they are in memory already.

An answer has the same rows and columns either way. Memory serves what most searches are: few rows, of whole columns, of
the latest version, in the order that Lance finds them in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tiltyard.tables.query.plan import ROW_ID, STREAMING, column_names
from tiltyard.tables.query.point_lookups import unlimited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.storage.column_cache import BranchKey, CachedRows, ColumnCache
    from tiltyard.tables.query.plan import Search

_SCORES = ("_distance", "_score")
_OPTIONS = frozenset(
    {
        "batch_readahead",
        "batch_size",
        "batch_size_bytes",
        "columns",
        "disable_scoring_autoprojection",
        "fast_search",
        "filter",
        "full_text_query",
        "io_buffer_size",
        "limit",
        "offset",
        "prefilter",
        "with_row_id",
    }
)
"""Options of a search that leave its rows in an order that does not depend on their columns."""
_FILTERED = _OPTIONS - {"fast_search", "full_text_query", "offset", "with_row_id"}
"""Options of a search by nothing but a filter."""


class Reader(Protocol):
    """What is read of a RecordBatchReader."""

    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class Pages:
    """Where rows may be in memory: the cache, and the table and branch whose latest version is searched."""

    cache: ColumnCache
    place: BranchKey


def readers(search: Search, pages: Pages | None) -> Iterator[Reader]:
    """One for each scanner of a search. Raises Lance's errors."""
    shown = None if pages is None else _shown(search)
    if pages is not None and shown is not None:
        names = tuple(name for name in shown if name not in _SCORES)
        rows = pages.cache.rows(pages.place, search.dataset, names)
        if rows is not None:
            yield from _taking(search, rows, shown)
            return
    for scanner in search.scanners():
        yield scanner.to_reader()


def _shown(search: Search) -> tuple[str, ...] | None:
    """The columns of an answer that could come from memory, row ids aside; None for other searches."""
    options = search.options
    if not search.most or not _OPTIONS.issuperset(options.keys() - STREAMING):
        return None
    columns = options.get("columns")
    if columns is None:
        score = ("_distance",) if search.nearest else ("_score",) if "full_text_query" in options else ()
        return (*column_names(search.dataset), *score)
    if not isinstance(columns, list) or len(set(columns)) < len(columns):
        return None
    return tuple(columns) if any(name not in _SCORES for name in columns) else None


def _taking(search: Search, rows: CachedRows, shown: tuple[str, ...]) -> Iterator[Reader]:
    """Readers that take the rows Lance finds from memory."""
    with_row_id = bool(search.options.get("with_row_id"))
    found = [name for name in shown if name in _SCORES]
    found += dict.fromkeys([ROW_ID, rows.address] if with_row_id else [rows.address])
    dropped = STREAMING | {"with_row_id"}
    options = {name: value for name, value in search.options.items() if name not in dropped}
    options |= {"columns": found, "disable_scoring_autoprojection": True}
    came = None
    if not search.nearest and "filter" in options and _FILTERED.issuperset(options):
        came = unlimited(search.dataset, options["filter"])
        if came is not None:
            options.pop("limit", None)
    names = (*shown, ROW_ID) if with_row_id else shown
    for scanner in replace(search, options=options).scanners():
        yield _Taking(scanner.to_reader(), rows, names, search.most or 0, came)


class _Taking:
    """A reader of what Lance finds, with the rows' columns put in."""

    def __init__(
        self,
        found: pa.RecordBatchReader,
        rows: CachedRows,
        names: tuple[str, ...],
        most: int,
        came: Callable[[int], None] | None,
    ) -> None:
        """Where Lance was told no limit but `most` rows are to come, `came` is told how many come at once."""
        self._found = found
        self._rows = rows
        self._most = most
        self._came = came
        fields = [rows.fields[name] if name in rows.fields else found.schema.field(name) for name in names]
        self.schema = pa.schema(fields, found.schema.metadata)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        left = self._most
        for whole in self._found:
            batch = whole
            if self._came is not None:
                self._came(whole.num_rows)
                batch = whole.slice(0, left)
                left -= batch.num_rows
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            taken = self._rows.take(columns[self._rows.address])
            columns |= zip(self._rows.fields, taken, strict=True)
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
