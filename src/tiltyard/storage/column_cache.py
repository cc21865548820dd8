"""Columns of small tables in memory, so that a query asks Lance only which rows it finds.

To fetch ten rows costs Lance more than to find them by an index: on a local disk in processor time, on an object store
in round trips. What is kept is a column of a fragment, deleted rows included, as its data files have it. Those never
change, so appends and deletes leave it valid, and a new version costs no more than its new fragments.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError, UnsupportedOperationError

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.storage.column_pages import MOST_FRAGMENTS, Page, Rows, version_of
from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import lance

    from tiltyard.storage.column_pages import Fragment, Key, Names, Version

_log = logging.getLogger(__name__)

_WORTH = 4 << 20
"""Bytes that one query may cause to be read: columns come in once the queries that ask for them are worth their size.

A table of 50 MB is read after a dozen queries, one that somebody looks into once never is."""
_MOST_TABLES = 1024
_REST_SECONDS = 60.0
"""For how long a table is left alone that could not be read."""
_MOST_VIEWS = 256
"""Choices of columns of one version."""
Place = tuple[str, str]
"""A table's location, and a branch of it."""


def place_of(location: str, branch: str | None = None) -> Place:
    """The place of a branch as requests name it: main is meant where none is named."""
    return location, branch or MAIN_BRANCH


