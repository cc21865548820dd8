"""Read tables on object stores by ranges, of which blocks are kept on disk: for what is not there as a copy."""

from __future__ import annotations

import hashlib
import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import lance

from tiltyard.runtime.pool import filling_thread
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.disk_cache.blocks import BlockStore
from tiltyard.storage.disk_cache.range_reader import TAIL_BYTES, RangeFile, RangeReader
from tiltyard.storage.disk_cache.range_server import NoServerError, RangeServer
from tiltyard.storage.disk_cache.version_files import UnsupportedTableError
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import canonical_location
from tiltyard.storage.objects import ObjectFiles
from tiltyard.storage.pylance_internals import native_dataset

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tiltyard.storage.disk_cache.blocks import Content, Segment
    from tiltyard.storage.files import Files

_log = logging.getLogger(__name__)

_SCHEME = "s3://"
"""What Lance can be told another endpoint for whose requests are as simple as they are here."""
MAX_READ_AHEAD_BYTES = 64 << 20
"""Bytes of indexes that are read when a table is opened; the smallest ones first."""
MAX_READ_AHEAD_FILES = 64
"""Data files of a table whose ends are read when it is opened; of a table with more, none."""
MAX_SMALL_BYTES = 8 << 20
"""Bytes of data files that are read as a whole then: what a round trip costs."""
_INDEX_FILES = {
    "IVF": ("index.idx", "auxiliary.idx"),
    "BTREE": ("page_lookup.lance", "page_data.lance"),
    "BITMAP": ("bitmap_page_lookup.lance",),
}
"""Files of indexes by how the names of their types begin."""
MAX_VERSIONS = 64
"""Versions that are kept open for the next request."""
_OFF_SECONDS = 60.0
"""How long nothing is written after the disk took no more."""


