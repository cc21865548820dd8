"""A folder of files as the source of a stream: each file is read once, in the order of names, piece by piece.

A file has to be complete when it gets its name (write it elsewhere, or with a leading `_` or `.`, and rename it). One
that is written anew is a new file. A file is forgotten once it has left the folder. Empty files are left out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import FileSource, SourceOptions, find_source
from tiltyard.pipeline.sources.file_options import FileOptions
from tiltyard.pipeline.sources.filesystem import FileInfo, file_exists, list_files
from tiltyard.pipeline.sources.inspection import adapt_to_table
from tiltyard.pipeline.sources.partitions import OFF
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.streams.batches import BatchLimits, Position, StreamBatch, with_sequence

MAX_FILES = 20_000
"""How many files a folder may hold that were read: each is a part of the stream's position."""
MAX_FILES_IN_BATCH = 1_000
MAX_PIECE_BYTES = 512 << 20
"""The size of a row group, or of a file that is not divided, which is read into memory as a whole."""
FINISHED = -1
POLL_SECONDS = 0.2
"""How often a waiting source checks whether its run was canceled."""


@dataclass(slots=True)
class FolderSource:
    """The files that match a path, read by the `options` of files.

    `position` has the finished pieces of each file, FINISHED for all of them.
    """

    path: str
    options: FileOptions
    storage: Mapping[str, str]
    position: dict[str, int]
    _listed: dict[str, FileInfo] = field(default_factory=dict)

    def read(self, schema: pa.Schema | None, limits: BatchLimits, check: Callable[[], None]) -> StreamBatch | None:
        """Return the rows of the next files; without new ones None, after the time that a batch may take."""
        unread = self._list_unread()
        deadline = time.monotonic() + limits.seconds
        while not unread:
            check()
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(left, POLL_SECONDS))
            if time.monotonic() >= deadline:
                unread = self._list_unread()
        batch = _FileBatch(self.storage, schema, self.options)
        for key, file in list(unread.items())[:MAX_FILES_IN_BATCH]:
            check()
            if batch.add_file(file, key, self.position.get(key, 0), limits):
                break
        self.position.update(batch.position)
        return batch.finish()

    def lag(self) -> int:
        """Return how many files of the last listing were not read to their end."""
        return sum(self.position.get(key) != FINISHED for key in self._listed)

    def is_caught_up(self) -> bool:
        """Return whether all files of the last listing were read."""
        return not self.lag()

    def live_position(self, position: Position) -> Position:
        """Return the parts of a position whose files are in the folder."""
        return {key: pieces for key, pieces in position.items() if key in self._listed}

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _list_unread(self) -> dict[str, FileInfo]:
        files = list_files(self.path, self.storage, missing_ok=True)
        self._listed = {_file_key(file): file for file in files if file.size}
        for key in self.position.keys() - self._listed.keys():
            del self.position[key]
        if len(self.position) > MAX_FILES:
            raise RefusedError(
                f"{self.path} holds more than {MAX_FILES} files that were read: move some of them away, and resume."
            )
        return {key: file for key, file in self._listed.items() if self.position.get(key) != FINISHED}


@dataclass(slots=True)
class _FileBatch:
    """A batch that is being made of the pieces of files."""

    storage: Mapping[str, str]
    schema: pa.Schema | None
    options: FileOptions
    rows: list[pa.RecordBatch] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)
    position: dict[str, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    _starts: list[tuple[int, str]] = field(default_factory=list)

    def add_file(self, file: FileInfo, key: str, finished: int, limits: BatchLimits) -> bool:
        """Add the pieces of a file after the finished ones; return whether the batch is complete.

        A file that cannot be read is rejected as a whole from there on.
        """
        self._starts.append((self.count, file.path))
        try:
            source = self._open(file)
            for number, piece in enumerate(source.pieces[finished:], finished + 1):
                if piece.size > MAX_PIECE_BYTES:
                    raise RefusedError(
                        f"{file.path} has {piece.size} bytes that are read at once, of at most {MAX_PIECE_BYTES}: "
                        "divide it, or load it by `tiltyard job ingest`."
                    )
                self._add_rows(file, list(source.reader.read(piece)))
                self.size += piece.size
                self.position[key] = FINISHED if number == len(source.pieces) else number
                if self.count >= limits.rows or self.size >= limits.bytes:
                    return True
        except (RefusedError, FileNotFoundError) as error:
            if not file_exists(file.path, self.storage):
                return False  # it was moved away since it was listed
            self.rejected.append(RejectedRow({"file": file.path}, str(error)))
            self.position[key] = FINISHED
        return False

    def finish(self) -> StreamBatch:
        """Return the batch."""
        return StreamBatch(self.rows, self.position, self._describe, rejected=self.rejected)

    def _open(self, file: FileInfo) -> FileSource:
        source = find_source(SourceOptions(file.path, {**self.options, "partitions": OFF}, storage=self.storage))
        if self.schema is None:
            return source
        return FileSource(adapt_to_table(source.reader, self.schema, ColumnSelection()), source.pieces)

    def _add_rows(self, file: FileInfo, rows: Sequence[pa.RecordBatch | RejectedRow]) -> None:
        for row in rows:
            if isinstance(row, RejectedRow):
                place = f"{file.path}{', ' if row.line else ': '}"
                self.rejected.append(RejectedRow(row.row, f"{place}{row.reason}", row.line))
            elif row.num_rows:
                numbers = pa.array(np.arange(self.count, self.count + row.num_rows))
                self.rows.append(with_sequence(row, numbers))
                self.count += row.num_rows

    def _describe(self, sequence: int) -> str:
        return next(path for start, path in reversed(self._starts) if start <= sequence)


def _file_key(file: FileInfo) -> str:
    """Return a short name of a file and its content."""
    return hashlib.blake2b(f"{file.path}\0{file.revision}".encode(), digest_size=8).hexdigest()
