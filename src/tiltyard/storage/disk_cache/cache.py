"""Answer reads of tables on object stores from a folder of this machine: from copies, or from blocks of their files.

`DiskCache.open` chooses. The latest version of main is copied as a whole, in the background, where it is read often and
takes at most half of the room: Lance reads a copy as fast as any table on a disk. All else is read by ranges, of which
blocks are kept: it costs Lance a request to this process for each, so that it is slower than a copy, and it needs no
more than what is read. Nothing but a read ever uses either, and only of that very version: which version is the latest
is looked up as ever. A commit leaves most files as they are, so that few have to be copied after it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from lance_namespace.errors import InternalError, LanceNamespaceError, ServiceUnavailableError

from tiltyard.runtime.cache import CountedCache, Kept, NoShareError, choose_dropped
from tiltyard.runtime.pool import filling_thread
from tiltyard.storage.caches.recent_uses import RecentUses
from tiltyard.storage.disk_cache.blocks import Segment
from tiltyard.storage.disk_cache.ranges import Ranges
from tiltyard.storage.disk_cache.table_copy import CopyError, TableCopy
from tiltyard.storage.disk_cache.version_files import UnsupportedTableError, list_version_files
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local

if TYPE_CHECKING:
    import lance

    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.storage.files import Files

_log = logging.getLogger(__name__)

READS = 3
"""Reads within a minute for which a table is copied."""
_COPY_SHARE = 2
"""A copy takes at most this part of the room: a larger table would leave none for others, and is read by ranges."""
_RETRY_SECONDS = 60.0
_MAX_TABLES = 1024
"""Tables without a copy whose reads are counted."""
_FORGOTTEN = 64
_MAX_PROCESSES = 1024
_LOCK = "lock"
_MAY_BE_DAMAGE = (InternalError, ServiceUnavailableError)


class _ClosedError(Exception):
    """The process shuts down, or the table was dropped."""


@dataclass(slots=True)
class _Opened:
    """A version that is opened from its copy; `source` is the dataset of the object store."""

    source: weakref.ref[lance.LanceDataset]
    snapshot: CachedVersion
    paths: frozenset[str]


@dataclass(slots=True)
class _Table:
    """What is known of one table."""

    location: str
    reads: RecentUses = field(default_factory=lambda: RecentUses(READS))
    state: str = "too few reads yet"
    retry_at: float = 0.0
    verify_at: float = 0.0
    is_working: bool = False
    is_dropped: bool = False
    read_at: float = field(default_factory=monotonic)
    copy: TableCopy | None = None
    opened: _Opened | None = None

    def wants_copy(self) -> bool:
        """Count a read; return whether the table is to be copied now."""
        is_read_often = self.reads.add()
        return not self.is_working and monotonic() >= self.retry_at and (self.copy is not None or is_read_often)


class DiskCache(CountedCache):
    """Copies of tables and blocks of their files, as many as fit; of the tenant that has most, what was read least
    recently is dropped first.

    Safe to use from several threads. Processes share the folder, and have a folder of their own in it, which the next
    process takes over with what is there: it is read whole, and compared with its checksums, before it is used.
    """

    def __init__(self, folder: str, max_bytes: int, session: lance.Session) -> None:
        """`max_bytes` is the budget of this process, 0 for no copies at all."""
        super().__init__(
            "tables on disk",
            "Copies of tables on object stores that are read often, and blocks of the files of others",
            max_bytes=max_bytes,
            invalidated_by="a later version, of which only new files are copied; damage; a drop of its table",
        )
        self.open_files: Callable[[str], Files] | None = None
        """Returns what reads the files at a location."""
        self._folder = Path(folder)
        self._session = session
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        """Held while the folder is taken."""
        self._threads = filling_thread()
        self._own_folder: Path | None = None
        self._lock_file = -1
        self._left: dict[str, TableCopy] = {}
        """Copies of an earlier process, by location, that were not used in this one."""
        self._unwanted: list[TableCopy] = []
        """Copies that are deleted once nobody reads them."""
        self._is_closed = False
        self.ranges = Ranges(max_bytes, session, self._take_folder, self._make_room)

    @property
    def size(self) -> int:
        """Bytes of all copies and blocks."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> Sequence[tuple[str, int]]:
        copies = [(copy.location, copy.size) for copy in self._copies()]
        return copies + [(segment.location, segment.size) for segment in self.ranges.blocks.segments()]

    def open(self, location: str, snapshot: CachedVersion, *, is_latest: bool) -> CachedVersion:
        """Return the same version from its copy, or read by ranges; the same snapshot where neither can be.

        `is_latest` says that it is the latest one of main. Makes one request for a version that was not opened before.
        """
        copied = self.snapshot(location, snapshot) if is_latest else snapshot
        if copied is not snapshot or not self.max_bytes or is_local(location) or self.open_files is None:
            return copied
        try:
            return self.ranges.open(location, snapshot, self.open_files)
        except LanceNamespaceError as error:
            _log.warning("The table at %s is not read by ranges: %s", location, error)
            return snapshot

    def snapshot(self, location: str, snapshot: CachedVersion) -> CachedVersion:
        """Return the same version from its copy; the same snapshot where there is none, and see to it that there is.

        For the latest version of main. Neither waits nor makes a request.
        """
        if not self.max_bytes or is_local(location):
            return snapshot
        with self._lock:
            table = self._touch(location)
            opened = table.opened
            if opened is not None and opened.source() is snapshot.dataset:
                assert table.copy is not None
                if table.copy.has_manifest(int(snapshot.dataset.version)):
                    self.hits += 1
                    return opened.snapshot
                self._drop_copy(table, "its copy was deleted")
            self.misses += 1
            if table.wants_copy() and not self._is_closed:
                table.is_working = True
                self._threads.submit(self._run, table, snapshot.dataset)
        return snapshot

    def state(self, location: str, snapshot: CachedVersion) -> str | None:
        """Return why a version is read from the object store; None where its copy is read."""
        with self._lock:
            table = self._tables.get(location)
            if table is None:
                return "too few reads yet"
            is_open = table.opened is not None and table.opened.snapshot is snapshot
            return None if is_open else table.state

    def drop_if_damaged(self, location: str, snapshot: CachedVersion, error: Exception) -> bool:
        """After an error of a read, return whether that was the copy's: it is dropped, and the object store has to be
        read.

        Files that are gone or shorter are seen at once. If none are and the error may be about their content, that is
        compared with its checksums in the background.
        """
        if self.ranges.reads(snapshot):
            return not self.ranges.is_serving
        with self._lock:
            table = self._tables.get(location)
            if table is None or table.copy is None or table.opened is None or table.opened.snapshot is not snapshot:
                return True  # dropped meanwhile
            copy = table.copy
            if not copy.has_files(table.opened.paths):
                self._drop_damaged(table)
                return True
            if isinstance(error, _MAY_BE_DAMAGE) and not self._is_closed and monotonic() >= table.verify_at:
                table.verify_at = monotonic() + _RETRY_SECONDS
                self._threads.submit(self._verify, table, copy)
        return False

    def evict(self, location: str) -> None:
        """Drop the copy and the blocks of a table that was deleted."""
        self.ranges.drop(location)
        with self._lock:
            table = self._tables.pop(location, None)
            if table is None:
                return
            table.is_dropped = True
            self._drop_copy(table, "the table was dropped")
            if not self._is_closed:
                self._threads.submit(self._sweep)

    def close(self) -> None:
        """Copy nothing more, stop what is being copied, and leave the folder to another process."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.ranges.close()
            if self._own_folder is not None:
                self._threads.submit(self._release_folder)
        self._threads.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for copies that were begun before, and for blocks that were read."""
        self._threads.submit(int).result()
        self.ranges.wait()

    def _touch(self, location: str) -> _Table:
        table = self._tables.get(location)
        if table is None:
            table = self._tables[location] = _Table(location)
            if len(self._tables) > _MAX_TABLES:
                self._forget_tables()
        else:
            self._tables.move_to_end(location)
            table.read_at = monotonic()
        return table

    def _forget_tables(self) -> None:
        """Forget the reads of some tables that have no copy; called with the lock."""
        counted = [each for each in self._tables.values() if each.copy is None and not each.is_working]
        for each in counted[: max(0, len(counted) - _MAX_TABLES + _FORGOTTEN)]:
            each.is_dropped = True
            del self._tables[each.location]

    def _drop_copy(self, table: _Table, state: str) -> None:
        """Forget a table's copy, which is deleted later; called with the lock."""
        if table.copy is not None:
            self._unwanted.append(table.copy)
        table.copy, table.opened, table.state = None, None, state

    def _drop_damaged(self, table: _Table) -> None:
        self._drop_copy(table, "its copy was damaged")
        _log.warning("The copy of the table at %s was damaged: it is read from the object store.", table.location)

    def _verify(self, table: _Table, copy: TableCopy) -> None:
        """Drop a copy that is damaged, in the cache's thread."""
        if not copy.is_intact():
            with self._lock:
                if table.copy is copy:
                    self._drop_damaged(table)
            self._sweep()

    def _copies(self) -> list[TableCopy]:
        with self._lock:
            used = [table.copy for table in self._tables.values() if table.copy is not None]
            return [*used, *self._left.values(), *self._unwanted]

    def _run(self, table: _Table, dataset: lance.LanceDataset) -> None:
        """Copy a version of a table, in the cache's thread."""
        try:
            self._copy_version(table, dataset)
        except _ClosedError:
            return
        except (UnsupportedTableError, CopyError, OSError, LanceNamespaceError) as error:
            table.state, table.retry_at = f"it was not copied: {error}", monotonic() + _RETRY_SECONDS
            _log.warning("The table at %s is not copied to disk: %s", table.location, error)
        except Exception as error:  # noqa: BLE001  # nobody waits for this thread: the log is the only place to report it
            table.state = f"it was not copied ({type(error).__name__})"
            table.retry_at = monotonic() + _RETRY_SECONDS
            _log.exception("The table at %s is not copied to disk.", table.location)
        else:
            table.is_working = False
            self._sweep()
        finally:
            table.is_working = False

    def _copy_version(self, table: _Table, dataset: lance.LanceDataset) -> None:
        if self._is_closed or self.open_files is None:
            raise _ClosedError
        location = table.location
        own_folder = self._take_folder()
        table.state = "it is being copied"
        with lance_errors(location):
            files = self.open_files(location)
            sizes = list_version_files(dataset, files, location)
        if (size := sum(sizes.values())) > self.max_bytes // _COPY_SHARE:
            raise UnsupportedTableError(
                f"it has {size:,} bytes, more than half of the server's {self.max_bytes:,} (disk_cache_bytes)"
            )
        copy = table.copy or self._adopt(location) or TableCopy.create(own_folder, location)
        with self._lock:
            if table.is_dropped:
                self._unwanted.append(copy)
                raise _ClosedError
            table.copy = copy
        missing = copy.missing(sizes)
        self._make_room(location, sum(missing.values()))
        with lance_errors(location):
            copy.download(files, missing, lambda: self._check_wanted(table))
            snapshot = copy.open(dataset, frozenset(sizes), self._session)
        with self._lock:
            if table.copy is copy:
                table.opened = _Opened(weakref.ref(dataset), snapshot, frozenset(sizes))
                table.state = "its latest version is not copied yet"
        self.ranges.drop(location)

    def _check_wanted(self, table: _Table) -> None:
        if self._is_closed or table.is_dropped or table.copy is None:
            raise _ClosedError

    def _adopt(self, location: str) -> TableCopy | None:
        """Return what an earlier process has copied of a table, as far as it is intact."""
        with self._lock:
            copy = self._left.pop(location, None)
        if copy is not None:
            copy.forget_damaged()
        return copy

    def _make_room(self, location: str, more: int) -> None:
        """Drop copies of an earlier process, then of whoever has most, for more bytes of a table.

        Raises UnsupportedTableError while they are still read, and where only tenants that have less would make room.
        """
        if self.size + more <= self.max_bytes:
            return
        tenants = self.find_tenants()
        with self._lock:
            left = list(self._left)
        while left and self.size + more > self.max_bytes:
            with self._lock:
                if (copy := self._left.pop(left.pop(0), None)) is not None:
                    self._unwanted.append(copy)
            self._sweep()
        others = self._choose_others(location, more, tenants)
        while others and self.size + more > self.max_bytes:
            other = others.pop(0)
            if isinstance(other, Segment):
                self.ranges.drop_segment(other)
                continue
            with self._lock:
                self._drop_copy(other, "others that were read later took its room")
                other.reads.clear()
            self._sweep()
        if self.size + more > self.max_bytes:
            raise UnsupportedTableError("the room is taken by versions that are still read")

    def _choose_others(self, location: str, more: int, tenants: Mapping[str, str]) -> list[_Table | Segment]:
        """Return the copies of tables, and the segments, that go for more bytes of a table.

        Raises UnsupportedTableError.
        """
        with self._lock:
            table = self._tables.get(location)
            own = table.copy.size if table is not None and table.copy is not None else 0
            kept: list[Kept[_Table | Segment]] = [
                Kept(each, tenants.get(each.location, ""), each.copy.size, each.read_at)
                for each in self._tables.values()
                if each is not table and each.copy is not None
            ]
        segments = self.ranges.blocks.segments()
        kept += [Kept(each, tenants.get(each.location, ""), each.size, each.used_at) for each in segments]
        kept.sort(key=lambda each: each.used_at)
        unwanted = self.size - own - sum(each.size for each in kept)
        try:
            return choose_dropped(kept, own + more, tenants.get(location, ""), self.max_bytes - unwanted)
        except NoShareError:
            raise UnsupportedTableError(
                "copies of namespaces that have less of the room would have to go (disk_cache_bytes)"
            ) from None

    def _sweep(self) -> None:
        """Delete what nobody needs any more."""
        with self._lock:
            unwanted = [copy for copy in self._unwanted if not copy.is_read]
            self._unwanted = [copy for copy in self._unwanted if copy.is_read]
            kept = [table.copy for table in self._tables.values() if table.copy and not table.is_working]
        for copy in unwanted:
            copy.delete()
        for copy in kept:
            copy.sweep()

    def _take_folder(self) -> Path:
        """Return the folder of this process: the first that no other process has; with what it finds there."""
        with self._taking:
            return self._own_folder or self._take_first_folder()

    def _take_first_folder(self) -> Path:
        for number in range(_MAX_PROCESSES):
            folder = self._folder / f"process-{number}"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock_file)
                continue
            self._lock_file = lock_file  # held until the process ends
            left = {}
            for entry in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime):
                if entry.name == _LOCK:
                    continue
                if self.ranges.blocks.take_over(entry):
                    continue
                copy = TableCopy.read(entry)
                if copy is None or copy.location in left:
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    left[copy.location] = copy
            with self._lock:
                self._left = left
            self._own_folder = folder
            return folder
        raise CopyError(f"{_MAX_PROCESSES} processes keep copies in {self._folder} already")

    def _release_folder(self) -> None:
        os.close(self._lock_file)
        self._own_folder = None