@dataclass(slots=True)
class _Table:
    """What there is of one table.

    `views` are what came of it, None where columns are not kept. `paid` is what queries were worth. Of columns in
    `refused`, so many rows were too large. Until `rests_until` nothing is read, since it could not be.
    """

    pages: dict[Key, pa.Array] = field(default_factory=dict)
    views: weakref.WeakKeyDictionary[lance.LanceDataset, dict[Names, Rows | None]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    size: int = 0
    paid: int = 0
    refused: dict[Names, int] = field(default_factory=dict)
    rests_until: float = 0.0
    loading: bool = False

    def may_read(self, names: Names, rows: int) -> bool:
        """Whether it is worth a try to read columns of a version with so many rows."""
        return not self.loading and rows < self.refused.get(names, rows + 1) and monotonic() >= self.rests_until

    def enter(self, dataset: lance.LanceDataset, names: Names, rows: Rows | None) -> None:
        """Remember a view."""
        views = self.views.setdefault(dataset, {})
        if len(views) >= _MOST_VIEWS:
            views.clear()
        views[names] = rows


class _TooLargeError(Exception):
    """More than there is room for."""


class _ClosedError(Exception):
    """The process ends."""


class PageCache:
    """Columns of tables, as many as there is room for; those of the table that was asked for last stay longest.

    Safe to use from several threads.
    """

    def __init__(self, most: int) -> None:
        """`most` is how many bytes are kept, 0 for none."""
        self._most = most
        self._tables: OrderedDict[Place, _Table] = OrderedDict()
        self._lock = threading.Lock()
        self._versions: weakref.WeakKeyDictionary[lance.LanceDataset, Version | None] = weakref.WeakKeyDictionary()
        self._threads = ThreadPoolExecutor(1, "page-cache")
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        with self._lock:
            return sum(table.size for table in self._tables.values())

    def rows(self, place: Place, dataset: lance.LanceDataset, names: Names) -> Rows | None:
        """Columns of a table's latest version, if they are all here; else they may be soon. Never waits for Lance."""
        if not self._most:
            return None
        with self._lock:
            table = self._used(place)
            views = table.views.get(dataset)
            if views is not None and names in views:
                return views[names]
        version = self._version(dataset)
        if version is None or not version.columns.keys() >= set(names) or version.size(names) > self._most:
            with self._lock:
                table.enter(dataset, names, None)
            return None
        with self._lock:
            table.paid = min(table.paid + _WORTH, self._most)
            if not table.pages and table.paid < version.size(names):
                return None
            missing = [page for page in version.pages(names) if page.key not in table.pages]
            if not missing:
                return self._view(table, dataset, version, names)
            cost = sum(page.size for page in missing)
            if self._closed or table.paid < cost or not table.may_read(names, version.rows):
                return None
            table.paid -= cost
            table.loading = True
            self._threads.submit(self._fill, place, table, dataset, version, names, missing)
        return None

    def has(self, place: Place, dataset: lance.LanceDataset, names: Names) -> bool:
        """Whether queries for these columns are answered from memory already."""
        with self._lock:
            table = self._tables.get(place)
            return table is not None and table.views.get(dataset, {}).get(names) is not None

    def load(self, place: Place, dataset: lance.LanceDataset, names: Sequence[str] | None) -> None:
        """Read columns now, all that can be kept unless told. Raises UnsupportedOperationError if that cannot be."""
        version = self._version(dataset)
        if version is None or not self._most:
            raise UnsupportedOperationError(
                "Rows of this table are not kept in memory: the server has no room for any (page_cache_bytes), or the "
                f"table has no rows, over {MOST_FRAGMENTS} fragments (compact it) or files of an older format."
            )
        chosen = tuple(version.columns if names is None else names)
        if others := sorted(set(chosen) - version.columns.keys()):
            raise UnsupportedOperationError(f"Columns of these kinds are not kept in memory: {', '.join(others)}.")
        with self._lock:
            table = self._used(place)
            missing = [page for page in version.pages(chosen) if page.key not in table.pages]
        try:
            self._add(place, table, version, self._read(dataset, missing))
        except _TooLargeError:
            raise UnsupportedOperationError(
                f"These columns take more than the {self._most:,} bytes that the server keeps (page_cache_bytes)."
            ) from None

    def forget(self, location: str) -> None:
        """Let go of a table that is gone."""
        with self._lock:
            for place in [place for place in self._tables if place[0] == location]:
                del self._tables[place]

    def close(self) -> None:
        """Read nothing more; what is being read is given up."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _used(self, place: Place) -> _Table:
        """The entry of a table, from now on the one used last."""
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = _Table()
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(place)
        return table

    def _view(self, table: _Table, dataset: lance.LanceDataset, version: Version, names: Names) -> Rows:
        columns = [version.columns[name] for name in names]
        schema = pa.schema([column.field for column in columns])
        fragments = {
            fragment.number: pa.RecordBatch.from_arrays(
                [table.pages[Page(fragment, column).key] for column in columns], schema=schema
            )
            for fragment in version.fragments
        }
        rows = Rows(schema, fragments, version.by_id)
        table.enter(dataset, names, rows)
        return rows

    def _version(self, dataset: lance.LanceDataset) -> Version | None:
        """What can be kept of a version, None if nothing; looked up once per handle, since handles stay as they are."""
        if dataset not in self._versions:
            self._versions[dataset] = version_of(dataset, self._most)
        return self._versions[dataset]

    def _fill(
        self,
        place: Place,
        table: _Table,
        dataset: lance.LanceDataset,
        version: Version,
        names: Names,
        missing: list[Page],
    ) -> None:
        """For the thread: read what queries have paid for."""
        try:
            self._add(place, table, version, self._read(dataset, missing))
        except _ClosedError:
            return
        except _TooLargeError:
            table.refused[names] = version.rows
        except LanceNamespaceError as error:
            table.rests_until = monotonic() + _REST_SECONDS
            _log.warning("Rows of %s are not kept in memory, since they could not be read: %s", place[0], error)
        except Exception:  # noqa: BLE001  # nobody waits for this thread: it is said here, or never
            table.rests_until = monotonic() + _REST_SECONDS
            _log.exception("Rows of %s are not kept in memory, since they could not be read.", place[0])
        finally:
            table.loading = False

    def _read(self, dataset: lance.LanceDataset, missing: Iterable[Page]) -> dict[Key, pa.Array]:
        """Read what is missing, fragment by fragment. Raises _TooLargeError, _ClosedError, Lance's errors as ours."""
        fragments: dict[Fragment, list[Page]] = {}
        for page in missing:
            fragments.setdefault(page.fragment, []).append(page)
        found: dict[Key, pa.Array] = {}
        left = self._most
        for fragment, pages in fragments.items():
            with lance_errors(dataset):
                arrays = self._columns(dataset, fragment, [page.column.field.name for page in pages], left)
            left -= sum(array.nbytes for array in arrays)
            found |= {page.key: array for page, array in zip(pages, arrays, strict=True)}
        return found

    def _columns(self, dataset: lance.LanceDataset, fragment: Fragment, names: list[str], most: int) -> list[pa.Array]:
        """Columns of one fragment as its files have them."""
        source = dataset.get_fragment(fragment.number)
        assert source is not None
        deleted = {"include_deleted_rows": True, "with_row_id": True} if fragment.deleted else {}
        reader = source.scanner(columns=names, **deleted).to_reader()  # type: ignore[arg-type]  # see above
        batches: list[pa.RecordBatch] = []
        for batch in reader:
            if self._closed:
                raise _ClosedError
            if (most := most - batch.nbytes) < 0:
                raise _TooLargeError
            batches.append(batch)
        whole = pa.Table.from_batches(batches, reader.schema)
        if whole.num_rows != fragment.rows:
            raise LanceNamespaceError(f"Fragment {fragment.number} has {whole.num_rows} rows of {fragment.rows}.")
        arrays = [whole.column(name).combine_chunks() for name in names]
        if any(isinstance(array, pa.ChunkedArray) for array in arrays):
            raise _TooLargeError  # more than the offsets of one array can say
        return arrays

    def _add(self, place: Place, table: _Table, version: Version, pages: dict[Key, pa.Array]) -> None:
        """Keep pages, without those of older versions, and make room for them. Raises _TooLargeError."""
        contents = {fragment.content for fragment in version.fragments}
        with self._lock:
            if self._tables.get(place) is not table:
                return  # forgotten meanwhile
            kept = {key: page for key, page in table.pages.items() if key[0] in contents} | pages
            size = sum(page.nbytes for page in kept.values())
            if size > self._most:
                kept, size = pages, sum(page.nbytes for page in pages.values())
            if size > self._most:
                raise _TooLargeError
            table.pages, table.size = kept, size
            table.views.clear()
            total = sum(one.size for one in self._tables.values())
            for other in list(self._tables):
                if total <= self._most:
                    break
                if other != place:
                    total -= self._tables.pop(other).size
