"""Cache columns of small tables in memory, so that a query asks Lance only for the row ids of its result.

To fetch ten rows costs Lance more than to find them by an index: on a local disk in processor time, on an object store
in round trips. The cache holds pages: a column of a fragment, deleted rows included, as its data files have it. Data
files never change, so appends and deletes leave a page valid, and a new version costs no more than its new fragments.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError, UnsupportedOperationError

from tiltyard.model.branches import Branch
from tiltyard.model.columns.blob_columns import is_stored_as_read
from tiltyard.runtime.cache import CountedCache, Kept, NoShareError, choose_dropped
from tiltyard.runtime.pool import filling_thread
from tiltyard.storage.caches.cached_rows import CachedRows
from tiltyard.storage.caches.fragment_contents import contents
from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import lance
    from lance.fragment import FragmentMetadata

_log = logging.getLogger(__name__)

MAX_FRAGMENTS = 256
"""To inspect so many, once a version, takes 4 ms."""
_GUESSED_WIDTH = 64
"""Bytes of a value of variable length, as guessed before it is read; pages that were read are measured."""
_CREDIT_PER_QUERY_BYTES = 4 << 20
"""Bytes that one query allows the cache to read: columns are read once enough queries have asked for them.

A table of 50 MB is read after a dozen queries; one that is queried once never is."""
_AT_ONCE_BYTES = 1 << 20
"""Missing pages up to which a query reads them itself: to ask Lance for its rows would take it as long."""
_MAX_TABLES = 1024
"""Tables whose queries are counted though nothing of them is kept."""
_FORGOTTEN = 64
_RETRY_SECONDS = 60.0
"""How long the cache leaves a table alone after an error, or where there is no room for it."""
_MAX_SELECTIONS = 256
"""Selections of columns remembered for one version."""
_BINARY_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_LIST_TYPES = (pa.types.is_list, pa.types.is_large_list)

BranchKey = tuple[str, Branch]
"""A table's location, and a branch of it."""
PageKey = tuple[str, int]
"""The content of a page's fragment, and the id of its column."""
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A fragment of a version; `content` describes its data files: equal content means equal values."""

    number: int
    rows: int
    has_deletions: bool
    content: str


@dataclass(frozen=True, slots=True)
class _Column:
    """A cacheable column: its field, Lance's permanent id of it, and the approximate bytes of a value."""

    field: pa.Field
    id: int
    width: int


@dataclass(frozen=True, slots=True)
class _Page:
    """A column of a fragment."""

    fragment: _Fragment
    column: _Column

    @property
    def key(self) -> PageKey:
        return self.fragment.content, self.column.id

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self.fragment.rows * self.column.width


@dataclass(frozen=True, slots=True)
class _Version:
    """The cacheable fragments and columns of a version; `rows` counts deleted rows, too."""

    fragments: tuple[_Fragment, ...]
    columns: Mapping[str, _Column]
    rows: int
    by_id: bool

    def pages(self, names: Iterable[str]) -> Iterator[_Page]:
        """Iterate over all pages of these columns."""
        return (_Page(fragment, self.columns[name]) for fragment in self.fragments for name in names)

    def size(self, names: Iterable[str]) -> int:
        """Approximate size of these columns in bytes."""
        return self.rows * sum(self.columns[name].width for name in names)


