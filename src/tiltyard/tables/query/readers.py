"""Readers of a search: Lance finds the rows, and their columns are taken from the column cache or read by Lance.

A response has the same rows and columns either way. The cache serves the most common searches: few rows, of whole
columns, of the latest version, in the order in which Lance finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tiltyard.tables.query.integer_filters import ROW_ID, parse_row_ids
from tiltyard.tables.query.memory_search import BatchReader, MemorySearch
from tiltyard.tables.query.plan import STREAMING_OPTION_NAMES, column_names
from tiltyard.tables.query.point_lookups import count_in_memory, find_in_memory, unlimited_lookup
from tiltyard.tables.query.search_effort import choose_effort
from tiltyard.tables.query.shared_searches import can_share, find_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import lance

    from tiltyard.storage.cached_rows import CachedRows
    from tiltyard.storage.column_cache import BranchKey, ColumnCache
    from tiltyard.storage.vector_cache.cache import VectorCache
    from tiltyard.storage.version_cache import Snapshot
    from tiltyard.tables.query.plan import Search

_SCORES = ("_distance", "_score")
_CACHEABLE_OPTIONS = frozenset(
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
"""Options of a search whose order of rows does not depend on the columns that are read."""
_FILTER_OPTIONS = _CACHEABLE_OPTIONS - {"fast_search", "full_text_query", "offset", "with_row_id"}
"""Options of a search by a filter alone."""


class Reader(Protocol):
    """The part of a RecordBatchReader that a response uses."""

    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class CachedColumns:
    """The caches, and the key of the table and branch whose latest version is searched."""

    cache: ColumnCache
    key: BranchKey
    vectors: VectorCache
    processors: int = 1
    """Searches that run at once without waiting for others."""

    @property
    def memory_search(self) -> MemorySearch:
        """The search of vectors in memory."""
        return MemorySearch(self.key, self.vectors, self.cache)

    def count(self, snapshot: Snapshot, predicate: str) -> int | None:
        """Return how many rows a predicate selects by the integers of a cached column; None where Lance counts them."""
        return count_in_memory(snapshot, predicate, lambda name: self.cache.rows(self.key, snapshot.dataset, (name,)))


def open_readers(search: Search, cached_columns: CachedColumns | None) -> Iterator[Reader]:
    """Yield a reader for each scanner of a search. Raises Lance's errors."""
    if cached_columns is not None and (responses := cached_columns.memory_search.readers(search)) is not None:
        yield from responses
        return
    if (effort := choose_effort(search)) is not None:
        search = effort.apply(search)
    output = None if cached_columns is None else _output_columns(search)
    if cached_columns is not None and output is not None:
        names = tuple(name for name in output if name not in _SCORES)
        rows = cached_columns.cache.rows(cached_columns.key, search.dataset, names, may_wait=True)
        if rows is not None:
            yield from _rows_in_memory(search, rows, output, cached_columns) or _cached_readers(
                search, rows, output, cached_columns.processors
            )
            return
    for scanner in search.scanners():
        yield scanner.to_reader()


def _output_columns(search: Search) -> tuple[str, ...] | None:
    """Return the columns of a response that the cache can serve, without row ids; None for other searches."""
    options = search.options
    if (
        search.has_elements
        or not search.max_rows
        or not _CACHEABLE_OPTIONS.issuperset(options.keys() - STREAMING_OPTION_NAMES)
    ):
        return None
    columns = options.get("columns")
    if columns is None:
        score = ("_distance",) if search.nearest else ("_score",) if "full_text_query" in options else ()
        return (*column_names(search.snapshot), *score)
    if not isinstance(columns, list) or len(set(columns)) < len(columns):
        return None
    return tuple(columns) if any(name not in _SCORES for name in columns) else None


