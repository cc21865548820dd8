"""Blocks of files on object stores, in segments on a local disk: each with its checksum, and found after a restart."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_log = logging.getLogger(__name__)

BLOCK_BYTES = 64 << 10
"""Bytes of a block, but for the last one of a file: what S3 sends in the time that it takes to answer at all."""
MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES = 1 << 20, 256 << 20
_SEGMENTS = 64
"""Segments that a full cache has at least: what makes room is a whole segment."""
_LOCATION = "location.json"
_SUFFIX = ".blocks"
_MAGIC = b"TYB1"
_RECORD = struct.Struct("<4sIIIQ16s8s")
"""What is in front of a block: magic, CRC-32 of the block, its number and length, and size, path and entity tag of its
file, the last two as digests."""
_CHECKED = struct.Struct("<I")
"""CRC-32 of a record, which follows it."""
HEAD_BYTES = _RECORD.size + _CHECKED.size

Content: TypeAlias = bytes | memoryview


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


@dataclass(slots=True)
class Segment:
    """A file of blocks of one table, written from its beginning to its end."""

    path: Path
    location: str
    size: int = 0
    is_full: bool = False
    used_at: float = field(default_factory=monotonic)
    kept: list[tuple[FileBlocks, int]] = field(default_factory=list)
    """What it holds: blocks by their file and number."""


class FileBlocks:
    """The blocks of one file: where each that is on disk lies, and what is known of the file.

    `size` is None until the store has told it; `e_tag` is empty as long as this process has not seen it.
    """

    __slots__ = ("digest", "e_tag", "location", "places", "size", "tag_digest")

    def __init__(self, location: str, digest: bytes) -> None:
        self.location = location
        self.digest = digest
        self.size: int | None = None
        self.e_tag = ""
        self.tag_digest = b""
        self.places: dict[int, tuple[Segment, int]] = {}

    def learn(self, size: int, e_tag: str | None) -> None:
        """Take note of what the store says of the file; forget the blocks of another file of the same name."""
        tag_digest = _digest(e_tag, 8) if e_tag else b""
        is_other = bool(self.tag_digest and tag_digest and self.tag_digest != tag_digest)
        if is_other or (self.size is not None and self.size != size):
            _log.warning("The file %s is another one than before: what was kept of it is forgotten.", self.location)
            self.places.clear()
        self.size, self.e_tag, self.tag_digest = size, e_tag or "", tag_digest

    def length(self, number: int) -> int:
        """Return the bytes of a block of a file whose size is known; 0 past its end."""
        assert self.size is not None
        return max(0, min(BLOCK_BYTES, self.size - number * BLOCK_BYTES))


class _TableBlocks:
    """The blocks of one table's files, in a folder of their own, which is None until the first is written."""

    def __init__(self, location: str, folder: Path | None = None) -> None:
        self.location = location
        self.folder = folder
        self.files: dict[bytes, FileBlocks] = {}
        self.segments: list[Segment] = []


