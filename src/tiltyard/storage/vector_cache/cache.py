"""Keep indexes in memory for the vector columns that are searched often, within a budget, while memory is not short.

Each is built from Lance's rows in the background and never read by anything but a search. A version's rows are found by
its fragments: those in the index with equal content are searched there, less the rows that the version has deleted; the
others, by their vectors, until they are added. A version that shares too little with the index has it built anew, and
Lance answers meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from tiltyard.runtime.cache import IDLE_SECONDS, CountedCache, Kept, NoShareError, choose_dropped
from tiltyard.runtime.pool import Pool, filling_thread, run_together
from tiltyard.runtime.process import wall_clock
from tiltyard.runtime.system_memory import read_system_memory
from tiltyard.storage.vector_cache.fragments import (
    Array,
    Block,
    Fragment,
    UnsupportedVectorsError,
    read_fragments,
    read_vectors,
)
from tiltyard.storage.vector_cache.index import MemoryIndex, bytes_of_row, training_bytes
from tiltyard.storage.vector_cache.scalar_columns import NoRoomError, reading_bytes
from tiltyard.storage.vector_cache.scalar_values import columns_of, read_page, scalar_columns
from tiltyard.storage.vector_cache.searched_column import (
    COPIES,
    IndexOutdatedError,
    SearchedColumn,
    VectorKey,
    max_other_rows,
    room_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import lance

    from tiltyard.runtime.system_memory import SystemMemory
    from tiltyard.storage.caches.column_cache import BranchKey
    from tiltyard.storage.vector_cache.allowed_rows import Allowed
    from tiltyard.storage.vector_cache.index import Effort
    from tiltyard.storage.vector_cache.scalar_columns import KeptColumn
    from tiltyard.storage.vector_cache.scalar_values import ScalarFilter, ScalarPage
    from tiltyard.storage.vector_cache.searchable_rows import SearchableRows

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 60.0
UNUSED_SECONDS = IDLE_SECONDS
"""Without a search for so long, an index is dropped: those of tables that another process has dropped are, too."""
_MAX_COLUMNS = 256
"""Columns without an index whose searches are counted."""
EXTEND_ROWS = 256
"""Rows outside of an index from which on they are added to it."""
INLINE_OTHER_ROWS = 2048
"""Rows outside of an index below which a search runs on the event loop."""
_CHUNK_ROWS = 1024
_EXTENSION_ROWS = 64
"""Rows added at once while searches wait: 1 ms."""
_MIN_PART = 2
"""Queries for which it is worth a thread to search for a part of them."""
_MAX_PART = 16
"""Queries that are searched for at once: of more than 20, FAISS computes distances less exactly."""
_NO_SHARE = "the indexes of namespaces that have less of the memory would have to go (vector_cache_bytes)"
_SHORT = "memory is short on this machine"


class _ClosedError(Exception):
    """The process shuts down, or the table was dropped."""


class VectorCache(CountedCache):
    """Indexes in memory, as many as fit; of the tenant that has most, the one that was searched least recently is
    dropped first.

    Safe to use from several threads.
    """

    def __init__(
        self,
        max_bytes: int,
        processors: int = 1,
        read_memory: Callable[[], SystemMemory | None] = read_system_memory,
    ) -> None:
        """`max_bytes` is the budget of this process, 0 for no index at all; `processors` share several searches.

        `read_memory` tells what the machine has.
        """
        super().__init__(
            "vectors in memory",
            "Indexes of vector columns that are searched often, and columns that filters of these searches name often",
            max_bytes=max_bytes,
            invalidated_by="a version that shares too little with the index; a drop of its table; "
            "half an hour without a search, or a filter of a column; too little memory left",
        )
        self._processors = processors
        self._read_memory = read_memory
        self._entries: OrderedDict[VectorKey, SearchedColumn] = OrderedDict()
        self._lock = threading.Lock()
        self._builders = filling_thread(lowers_priority=True)
        self._extenders = filling_thread()
        """Of no lower priority: searches wait for its rows and codes. It never waits for a build."""
        self._is_closed = False

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> Sequence[tuple[str, int]]:
        with self._lock:
            return [(entry.key.table[0], entry.size) for entry in self._entries.values()]

    def _kept(self, tenants: Mapping[str, str], without: SearchedColumn | None = None) -> list[Kept[VectorKey]]:
        """Return what is kept for whom; the lock is held."""
        return [
            Kept(key, tenants.get(key.table[0], ""), entry.size, entry.searched_at)
            for key, entry in self._entries.items()
            if entry is not without
        ]

    def rows(self, key: VectorKey, dataset: lance.LanceDataset) -> SearchableRows | None:
        """Return the rows of a version if they can be searched in memory; else see to it that they will be."""
        entry = self._touch(key)
        if entry.index is None:
            self.misses += 1
            self._start_build(entry, dataset)
            return None
        return self._rows_of(entry, dataset)

    def _rows_of(self, entry: SearchedColumn, dataset: lance.LanceDataset) -> SearchableRows | None:
        index = entry.index
        with entry.lock:
            if index is None or entry.index is not index:
                return None
            try:
                rows = entry.rows_of(dataset, index)
            except UnsupportedVectorsError as error:
                entry.drop_index(f"{error}")
                entry.retry_at = monotonic() + _RETRY_SECONDS
                return None
            except IndexOutdatedError:
                entry.drop_index("most rows are new to it: it is built anew")
                return None
        if len(rows.others) >= EXTEND_ROWS:
            self._start(self._extenders, entry, self._extend, dataset)
        return rows

    def search(
        self, rows: SearchableRows, queries: Array, count: int, allowed: Allowed, effort: Effort
    ) -> list[tuple[Array, Array]]:
        """Return addresses and distances of the rows of a version nearest to each query, nearest first.

        `queries` has the shape (queries, dimension). Each processor searches for a part of them.
        """
        self.hits += len(queries)
        if rows.index.should_pack(allowed):
            self._start_packing(rows.index, allowed)
        parts = max(min(self._processors, len(queries) // _MIN_PART), -(-len(queries) // _MAX_PART))
        if parts < 2:
            return rows.search(queries, count, allowed, effort)
        found = run_together(
            lambda part: rows.search(part, count, allowed, effort), np.array_split(queries, parts), self._processors
        )
        return [each for part in found for each in part]

    def _start_packing(self, index: MemoryIndex, allowed: Allowed) -> None:
        with self._lock:
            if allowed.is_packing or self._is_closed:
                return
            allowed.is_packing = True
            self._extenders.submit(self._pack, index, allowed)

    def _pack(self, index: MemoryIndex, allowed: Allowed) -> None:
        """Keep the codes of the rows that a filter allows, in a thread of the cache."""
        try:
            index.pack(allowed, self._check_open)
        except _ClosedError:
            return
        except Exception:  # noqa: BLE001  # nobody waits: the log alone reports it, and searches go on without
            _log.exception("Codes of the rows of a filter are not kept in memory.")

    def allow(
        self,
        key: VectorKey,
        dataset: lance.LanceDataset,
        rows: SearchableRows,
        selected: ScalarFilter,
        *,
        is_counted: bool,
        may_read: bool,
    ) -> Allowed | str:
        """Return the rows of a version that a filter allows, by the values of its columns, or why Lance finds them.

        What is not `is_counted` is no use of the columns. Who `may_read` reads the few rows that a version brings.
        """
        entry = self._entries.get(key)
        if entry is None or entry.index is not rows.index:
            return "the index was dropped"
        pages, reason = {}, ""
        for column in {column.id: column for column in columns_of(selected)}.values():
            with self._lock:
                kept = entry.columns.get(column, is_counted=is_counted)
            if missing := kept.missing(rows.fragments):
                few = sum(fragment.physical_rows for fragment in missing) <= max_other_rows(rows.index.capacity)
                if kept.pages and few:
                    if may_read:
                        with suppress(_ClosedError):
                            self._read_values(entry, dataset, kept, rows.fragments)
                elif is_counted and kept.uses.add() and monotonic() >= kept.retry_at:
                    self._start_loading(entry, dataset, rows.fragments)
            pages[column.id] = kept.pages
            if any(fragment.key not in pages[column.id] for fragment in rows.fragments):
                reason = f"the values of '{column.name}' are not in memory: {kept.state}"
        return reason or rows.select(selected, pages)

    def _start_loading(
        self, entry: SearchedColumn, dataset: lance.LanceDataset, fragments: tuple[Fragment, ...]
    ) -> None:
        with self._lock:
            if entry.is_loading or self._is_closed:
                return
            entry.is_loading = True
            self._builders.submit(self._load_columns, entry, dataset, fragments)

    def _load_columns(
        self, entry: SearchedColumn, dataset: lance.LanceDataset, fragments: tuple[Fragment, ...]
    ) -> None:
        """Read the values of the columns that filters named often, in a thread of the cache."""
        with self._lock:
            columns = [kept for kept in entry.columns.kept if kept.uses.are_often and monotonic() >= kept.retry_at]
        try:
            for kept in columns:
                self._read_values(entry, dataset, kept, fragments)
        except _ClosedError:
            return
        finally:
            entry.is_loading = False

    def _read_values(
        self, entry: SearchedColumn, dataset: lance.LanceDataset, kept: KeptColumn, fragments: tuple[Fragment, ...]
    ) -> None:
        """Read the values of a column that are not in memory yet, and forget those of other fragments."""
        with kept.reading:
            try:
                read = self._read_pages(entry, dataset, kept, fragments)
            except _ClosedError:
                raise
            except NoRoomError as error:
                kept.forget_values(f"{error}", monotonic() + _RETRY_SECONDS)
            except BaseException as error:  # noqa: BLE001  # a panic of Lance, too; Lance answers, and the log reports it
                kept.forget_values(f"they could not be read ({type(error).__name__})", monotonic() + _RETRY_SECONDS)
                _log.exception("Values of %s are not kept in memory.", entry.key.table[0])
            else:
                known = {**kept.pages, **read}
                kept.pages = {fragment.key: known[fragment.key] for fragment in fragments if fragment.key in known}
            finally:
                kept.reading_bytes = 0

    def _read_pages(
        self, entry: SearchedColumn, dataset: lance.LanceDataset, kept: KeptColumn, fragments: tuple[Fragment, ...]
    ) -> dict[tuple[int, str], ScalarPage]:
        """Return the values of fragments that are not in memory. Raises as `read_page` does, NoRoomError, KeyError."""
        column = scalar_columns(dataset)[kept.column.id]  # by its name in this version
        kept.state = "they are being read"
        read: dict[tuple[int, str], ScalarPage] = {}
        for fragment in kept.missing(fragments):
            before = sum(page.nbytes for page in read.values())

            def check(size: int, rows: int = fragment.physical_rows, before: int = before) -> None:
                self._check(entry)
                self._make_room_for_values(entry, kept, before + reading_bytes(rows, size))

            check(0)
            read[fragment.key] = read_page(dataset, fragment, column, check)
        return read

    def _make_room_for_values(self, entry: SearchedColumn, kept: KeptColumn, size: int) -> None:
        """Make room for values of a column that are being read, from now on counted: never that of vectors.

        Raises NoRoomError, also where too little memory would be left.
        """
        memory = self._read_memory()
        if memory is not None and memory.missing(size - kept.reading_bytes):
            raise NoRoomError(_SHORT)
        more = size - kept.reading_bytes
        is_full = more + sum(each.reserved for each in list(self._entries.values())) > self.max_bytes
        tenants = self.find_tenants() if is_full else {}
        tenant = tenants.get(entry.key.table[0], "")
        with self._lock:
            bound = self.max_bytes - sum(each.reserved - each.columns.size for each in self._entries.values())
            others = [each for each in self._kept_columns(tenants) if each.key is not kept]
            try:
                dropped = choose_dropped(others, kept.size + more, tenant, bound)
            except NoShareError:
                raise NoRoomError("there is no room for them beside the vectors (vector_cache_bytes)") from None
            for other in dropped:
                other.forget_values("columns that filters named later took their memory", monotonic() + _RETRY_SECONDS)
            kept.reading_bytes = size

    def _forget_values(self, tenants: Mapping[str, str], state: str, bound: int, missing: int) -> int:
        """Forget values of columns beyond a bound, and of as many more bytes as are missing; return their bytes.

        The lock is held.
        """
        kept = self._kept_columns(tenants)
        size = sum(each.size for each in kept)
        dropped = choose_dropped(kept, 0, "", max(0, min(bound, size - missing)))
        freed = sum(column.size for column in dropped)
        for column in dropped:
            column.forget_values(state, monotonic() + _RETRY_SECONDS)
        return freed

    def _kept_columns(self, tenants: Mapping[str, str]) -> list[Kept[KeptColumn]]:
        """Return the columns with values, the one used least recently first; the lock is held."""
        kept = [
            Kept(column, tenants.get(entry.key.table[0], ""), column.size, column.used_at)
            for entry in self._entries.values()
            for column in entry.columns.kept
            if column.pages
        ]
        return sorted(kept, key=lambda each: each.used_at)

    def is_ready(self, table: BranchKey, column: str | None, dataset: lance.LanceDataset) -> bool:
        """Return whether a version can be searched at once by a column, or by any; nothing is read for it."""
        with self._lock:
            entries = [
                entry for key, entry in self._entries.items() if key.table == table and column in (None, key.column)
            ]
        versions = [entry.versions.get(dataset) for entry in entries if entry.index is not None]
        return any(rows is not None and len(rows.others) < INLINE_OTHER_ROWS for rows in versions)

    def state(self, key: VectorKey, dataset: lance.LanceDataset) -> str | SearchableRows:
        """Return why Lance answers the searches of a column, or the rows that are searched instead."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is None:
            return "too few searches yet"
        return self._rows_of(entry, dataset) or entry.state

    def evict(self, location: str) -> None:
        """Drop the indexes of a table that was deleted."""
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.key.table[0] == location:
                    self._drop(entry)

    def drop_unneeded(self) -> int:
        """Drop what nobody searched for long, and while memory is short, more of whoever has most; for a timer.

        Return the bytes that were dropped.
        """
        if not self._entries:
            return 0
        memory, now, dropped = self._read_memory(), monotonic(), 0
        missing = 0 if memory is None else memory.missing()
        tenants = self.find_tenants() if missing else {}
        with self._lock:
            dropped += sum(entry.columns.forget_unused(now - UNUSED_SECONDS) for entry in self._entries.values())
            dropped += self._forget_values(tenants, _SHORT, self.max_bytes, missing - dropped)
            for entry in list(self._entries.values()):
                if now - entry.searched_at > UNUSED_SECONDS:
                    dropped += entry.size
                    self._drop(entry)
            kept = self._kept(tenants)
            left = max(0, sum(each.size for each in kept) - max(0, missing - dropped))
            for key in choose_dropped(kept, 0, "", left):
                dropped += self._entries[key].size
                self._drop(self._entries[key], _SHORT, now + _RETRY_SECONDS)
        return dropped

    def _drop(self, entry: SearchedColumn, state: str = "", retry_at: float = 0.0) -> None:
        """Forget an entry, and end the work on it; with a `state`, its key has a new one. The lock is held."""
        entry.is_dropped = True
        if self._entries.get(entry.key) is not entry:
            return
        if state:
            self._entries[entry.key] = SearchedColumn(
                entry.key, searched_at=entry.searched_at, state=state, retry_at=retry_at
            )
        else:
            del self._entries[entry.key]

    def close(self) -> None:
        """Build no more, and stop the running build."""
        self._is_closed = True
        self._builders.shutdown(wait=False, cancel_futures=True)
        self._extenders.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait for builds and extensions that were started before."""
        self._builders.submit(int).result()
        self._extenders.submit(int).result()

    def _touch(self, key: VectorKey) -> SearchedColumn:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = SearchedColumn(key)
                counted = [each for each in self._entries.values() if each.index is None and not each.is_working]
                if len(counted) > _MAX_COLUMNS:
                    self._drop(counted[0])
            else:
                self._entries.move_to_end(key)
                entry.searched_at = monotonic()
            return entry

    def _start_build(self, entry: SearchedColumn, dataset: lance.LanceDataset) -> None:
        if entry.searches.add() and monotonic() >= entry.retry_at:
            self._start(self._builders, entry, self._build, dataset)

    def _start(self, threads: Pool, entry: SearchedColumn, work: _Work, dataset: lance.LanceDataset) -> None:
        with self._lock:
            if entry.is_working or self._is_closed:
                return
            entry.is_working = True
            threads.submit(self._run, entry, work, dataset)

    def _run(self, entry: SearchedColumn, work: _Work, dataset: lance.LanceDataset) -> None:
        """Do a piece of work on an entry, in a thread of the cache."""
        try:
            work(entry, dataset)
        except _ClosedError:
            return
        except UnsupportedVectorsError as error:
            self._give_up(entry, f"{error}")
            _log.info("Vectors of %s are not kept in memory: %s.", entry.key.table[0], error)
        except BaseException as error:  # noqa: BLE001  # a panic of Lance, too; nobody waits: the log alone reports it
            self._give_up(entry, f"its rows could not be read ({type(error).__name__})")
            _log.exception("Vectors of %s are not kept in memory.", entry.key.table[0])
        finally:
            entry.building_bytes, entry.is_working = 0, False

    def _give_up(self, entry: SearchedColumn, state: str) -> None:
        with entry.lock:
            entry.drop_index(state)
            entry.retry_at = monotonic() + _RETRY_SECONDS

    def _build(self, entry: SearchedColumn, dataset: lance.LanceDataset) -> None:
        self._check(entry)
        rows = dataset.count_rows()
        capacity = room_for(rows)
        dimension = entry.key.dimension
        later = max(max_other_rows(capacity) * COPIES * 4 * dimension, training_bytes(rows, dimension))
        self._make_room(entry, capacity * bytes_of_row(dimension) + later)
        entry.state = "it is being built"
        index = MemoryIndex(entry.key.dimension, entry.key.metric, capacity)
        blocks = {}
        for fragment in read_fragments(dataset):
            parts = read_vectors(dataset, fragment, entry.key.column, normalize=entry.key.metric == "cosine")
            blocks[fragment.key] = self._add(entry, index, fragment, parts, _CHUNK_ROWS)
        index.make_partitions(partial(self._check, entry))
        index.ready_at = wall_clock()
        with self._lock, entry.lock:
            self._check(entry)
            entry.building_bytes = 0
            entry.blocks, entry.index, entry.state = blocks, index, "it is not up to date"

    def _make_room(self, entry: SearchedColumn, size: int) -> None:
        """Drop indexes of whoever has most for a build, whose bytes count from now on.

        Raises UnsupportedVectorsError for what never fits, where too little memory would be left, and where only
        namespaces that have less would make room.
        """
        if size > self.max_bytes:
            raise UnsupportedVectorsError(
                f"it would take {size:,} bytes, and each process of the server has {self.max_bytes:,} "
                "(vector_cache_bytes)"
            )
        memory, tenants = self._read_memory(), self.find_tenants()
        tenant = tenants.get(entry.key.table[0], "")
        with self._lock:
            missing = 0 if memory is None else memory.missing(size)
            vectors = sum(other.size - other.columns.size for other in self._entries.values() if other is not entry)
            forgotten = self._forget_values(
                tenants, "vectors took their memory", self.max_bytes - size - vectors, missing
            )
            try:
                keys = choose_dropped(self._kept(tenants, entry), size, tenant, self.max_bytes)
            except NoShareError:
                raise UnsupportedVectorsError(_NO_SHARE) from None
            dropped = [self._entries[key] for key in keys]
            if memory is not None and memory.missing(size - sum(other.size for other in dropped) - forgotten):
                raise UnsupportedVectorsError(_SHORT)
            for other in dropped:
                self._drop(other, "others that were searched later took its memory")
            entry.building_bytes = size

    def _extend(self, entry: SearchedColumn, dataset: lance.LanceDataset) -> None:
        """Add the rows that were read for the latest version to the index."""
        with entry.lock:
            index, others = entry.index, dict(entry.others)
        if index is None:
            return
        if index.rows + sum(len(block.offsets) for block in others.values()) > index.capacity:
            with entry.lock:
                entry.drop_index("it has no room for new rows: it is built anew")
            return
        added = {}
        for key, block in others.items():
            assert block.vectors is not None
            rows = (block.offsets, block.vectors, block.nulls)
            added[key] = self._add(entry, index, block.fragment, [rows], _EXTENSION_ROWS)
        with entry.lock:
            if entry.index is index:
                entry.blocks |= added
                entry.others = {key: block for key, block in entry.others.items() if key not in added}
                entry.masks = {key: mask for key, mask in entry.masks.items() if key not in added}
                latest = max(entry.versions.keys(), key=lambda known: known.version, default=None)
                entry.versions.clear()  # they were right, but had all these rows outside of the index
                with suppress(IndexOutdatedError):  # the next search of the version meets it, too
                    if latest is not None:
                        entry.rows_of(latest, index)

    def _add(
        self,
        entry: SearchedColumn,
        index: MemoryIndex,
        fragment: Fragment,
        parts: Iterable[tuple[Array, Array, Array]],
        chunk_rows: int,
    ) -> Block:
        """Add rows of a fragment to an index; return their block. No version has them until the block is known."""
        start, base = index.rows, np.uint64(fragment.number << 32)
        offsets, nulls = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint32)]
        for part, vectors, without in parts:
            for first in range(0, len(part), chunk_rows):
                self._check(entry)
                chunk = slice(first, first + chunk_rows)
                index.add(part[chunk].astype(np.uint64) + base, vectors[chunk])
            offsets.append(part)
            nulls.append(without)
        return Block(fragment, np.concatenate(offsets), np.concatenate(nulls), start)

    def _check(self, entry: SearchedColumn) -> None:
        """Raise _ClosedError where nobody waits for the work any more."""
        self._check_open()
        if entry.is_dropped:
            raise _ClosedError

    def _check_open(self) -> None:
        """Raise _ClosedError while the process shuts down."""
        if self._is_closed:
            raise _ClosedError


if TYPE_CHECKING:
    _Work = Callable[[SearchedColumn, lance.LanceDataset], None]