@dataclass(slots=True)
class _Table:
    """The cached pages of one branch of a table.

    `selections` are the rows built from them, by version and column names; None for columns that cannot be cached.
    `credit` is how many bytes its queries allow to be read. `too_large` has columns and the number of rows with which
    they did not fit. Until `retry_at` nothing is read, after an error.
    """

    pages: dict[PageKey, pa.Array] = field(default_factory=dict)
    selections: weakref.WeakKeyDictionary[lance.LanceDataset, dict[Names, CachedRows | None]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    size: int = 0
    used_at: float = field(default_factory=monotonic)
    credit: int = 0
    too_large: dict[Names, int] = field(default_factory=dict)
    retry_at: float = 0.0
    is_loading: bool = False
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by queries that may wait: one reads what all of them lack."""

    def may_read(self, names: Names, rows: int) -> bool:
        """Whether columns of a version with so many rows may be read now."""
        return not self.is_loading and rows < self.too_large.get(names, rows + 1) and monotonic() >= self.retry_at

    def remember(self, dataset: lance.LanceDataset, names: Names, rows: CachedRows | None) -> None:
        """Remember the rows of a selection of columns."""
        selections = self.selections.setdefault(dataset, {})
        if len(selections) >= _MAX_SELECTIONS:
            selections.clear()
        selections[names] = rows


@dataclass(frozen=True, slots=True)
class _Request:
    """A query's request for columns of a version, as `ColumnCache.rows` takes it, and the entry of its branch."""

    table: _Table
    key: BranchKey
    dataset: lance.LanceDataset
    names: Names
    may_wait: bool
    is_counted: bool
    is_latest: bool


class _TooLargeError(Exception):
    """The columns do not fit into the cache."""


class _ClosedError(Exception):
    """The process shuts down."""


class ColumnCache(CountedCache):
    """Columns of tables, as many as fit; of the tenant that has most, the table that was queried least recently is
    evicted first.

    Safe to use from several threads.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the size of the cache, 0 for none."""
        super().__init__(
            "rows in memory",
            "Columns of tables that are queried often",
            max_bytes=max_bytes,
            invalidated_by="a later version, of which only new fragments are read; a drop of its table",
        )
        self._tables: OrderedDict[BranchKey, _Table] = OrderedDict()
        self._lock = threading.Lock()
        self._versions: weakref.WeakKeyDictionary[lance.LanceDataset, _Version | None] = weakref.WeakKeyDictionary()
        self._threads = filling_thread()
        self._is_closed = False

    def sizes(self) -> Sequence[tuple[str, int]]:
        with self._lock:
            return [(location, table.size) for (location, _), table in self._tables.items()]

    def rows(
        self,
        key: BranchKey,
        dataset: lance.LanceDataset,
        names: Names,
        *,
        may_wait: bool = False,
        is_counted: bool = True,
        is_latest: bool = True,
    ) -> CachedRows | None:
        """Return columns of a table's version if all are cached; else start to read them.

        Pages of the latest version replace those that it has no more; those of another version are added to them.
        None also for columns that are not worth their size yet, or cannot be cached. A caller that `may_wait` reads
        the few rows that a new version brings, and is the only one to do so; others never wait for Lance. What is not
        `is_counted` is no use of the columns: it starts nothing in the background.
        """
        if not self.max_bytes:
            return None
        with self._lock:
            table = self._touch(key)
            if names in (known := table.selections.get(dataset, {})):
                self.hits += 1
                return known[names]
            self.misses += 1
        with table.reading if may_wait else nullcontext():
            return self._find(_Request(table, key, dataset, names, may_wait, is_counted, is_latest))

    def _find(self, request: _Request) -> CachedRows | None:
        table, dataset, names = request.table, request.dataset, request.names
        version = self._version(dataset)
        if version is None or not version.columns.keys() >= set(names) or version.size(names) > self.max_bytes:
            with self._lock:
                table.remember(dataset, names, None)
            return None
        with self._lock:
            if names in (known := table.selections.get(dataset, {})):
                return known[names]  # read while this query waited
            credit = min(table.credit + _CREDIT_PER_QUERY_BYTES, self.max_bytes)
            if request.is_counted:
                table.credit = credit
            if not table.pages and credit < version.size(names):
                return None
            missing = [page for page in version.pages(names) if page.key not in table.pages]
            if not missing:
                return self._select(table, dataset, version, names)
            cost = sum(page.size for page in missing)
            if self._is_closed or credit < cost or not table.may_read(names, version.rows):
                return None
            is_read_at_once = request.may_wait and table.pages and cost <= _AT_ONCE_BYTES
            if not (request.is_counted or is_read_at_once):
                return None
            table.credit = credit - cost
            table.is_loading = True
            if not is_read_at_once:
                self._threads.submit(self._fill, request, version, missing)
                return None
        self._fill(request, version, missing)
        with self._lock:
            is_complete = all(page.key in table.pages for page in missing)
            return self._select(table, dataset, version, names) if is_complete else None

    def known(self, key: BranchKey, dataset: lance.LanceDataset, names: Names) -> CachedRows | None:
        """Return columns of a version that a query had from memory before; None for others. Nothing is read for it."""
        with self._lock:
            table = self._tables.get(key)
            rows = None if table is None else table.selections.get(dataset, {}).get(names)
            if rows is not None:
                self._touch(key)
            return rows

    def load(self, key: BranchKey, dataset: lance.LanceDataset, names: Sequence[str] | None) -> None:
        """Read columns now, None for all cacheable ones. Raises UnsupportedOperationError for what cannot be cached."""
        version = self._version(dataset)
        if version is None or not self.max_bytes:
            raise UnsupportedOperationError(
                "Rows of this table are not kept in memory: the server has no room for any (page_cache_bytes), or the "
                f"table has no rows, over {MAX_FRAGMENTS} fragments (compact it) or files of an older format."
            )
        selected = tuple(version.columns if names is None else names)
        if unsupported := sorted(set(selected) - version.columns.keys()):
            raise UnsupportedOperationError(f"Columns of these kinds are not kept in memory: {', '.join(unsupported)}.")
        with self._lock:
            table = self._touch(key)
            missing = [page for page in version.pages(selected) if page.key not in table.pages]
        try:
            self._add(key, table, version, self._read(dataset, missing), is_latest=True)
        except _TooLargeError:
            raise UnsupportedOperationError(
                f"These columns take more than the {self.max_bytes:,} bytes that the server keeps (page_cache_bytes)."
            ) from None
        except NoShareError:
            raise UnsupportedOperationError(
                "To keep these columns in memory, those of namespaces that have less of it would have to go "
                "(page_cache_bytes)."
            ) from None

    def evict(self, location: str) -> None:
        """Drop all columns of a table that was deleted."""
        with self._lock:
            for key in [key for key in self._tables if key[0] == location]:
                del self._tables[key]

    def close(self) -> None:
        """Start no more reads, and cancel the running one."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _touch(self, key: BranchKey) -> _Table:
        """Return the entry of a table, creating it if needed, as the one used last."""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table()
            if len(self._tables) > _MAX_TABLES:
                self._forget_tables()
        else:
            self._tables.move_to_end(key)
            table.used_at = monotonic()
        return table

    def _forget_tables(self) -> None:
        """Forget the queries of some tables of which nothing is kept."""
        counted = [each for each, other in self._tables.items() if not (other.pages or other.is_loading)]
        for each in counted[: max(0, len(counted) - _MAX_TABLES + _FORGOTTEN)]:
            del self._tables[each]

    def _select(self, table: _Table, dataset: lance.LanceDataset, version: _Version, names: Names) -> CachedRows:
        columns = [version.columns[name] for name in names]
        schema = pa.schema([column.field for column in columns])
        fragments = {
            fragment.number: pa.RecordBatch.from_arrays(
                [table.pages[_Page(fragment, column).key] for column in columns], schema=schema
            )
            for fragment in version.fragments
        }
        has_deletions = any(fragment.has_deletions for fragment in version.fragments)
        rows = CachedRows(schema, fragments, version.by_id, has_deletions)
        table.remember(dataset, names, rows)
        return rows

    def _version(self, dataset: lance.LanceDataset) -> _Version | None:
        """Return what can be cached of a version, None for nothing; inspected once per dataset, which is immutable."""
        if dataset not in self._versions:
            self._versions[dataset] = _inspect(dataset, self.max_bytes)
        return self._versions[dataset]

    def _fill(self, request: _Request, version: _Version, missing: list[_Page]) -> None:
        """Read missing pages."""
        table, location = request.table, request.key[0]
        try:
            self._add(request.key, table, version, self._read(request.dataset, missing), is_latest=request.is_latest)
        except _ClosedError:
            return
        except _TooLargeError:
            table.too_large[request.names] = version.rows
        except NoShareError:
            table.retry_at = monotonic() + _RETRY_SECONDS
        except LanceNamespaceError as error:
            table.retry_at = monotonic() + _RETRY_SECONDS
            _log.warning("Rows of %s are not kept in memory, since they could not be read: %s", location, error)
        except Exception:  # noqa: BLE001  # nobody waits for this thread: the log is the only place to report it
            table.retry_at = monotonic() + _RETRY_SECONDS
            _log.exception("Rows of %s are not kept in memory, since they could not be read.", location)
        finally:
            table.is_loading = False

    def _read(self, dataset: lance.LanceDataset, missing: Iterable[_Page]) -> dict[PageKey, pa.Array]:
        """Read pages, fragment by fragment. Raises _TooLargeError, _ClosedError, Lance's errors as the namespace's."""
        pages_by_fragment: dict[_Fragment, list[_Page]] = {}
        for page in missing:
            pages_by_fragment.setdefault(page.fragment, []).append(page)
        arrays_by_key: dict[PageKey, pa.Array] = {}
        remaining = self.max_bytes
        for fragment, pages in pages_by_fragment.items():
            with lance_errors(dataset):
                arrays = self._read_columns(dataset, fragment, [page.column.field.name for page in pages], remaining)
            remaining -= sum(array.nbytes for array in arrays)
            arrays_by_key |= {page.key: array for page, array in zip(pages, arrays, strict=True)}
        return arrays_by_key

    def _read_columns(
        self, dataset: lance.LanceDataset, fragment: _Fragment, names: list[str], max_bytes: int
    ) -> list[pa.Array]:
        """Read columns of one fragment as its files have them."""
        source = dataset.get_fragment(fragment.number)
        assert source is not None
        with_deleted = {"include_deleted_rows": True, "with_row_id": True} if fragment.has_deletions else {}
        reader = source.scanner(columns=names, **with_deleted).to_reader()  # type: ignore[arg-type]  # see above
        batches: list[pa.RecordBatch] = []
        for batch in reader:
            if self._is_closed:
                raise _ClosedError
            if (max_bytes := max_bytes - batch.nbytes) < 0:
                raise _TooLargeError
            batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
        if table.num_rows != fragment.rows:
            raise LanceNamespaceError(f"Fragment {fragment.number} has {table.num_rows} rows of {fragment.rows}.")
        arrays = [table.column(name).combine_chunks() for name in names]
        if any(isinstance(array, pa.ChunkedArray) for array in arrays):
            raise _TooLargeError  # the offsets of one array do not reach so far
        return arrays

    def _add(
        self,
        key: BranchKey,
        table: _Table,
        version: _Version,
        new_pages: dict[PageKey, pa.Array],
        *,
        is_latest: bool,
    ) -> None:
        """Add pages, drop those that the latest version has not, and evict other tables to make room.

        Raises _TooLargeError, NoShareError.
        """
        contents = {fragment.content for fragment in version.fragments}
        is_full = self.size + sum(page.nbytes for page in new_pages.values()) > self.max_bytes
        tenants = self.find_tenants() if is_full else {}
        with self._lock:
            if self._tables.get(key) is not table:
                return  # evicted meanwhile
            kept = {key: page for key, page in table.pages.items() if not is_latest or key[0] in contents}
            pages = kept | new_pages
            size = sum(page.nbytes for page in pages.values())
            if size > self.max_bytes:
                pages, size = new_pages, sum(page.nbytes for page in new_pages.values())
            if size > self.max_bytes:
                raise _TooLargeError
            others = [
                Kept(each, tenants.get(each[0], ""), other.size, other.used_at)
                for each, other in self._tables.items()
                if each != key
            ]
            for each in choose_dropped(others, size, tenants.get(key[0], ""), self.max_bytes):
                del self._tables[each]
            table.pages, table.size = pages, size
            table.selections.clear()


def _inspect(dataset: lance.LanceDataset, max_bytes: int) -> _Version | None:
    """Return what `max_bytes` can cache of a version; None for nothing."""
    if not 0 < dataset.count_rows() <= max_bytes:
        return None  # each row takes a byte at least; the fragments of a huge table take long to list
    dataset_fragments = dataset.get_fragments()
    if not 0 < len(dataset_fragments) <= MAX_FRAGMENTS:
        return None
    metadata = [fragment.metadata for fragment in dataset_fragments]
    if not all(fragment.physical_rows for fragment in metadata):
        return None  # manifests of an older format lack the number
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    columns = {
        column.name: _Column(column, ids[column.name], width)
        for column in dataset.schema
        if column.name in ids
        and not any(sign in column.name for sign in ".`")
        and (width := _value_width(column)) is not None
    }
    fragments = tuple(_describe_fragment(fragment) for fragment in metadata)
    by_id = all(fragment.row_id_meta is None for fragment in metadata)
    return _Version(fragments, columns, sum(fragment.rows for fragment in fragments), by_id)


def _describe_fragment(fragment: FragmentMetadata) -> _Fragment:
    return _Fragment(fragment.id, fragment.physical_rows, fragment.deletion_file is not None, contents(fragment))


def _value_width(column: pa.Field) -> int | None:
    """Estimate the bytes of a value; None for types that Lance does not read as its files have them, as blobs."""
    if not is_stored_as_read(column):
        return None
    data_type = column.type
    if pa.types.is_fixed_size_list(data_type):
        width = _value_width(data_type.value_field)
        return None if width is None else width * data_type.list_size
    if any(is_list(data_type) for is_list in _LIST_TYPES):
        return None if _value_width(data_type.value_field) is None else _GUESSED_WIDTH
    if pa.types.is_struct(data_type):
        widths = [_value_width(child) for child in data_type]
        return None if None in widths else sum(width for width in widths if width is not None)
    if any(is_binary(data_type) for is_binary in _BINARY_TYPES):
        return _GUESSED_WIDTH
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type) or pa.types.is_fixed_size_binary(data_type):
        return max(1, int(data_type.bit_width) // 8)
    return None