class BlockStore:
    """Blocks of files by table. Any thread writes, and drops what is written; one thread reads, and waits for none.

    Where a block cannot be read, is not what was written, or its file is gone, it is as if it had never been there.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the budget of the cache, of which a segment is a small part; somebody else sees to it."""
        self.damaged = 0
        """Blocks that were not what was written."""
        self._segment_bytes = max(MIN_SEGMENT_BYTES, min(max_bytes // _SEGMENTS, MAX_SEGMENT_BYTES))
        self._tables: dict[str, _TableBlocks] = {}
        self._lock = threading.RLock()
        """Held while something is written or dropped."""

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments())

    def segments(self) -> list[Segment]:
        """Return all segments."""
        return [segment for table in list(self._tables.values()) for segment in list(table.segments)]

    def has_table(self, location: str) -> bool:
        """Whether anything of a table was written, or read in vain."""
        return location in self._tables

    def file(self, table: str, location: str) -> FileBlocks:
        """Return the blocks of a file of a table, none as long as none were written."""
        with self._lock:
            known = self._tables.setdefault(table, _TableBlocks(table))
            digest = _digest(location, 16)
            file = known.files.setdefault(digest, FileBlocks(location, digest))
            file.location = location
            return file

    def forget_files(self) -> None:
        """Forget the files of which no block is on disk."""
        with self._lock:
            for table in self._tables.values():
                table.files = {digest: file for digest, file in table.files.items() if file.places}

    def read(self, file: FileBlocks, numbers: Iterable[int]) -> dict[int, Content]:
        """Return those blocks of a file that are on disk and what was written."""
        found: dict[int, Content] = {}
        wanted: dict[str, list[tuple[int, Segment, int]]] = {}
        for number in numbers:
            place = file.places.get(number)
            if place is not None:
                wanted.setdefault(str(place[0].path), []).append((number, *place))
        for path, places in wanted.items():
            try:
                opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the folder may be deleted at any time
                self._forget(file, places)
                continue
            try:
                for number, segment, at in places:
                    block = self._read_block(opened, file, number, at)
                    if block is None:
                        self._forget(file, [(number, segment, at)])
                    else:
                        found[number] = block
                        segment.used_at = monotonic()
            finally:
                os.close(opened)
        return found

    def _read_block(self, opened: int, file: FileBlocks, number: int, at: int) -> Content | None:
        length = file.length(number)
        try:
            record = os.pread(opened, HEAD_BYTES + length, at)
        except OSError:
            record = b""
        expected = _RECORD.pack(
            *(_MAGIC, zlib.crc32(memoryview(record)[HEAD_BYTES:]), number, length, file.size or 0),
            *(file.digest, file.tag_digest),
        )
        if len(record) == HEAD_BYTES + length and record[: _RECORD.size] == expected:
            return memoryview(record)[HEAD_BYTES:]
        self.damaged += 1
        _log.warning("A block of %s was damaged on disk: it is read from the object store.", file.location)
        return None

    def _forget(self, file: FileBlocks, places: Iterable[tuple[int, Segment, int]]) -> None:
        for number, _, _ in places:
            file.places.pop(number, None)

    def append(self, folder: Path, table: str, file: FileBlocks, blocks: Mapping[int, Content]) -> None:
        """Write blocks of a file whose size is known, unless they are there. Raises OSError."""
        with self._lock:
            self._append(folder, table, file, blocks)

    def _append(self, folder: Path, table: str, file: FileBlocks, blocks: Mapping[int, Content]) -> None:
        known = self._tables.setdefault(table, _TableBlocks(table))
        if known.folder is not None and not known.folder.exists():  # anybody may delete it
            for segment in known.segments:
                self.drop_segment(segment)
            known.folder = None
        if known.folder is None:
            known.folder = _make_folder(folder, table)
        known.files[file.digest] = file
        missing = {
            number: block
            for number, block in blocks.items()
            if number not in file.places and len(block) == file.length(number)
        }
        if not missing:
            return
        segment = _open_segment(known, known.folder)
        opened = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for number, block in missing.items():
                head = _RECORD.pack(
                    *(_MAGIC, zlib.crc32(block), number, len(block), file.size or 0, file.digest, file.tag_digest)
                )
                record = head + _CHECKED.pack(zlib.crc32(head)) + bytes(block)
                if os.pwrite(opened, record, segment.size) != len(record):
                    raise OSError("the disk takes no more")
                segment.kept.append((file, number))
                file.places[number] = segment, segment.size
                segment.size += len(record)
        finally:
            os.close(opened)
        segment.is_full = segment.size >= self._segment_bytes

    def drop_segment(self, segment: Segment) -> None:
        """Delete a segment, and forget its blocks."""
        with self._lock:
            table = self._tables.get(segment.location)
            if table is not None:
                table.segments = [each for each in table.segments if each is not segment]
            for file, number in segment.kept:
                place = file.places.get(number)
                if place is not None and place[0] is segment:
                    file.places.pop(number, None)
            segment.kept.clear()
            segment.path.unlink(missing_ok=True)

    def drop_table(self, location: str) -> None:
        """Delete what there is of a table."""
        with self._lock:
            table = self._tables.pop(location, None)
            if table is not None:
                for segment in table.segments:
                    self.drop_segment(segment)
                if table.folder is not None:
                    shutil.rmtree(table.folder, ignore_errors=True)

    def take_over(self, folder: Path) -> bool:
        """Find the blocks that an earlier process has written below a folder; return False for no such folder.

        Of a segment, all records up to the first that is not whole are taken; blocks are compared with their checksums
        when they are read.
        """
        try:
            location = msgspec.json.decode((folder / _LOCATION).read_bytes(), type=str)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return False
        with self._lock:
            table = self._tables.setdefault(location, _TableBlocks(location))
            if table.folder is not None:
                return False
            table.folder = folder
            for path in sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime):
                table.segments.append(_take_over_segment(table, path))
        return True


def _take_over_segment(table: _TableBlocks, path: Path) -> Segment:
    segment = Segment(path, table.location, path.stat().st_size, is_full=True)
    for record, at in _records(path):
        _, _, number, length, size, digest, tag_digest = record
        file = table.files.setdefault(digest, FileBlocks("", digest))
        if file.size is None:
            file.size, file.tag_digest = size, tag_digest
        if (file.size, file.tag_digest) == (size, tag_digest) and length == file.length(number):
            file.places.setdefault(number, (segment, at))
            segment.kept.append((file, number))
    return segment


def _open_segment(table: _TableBlocks, folder: Path) -> Segment:
    if not table.segments or table.segments[-1].is_full:
        table.segments.append(Segment(folder / f"{uuid4().hex}{_SUFFIX}", table.location))
    return table.segments[-1]


def _make_folder(parent: Path, location: str) -> Path:
    folder = parent / f"blocks-{_digest(location, 12).hex()}-{uuid4().hex[:8]}"
    folder.mkdir(mode=0o700)
    (folder / _LOCATION).write_bytes(msgspec.json.encode(location))
    return folder


def _records(path: Path) -> Iterator[tuple[tuple[bytes, int, int, int, int, bytes, bytes], int]]:
    """Iterate over the records of a segment, and where each begins."""
    with path.open("rb") as source:
        at, end = 0, path.stat().st_size
        while at + HEAD_BYTES <= end:
            source.seek(at)
            head = source.read(HEAD_BYTES)
            record = _RECORD.unpack_from(head)
            if record[0] != _MAGIC or _CHECKED.unpack_from(head, _RECORD.size)[0] != zlib.crc32(head[: _RECORD.size]):
                return
            if at + HEAD_BYTES + record[3] > end:
                return
            yield record, at
            at += HEAD_BYTES + record[3]
