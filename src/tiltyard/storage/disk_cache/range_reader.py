"""Read ranges of files on object stores: what blocks on disk have from there, all else from the store, once."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from obstore.exceptions import GenericError

from tiltyard.storage.disk_cache.blocks import BLOCK_BYTES, Content, FileBlocks
from tiltyard.storage.files import FileStat

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from tiltyard.storage.disk_cache.blocks import BlockStore
    from tiltyard.storage.objects import FileRange, ObjectFiles

_log = logging.getLogger(__name__)

MAX_STORE_REQUESTS = 64
"""Requests to stores that are under way at once."""
MAX_REQUEST_BYTES = 8 << 20
"""Bytes that one request to a store asks for."""
MAX_PENDING_BYTES = 64 << 20
"""Bytes of blocks that wait to be written to disk; what comes on top is served, and not written."""
MAX_FILES = 1 << 14
"""Files of which the blocks that were read are known, beside what is on disk."""
TAIL_BYTES = 256 << 10
"""The end of a data file, which each open of it reads: its schema, and where its pages are."""
SEEN_SECONDS = 600.0
"""A block of rows that is read a second time within so long enters the cache."""
_IMMUTABLE = re.compile(r"(?:tree/.+/)?(data|_indices|_deletions|_transactions)/.+")
_MANIFEST = re.compile(r"(?:tree/.+/)?_versions/\d+\.manifest")
_MUTABLE = re.compile(r"(?:^|/)(?:_versions|_refs)/")
_Blocks: TypeAlias = "asyncio.Future[Mapping[int, Content]]"
_Piece: TypeAlias = "tuple[int, Content | _Blocks]"
_NO_NAMES = frozenset({"", ".", ".."})
_NOT_SATISFIABLE = re.compile(r"\b416\b|InvalidRange")


class RangeError(Exception):
    """A range begins behind the end of its file."""


class Kind(Enum):
    """What a file of a table is to the cache."""

    ROWS = auto()
    INDEX = auto()
    SMALL = auto()
    """Deletions and transactions."""
    MANIFEST = auto()
    """Manifests of versions: that of another table of the same place may get the name. Each time a version is opened
    the store is asked for its entity tag, and what is kept of another one is forgotten."""
    MUTABLE = auto()
    """References, staged manifests and all else: another file may get their names at any time. They are never kept."""


def kind_of(path: str) -> Kind:
    """Tell what a file is by its path below its table's folder."""
    if _MANIFEST.fullmatch(path):
        return Kind.MANIFEST
    match = _IMMUTABLE.fullmatch(path)
    if match is None or _MUTABLE.search(path):
        return Kind.MUTABLE
    return {"data": Kind.ROWS, "_indices": Kind.INDEX}.get(match[1], Kind.SMALL)


@dataclass(slots=True)
class RangeTable:
    """A table whose files are read by ranges: where it lies, and what reads its files."""

    location: str
    files: ObjectFiles
    is_dropped: bool = False
    """Whether its blocks were dropped since."""
    openings: int = 0
    """How often a version of it was opened."""


@dataclass(slots=True)
class RangeFile:
    """A file that is read by ranges."""

    table: RangeTable
    location: str
    kind: Kind
    blocks: FileBlocks
    seen: set[int] = field(default_factory=set)
    """Blocks that were read lately and did not enter the cache."""
    seen_since: float = field(default_factory=monotonic)
    asked_at: int = -1
    """As many openings as there were when the store was last asked for a manifest's entity tag."""
    in_flight: dict[int, _Blocks] = field(default_factory=dict)
    """Blocks that are requested, or wait to be written to disk."""

    def admits(self, number: int) -> bool:
        """Whether a block enters the cache now that it is read.

        Blocks of indexes do at once: each query of a column reads some of the same few files, which are small beside
        its rows. So does the end of a data file, which each open reads. Other rows do when they are read again: a scan
        that reads all of a large table once costs nobody his blocks.
        """
        if self.kind is not Kind.ROWS:
            return True
        if self.blocks.size is not None and (number + 1) * BLOCK_BYTES > self.blocks.size - TAIL_BYTES:
            return True
        if monotonic() - self.seen_since > SEEN_SECONDS:
            self.seen.clear()
            self.seen_since = monotonic()
        if number in self.seen:
            self.seen.discard(number)
            return True
        self.seen.add(number)
        return False