class Ranges:
    """Opens tables so that Lance reads them through this process, which keeps blocks of what it reads.

    Only reads go this way: a dataset that it opens is not written through, and the endpoint would refuse it.
    """

    def __init__(
        self,
        max_bytes: int,
        session: lance.Session,
        take_folder: Callable[[], Path],
        make_room: Callable[[str, int], object],
    ) -> None:
        """`take_folder()` returns the folder for blocks; `make_room(location, bytes)` drops others for more of a table.

        Both are called in the thread that writes, and raise what says why nothing is written.
        """
        self.blocks = BlockStore(max_bytes)
        self.reason = ""
        """Why nothing is read by ranges, or written to disk; empty where both go on."""
        self._max_bytes = max_bytes
        self._session = session
        self._take_folder, self._make_room = take_folder, make_room
        self._writer = filling_thread()
        self._server: RangeServer | None = None
        self._lock = threading.Lock()
        self._off_until = 0.0
        self._opened: WeakValueDictionary[int, lance.LanceDataset] = WeakValueDictionary()
        self._versions: dict[tuple[str, str, bytes], CachedVersion] = {}
        """Versions that were opened last, by their table and the digest of their manifest."""
        self._is_closed = False

    @property
    def is_serving(self) -> bool:
        """Whether reads by ranges are answered."""
        return self._server is not None and self._server.is_serving

    @property
    def counts(self) -> tuple[int, int]:
        """Blocks that were read from disk, and from object stores."""
        server = self._server
        return (server.reader.hits, server.reader.misses) if server is not None else (0, 0)

    def open(self, location: str, snapshot: CachedVersion, open_files: Callable[[str], Files]) -> CachedVersion:
        """Return the same version, read by ranges; the same snapshot where that cannot be.

        `open_files` returns what reads the files at a location: at the table's own, and where a clone has others.
        Makes one request for a version that was not opened before. Raises what opening it raises.
        """
        places = (location, *(canonical_location(base.path) for base in snapshot.fact(_bases)))
        if not all(place.startswith(_SCHEME) for place in places) or (server := self._serve()) is None:
            return snapshot
        for place in places:
            known, files = server.reader.tables.get(place), open_files(place)
            if not isinstance(files, ObjectFiles):
                return snapshot
            if known is None or known.files is not files:
                server.call(server.reader.add_table, place, files)
        return snapshot.fact(self._open_version, location, server)

    def reads(self, snapshot: CachedVersion) -> bool:
        """Whether a version is one that `open` has returned, read by ranges."""
        return self._opened.get(id(snapshot.dataset)) is snapshot.dataset

    def _open_version(self, source: lance.LanceDataset, location: str, server: RangeServer) -> CachedVersion:
        """Open a version, or return the one of the same manifest that was opened before, and was not dropped since."""
        manifest = native_dataset(source).serialized_manifest()
        key = location, source.uri, hashlib.sha256(manifest).digest()
        with self._lock:
            known = self._versions.pop(key, None)
        snapshot = known or self._open_manifest(source, manifest, location, server)
        with self._lock:
            self._versions[key] = snapshot
            while len(self._versions) > MAX_VERSIONS:
                del self._versions[next(iter(self._versions))]
        return snapshot

    def _open_manifest(
        self, source: lance.LanceDataset, manifest: bytes, location: str, server: RangeServer
    ) -> CachedVersion:
        server.call(server.reader.expect_version, location)
        for path, start, end in self._read_ahead(source):
            server.call(server.reader.read_ahead, f"{location}/{path}", start, end)
        with lance_errors(location):
            dataset = lance.LanceDataset(
                source.uri,
                version=int(source.version),
                serialized_manifest=manifest,
                storage_options=server.options,
                session=self._session,
            )
        self._opened[id(dataset)] = dataset
        return CachedVersion(dataset)

    def _read_ahead(self, dataset: lance.LanceDataset) -> Iterator[tuple[str, int, int]]:
        """Yield ranges of files that a first query is about to read, one after the other: path, begin and end.

        Each would be a round trip. They are asked for at the same time: what indexes have, and the ends of data files.
        """
        left = min(MAX_READ_AHEAD_BYTES, self._max_bytes // 16)
        indexes = sorted(dataset.describe_indices(), key=lambda index: index.total_size_bytes or left)
        for index in indexes:
            names = next((names for kind, names in _INDEX_FILES.items() if index.index_type.startswith(kind)), ())
            for segment in index.segments:
                left -= segment.size_bytes or left
                if left <= 0:
                    break
                for name in names:
                    yield f"_indices/{segment.uuid}/{name}", 0, segment.size_bytes or 0
        fragments = dataset.get_fragments() if native_dataset(dataset).count_fragments() <= MAX_READ_AHEAD_FILES else []
        sizes = {file.path: file.file_size_bytes or 0 for each in fragments for file in each.metadata.files}
        is_small = sum(sizes.values()) <= MAX_SMALL_BYTES
        for path, size in sizes.items():
            yield f"data/{path}", 0 if is_small else max(0, size - TAIL_BYTES), size

    def drop(self, location: str) -> None:
        """Forget a table that was dropped, or that is there as a copy: its blocks are deleted."""
        with self._lock:
            self._versions = {key: snapshot for key, snapshot in self._versions.items() if key[0] != location}
        if self._server is not None:
            self._server.call(self._server.reader.drop_table, location)
        if not self._is_closed and self.blocks.has_table(location):
            self._writer.submit(self.blocks.drop_table, location)

    def drop_segment(self, segment: Segment) -> None:
        """Delete blocks that make room."""
        self.blocks.drop_segment(segment)

    def wait(self) -> None:
        """Wait until is written what was read before."""
        if self._server is not None and self.is_serving:
            self._server.run(self._server.reader.settle())
        self._writer.submit(int).result()

    def close(self) -> None:
        """Serve nothing more, and leave the folder."""
        with self._lock:
            self._is_closed = True
            if self._server is not None:
                self._server.close()
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _serve(self) -> RangeServer | None:
        """Return the server, which the first use starts; None where there is none, and `reason` says why."""
        server = self._server
        if server is not None and server.is_serving:
            return server
        with self._lock:
            if self._is_closed or monotonic() < self._off_until:
                return None
            if self._server is None or not self._server.is_serving:
                try:
                    self._server = RangeServer(lambda loop: RangeReader(self.blocks, self._writing(loop)))
                except NoServerError as error:
                    self._turn_off(str(error))
                    return None
                self._writer.submit(self._take_over)
            return self._server

    def _turn_off(self, reason: str) -> None:
        self.reason, self._off_until = reason, monotonic() + _OFF_SECONDS
        _log.warning("Tables are read from the object store for a minute: %s", reason)

    def _take_over(self) -> None:
        """Find what an earlier process has left."""
        try:
            self._take_folder()
        except Exception as error:  # noqa: BLE001  # nobody waits for this thread
            self._turn_off(str(error))

    def _writing(self, loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
        def write(file: RangeFile, blocks: Mapping[int, Content], done: Callable[[], None]) -> None:
            try:
                self._writer.submit(self._write, file, blocks, lambda: loop.call_soon_threadsafe(done))
            except RuntimeError:  # closed
                done()

        return write

    def _write(self, file: RangeFile, blocks: Mapping[int, Content], done: Callable[[], object]) -> None:
        """Write blocks, in the thread for that, as long as the disk takes some."""
        try:
            if monotonic() >= self._off_until and not file.table.is_dropped:
                location = file.table.location
                self._make_room(location, sum(map(len, blocks.values())))
                self.blocks.append(self._take_folder(), location, file.blocks, blocks)
                self.reason = ""
        except UnsupportedTableError as error:
            _log.debug("Blocks of %s are not kept: %s", file.location, error)
        except Exception as error:  # noqa: BLE001  # nobody waits for this thread: what was read is served all the same
            self._turn_off(f"blocks cannot be written: {error}")
        finally:
            if not self._is_closed:
                done()


def _bases(dataset: lance.LanceDataset) -> list[lance.DatasetBasePath]:
    """Return where files of a version lie beside its table's folder, as those of a clone do."""
    return list(dataset.base_paths().values())