def _rows_in_memory(
    search: Search, rows: CachedRows, output: tuple[str, ...], cached_columns: CachedColumns
) -> list[Reader]:
    """Return the reader of a look-up whose rows are found in the cache; none for other searches."""
    options, with_row_id = search.options, bool(search.options.get("with_row_id"))
    plain = options.keys() - STREAMING_OPTION_NAMES - {"with_row_id"}
    if search.nearest or not isinstance(options.get("filter"), str) or not _FILTER_OPTIONS.issuperset(plain):
        return []
    if (with_row_id and rows.address != ROW_ID) or not rows.fields.keys() >= set(output):
        return []
    cache, key = cached_columns.cache, cached_columns.key
    if (ids := parse_row_ids(options["filter"])) is not None:
        addresses = rows.find_ids(ids)
    else:
        addresses = find_in_memory(
            search.snapshot, options["filter"], lambda name: cache.rows(key, search.dataset, (name,))
        )
    if addresses is None:
        return []
    addresses = addresses.slice(0, search.max_rows)
    columns = rows.take(addresses)
    fields = [rows.fields[name] for name in output]
    if with_row_id:
        columns, fields = [*columns, addresses], [*fields, pa.field(ROW_ID, pa.uint64())]
    schema = pa.schema(fields, search.snapshot.fact(_schema_metadata))
    return [BatchReader(schema, (pa.RecordBatch.from_arrays(columns, schema=schema),))]


def _schema_metadata(dataset: lance.LanceDataset) -> dict[bytes, bytes] | None:
    metadata: dict[bytes, bytes] | None = dataset.schema.metadata
    return metadata


def _cached_readers(search: Search, rows: CachedRows, output: tuple[str, ...], processors: int) -> Iterator[Reader]:
    """Yield readers that take the columns of the rows that Lance finds from the cache."""
    with_row_id = bool(search.options.get("with_row_id"))
    lance_columns = [name for name in output if name in _SCORES]
    lance_columns += dict.fromkeys([ROW_ID, rows.address] if with_row_id else [rows.address])
    omitted = STREAMING_OPTION_NAMES | {"with_row_id"}
    options = {name: value for name, value in search.options.items() if name not in omitted}
    options |= {"columns": lance_columns, "disable_scoring_autoprojection": True}
    on_batch_rows = None
    if not search.nearest and "filter" in options and _FILTER_OPTIONS.issuperset(options):
        on_batch_rows = unlimited_lookup(search.snapshot, options["filter"])
        if on_batch_rows is not None:
            options.pop("limit", None)
    names = (*output, ROW_ID) if with_row_id else output
    search_for_addresses = replace(search, options=options)
    if can_share(search_for_addresses):
        found = find_shared(search_for_addresses, processors)
        reader = BatchReader(found.schema, tuple(found.to_batches()))
        yield _CachedReader(reader, rows, names, search.max_rows or 0, None)
        return
    for scanner in search_for_addresses.scanners():
        yield _CachedReader(scanner.to_reader(), rows, names, search.max_rows or 0, on_batch_rows)


class _CachedReader:
    """A reader of the rows that Lance finds, with their columns from the cache."""

    def __init__(
        self,
        reader: Reader,
        rows: CachedRows,
        names: tuple[str, ...],
        max_rows: int,
        on_batch_rows: Callable[[int], None] | None,
    ) -> None:
        """With `on_batch_rows`, Lance got no limit: the reader stops after `max_rows`, and calls it for each batch."""
        self._reader = reader
        self._rows = rows
        self._max_rows = max_rows
        self._on_batch_rows = on_batch_rows
        schema = rows.response_schemas.get(names)
        if schema is None:  # of one version, it is the same for each search of these columns
            fields = [rows.fields[name] if name in rows.fields else reader.schema.field(name) for name in names]
            schema = rows.response_schemas[names] = pa.schema(fields, reader.schema.metadata)
        self.schema: pa.Schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        remaining, rows, names = self._max_rows, self._rows, self.schema.names
        for found_rows in self._reader:
            batch = found_rows
            if self._on_batch_rows is not None:
                self._on_batch_rows(found_rows.num_rows)
                batch = found_rows.slice(0, remaining)
                remaining -= batch.num_rows
            columns = dict(zip(rows.fields, rows.take(batch.column(rows.address)), strict=True))
            selected = [columns[name] if name in columns else batch.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(selected, schema=self.schema)