class RangeReader:
    """Reads ranges in one event loop, which alone may call it."""

    def __init__(self, blocks: BlockStore, write: Callable[..., None]) -> None:
        """`write(file, blocks, done)` writes blocks in another thread, and calls `done` in the loop, if it can."""
        self.hits = self.misses = 0
        """Blocks that were read from disk, and from the store."""
        self.tables: dict[str, RangeTable] = {}
        self._blocks = blocks
        self._write = write
        self._files: dict[str, RangeFile] = {}
        self._requests = asyncio.Semaphore(MAX_STORE_REQUESTS)
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add_table(self, location: str, files: ObjectFiles) -> None:
        """Read a table from now on, or by other credentials than before.

        It is never taken back: an index that Lance has open in memory may be read this way for as long as it is there.
        """
        known = self.tables.get(location)
        if known is None:
            self.tables[location] = RangeTable(location, files)
        else:
            known.files = files

    def expect_version(self, location: str) -> None:
        """Ask the store again for the entity tag of each manifest of a table, a version of which is being opened."""
        if (known := self.tables.get(location)) is not None:
            known.openings += 1

    def drop_table(self, location: str) -> None:
        """Forget what is known of a table's files; what is being read of them now is not kept."""
        known = self.tables.get(location)
        if known is not None:
            known.is_dropped = True
            self.tables[location] = RangeTable(location, known.files)
        self.forget_files(location)

    def find(self, location: str) -> RangeFile | None:
        """Return a file of a table that is read by ranges; None for any other location."""
        file = self._files.get(location)
        if file is not None:
            return file
        parent = "" if _NO_NAMES.intersection(location.removeprefix("s3://").split("/")) else location
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            table = self.tables.get(parent)
            if table is not None:
                if len(self._files) >= MAX_FILES:
                    self.forget_files()
                    self._blocks.forget_files()
                kind = kind_of(location[len(parent) + 1 :])
                file = RangeFile(table, location, kind, self._blocks.file(parent, location))
                self._files[location] = file
                return file
        return None

    def forget_files(self, table: str | None = None) -> None:
        """Forget what is known of files, of a table or of all: what is on disk is found again."""
        self._files = {
            location: file
            for location, file in self._files.items()
            if table is not None and file.table.location != table
        }

    def find_kept(self, file: RangeFile, start: int, end: int) -> dict[int, Content]:
        """Return the blocks of a range that are on disk, without a request."""
        if file.blocks.size is None or not file.blocks.places:
            return {}
        found = self._blocks.read(file.blocks, range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))
        self.hits += len(found)
        return found

    def read_kept(self, file: RangeFile, start: int, end: int) -> list[Content] | None:
        """Return bytes of a file of a known size if all of them are on disk; None else."""
        places, numbers = file.blocks.places, range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        if not all(number in places for number in numbers):
            return None
        found = self.find_kept(file, start, end)
        if len(found) < len(numbers):
            return None
        return list(_cut([(number, found[number]) for number in numbers], start, end))

    async def read(self, file: RangeFile, start: int, end: int) -> list[Content]:
        """Read bytes of a file, in pieces. Raises RangeError, and what the store raises."""
        if file.kind is Kind.MUTABLE:
            return [(await self._request(file, start, end)).content]
        found = self.find_kept(file, start, end)
        pieces: list[_Piece] = list(found.items())
        missing = list[int]()
        for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            if number in file.in_flight:
                pieces.append((number, file.in_flight[number]))
            elif number not in found:
                missing.append(number)
        self.misses += len(missing)
        entering = {number for number in missing if file.admits(number)}
        for run in _runs(sorted(entering)):
            future = self._fetch(file, run)
            pieces += [(number, future) for number in run]
        for run in _runs([number for number in missing if number not in entering]):
            first, stop = max(start, run.start * BLOCK_BYTES), min(end, run.stop * BLOCK_BYTES)
            once = asyncio.ensure_future(self._read_once(file, first, stop))
            once.add_done_callback(_take_error)
            pieces.append((run.start, once))
        pieces.sort(key=lambda piece: piece[0])
        waited = {piece for _, piece in pieces if isinstance(piece, asyncio.Future)}
        if waited:
            await asyncio.wait(waited)  # it cancels none of them: others may wait for them, too
        return list(_cut(pieces, start, end))

    async def _read_once(self, file: RangeFile, start: int, end: int) -> Mapping[int, Content]:
        """Read bytes that do not enter the cache; return them under the number of their first block."""
        return {start // BLOCK_BYTES: (await self._request(file, start, end)).content}

    async def stat(self, file: RangeFile) -> FileStat:
        """Return the size and the entity tag of a file, as far as they are known. Raises what the store raises."""
        openings = file.table.openings
        is_fixed = file.kind is not Kind.MUTABLE and (file.kind is not Kind.MANIFEST or file.asked_at == openings)
        if is_fixed and file.blocks.size is not None:
            return FileStat(file.blocks.size, file.blocks.e_tag or None)
        async with self._requests:
            stat = await file.table.files.stat_soon(file.location)
        if file.kind is not Kind.MUTABLE:
            file.blocks.learn(stat.size, stat.e_tag)
            file.asked_at = openings
        return stat

    def read_ahead(self, location: str, start: int, end: int) -> None:
        """Read a range of a file into the cache, unless it is there; nobody waits for it."""
        file = self.find(location)
        if file is None or file.kind is Kind.MUTABLE:
            return
        if file.blocks.size is not None:
            end = min(end, file.blocks.size)
        numbers = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        missing = [each for each in numbers if each not in file.blocks.places and each not in file.in_flight]
        for run in _runs(missing):
            self._fetch(file, run)

    def _fetch(self, file: RangeFile, numbers: range) -> _Blocks:
        """Begin to read blocks that enter the cache; return what will have them by number, as many as there are."""
        future: _Blocks = asyncio.get_running_loop().create_future()
        future.add_done_callback(_take_error)
        file.in_flight.update(dict.fromkeys(numbers, future))
        self._start(self._fill(file, numbers, future))
        return future

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill(self, file: RangeFile, numbers: range, future: _Blocks) -> None:
        try:
            result = await self._request(file, numbers.start * BLOCK_BYTES, numbers.stop * BLOCK_BYTES)
        except BaseException as error:
            self._landed(file, numbers)
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
                raise
            future.set_exception(error)
            return
        found = {
            number: block
            for number in numbers
            if (block := memoryview(result.content)[(number - numbers.start) * BLOCK_BYTES :][:BLOCK_BYTES])
        }
        future.set_result(found)
        size = len(result.content)
        is_known = result.stat.e_tag is not None or file.kind is not Kind.MANIFEST
        if self._pending_bytes + size > MAX_PENDING_BYTES or not is_known:
            self._landed(file, numbers)
            return
        self._pending_bytes += size

        def done() -> None:
            self._pending_bytes -= size
            self._landed(file, numbers)

        self._write(file, found, done)

    def _landed(self, file: RangeFile, numbers: range) -> None:
        for number in numbers:
            file.in_flight.pop(number, None)

    async def _request(self, file: RangeFile, start: int, end: int) -> FileRange:
        """Read bytes from the store. Raises RangeError, and what the store raises."""
        async with self._requests:
            try:
                result = await file.table.files.read_range(file.location, start, end)
            except GenericError as error:
                if _NOT_SATISFIABLE.search(str(error)):
                    raise RangeError from error
                raise
        if file.kind is not Kind.MUTABLE:
            file.blocks.learn(result.stat.size, result.stat.e_tag)
        return result

    async def settle(self) -> None:
        """Wait for what is being read ahead, or for others."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Stop what is being read."""
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with suppress(asyncio.CancelledError):
                await task


def _take_error(future: _Blocks) -> None:
    """Look at the error of blocks that nobody may wait for, which would be logged else."""
    if not future.cancelled():
        future.exception()


def _runs(numbers: list[int]) -> Iterator[range]:
    """Cut numbers in ascending order into runs of neighbours, none larger than a request."""
    run = range(0)
    for number in numbers:
        if number != run.stop or len(run) * BLOCK_BYTES >= MAX_REQUEST_BYTES or not run:
            if run:
                yield run
            run = range(number, number)
        run = range(run.start, number + 1)
    if run:
        yield run


def _cut(pieces: list[_Piece], start: int, end: int) -> Iterator[Content]:
    """Yield the bytes of a range from its pieces, of which blocks may exceed it."""
    for number, piece in pieces:
        content = piece.result().get(number) if isinstance(piece, asyncio.Future) else piece
        if content is None:
            continue
        if isinstance(piece, asyncio.Task):
            yield content  # as it was asked for
        else:
            at = number * BLOCK_BYTES
            yield memoryview(content)[max(0, start - at) : max(0, end - at)]
