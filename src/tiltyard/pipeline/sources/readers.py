"""Pieces of sources, read in tasks: each yields Arrow batches, and rows that cannot be read with the reason."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.csv_records import (
    Dialect,
    count_breaks,
    csv_parser,
    parse_block,
    read_blocks,
    read_header,
)
from tiltyard.pipeline.sources.exact_text import parse_text
from tiltyard.pipeline.sources.filesystem import open_file
from tiltyard.pipeline.sources.json_lines import Parse, json_parser, parse_lines
from tiltyard.pipeline.sources.text_blocks import Bad
from tiltyard.pipeline.table_location import scanned
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.casts import Column, fit

BATCH_ROWS = 8192

_COUNTED_BYTES = 1 << 30
"""So far into a file its lines are counted, to tell which one is bad."""


class Format(StrEnum):
    """What a source is made of."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSON = "json"
    LANCE = "lance"
    IMAGES = "images"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a file. `part`: row groups (Parquet), batches (Arrow), fragments (Lance), first and last byte (text).

    An empty `part` is the whole file. `size` is in bytes, to balance tasks by; `mark` changes with the file. `folders`
    are the values of its partition columns; `names` are the columns of its file and `dialect` how that is written,
    where they are not those of all (CSV).
    """

    path: str
    size: int
    mark: str
    part: tuple[int, ...] = ()
    folders: tuple[str | None, ...] = ()
    names: tuple[str, ...] = ()
    dialect: Dialect | None = None

    @property
    def key(self) -> str:
        """What tells it from any other, and from itself after the file was changed."""
        return json.dumps([self.path, self.mark, self.part, self.folders, self.names])


@dataclass(frozen=True, slots=True)
class Reading:
    """How the pieces of a source are read: `schema` is that of all rows, `storage` are Lance's options.

    `partitions` are the columns whose values stand in folders. Of text, types of `guessed` columns are taken only for
    what they give back as it is written. Of JSON, `numbers` are fields that hold some, `numbers_as_text` those of which
    they become text; fields that the schema lacks are an error, unless it `leaves_others` out.
    """

    format: Format
    schema: pa.Schema
    storage: Mapping[str, str]
    dialect: Dialect = field(default_factory=Dialect)
    partitions: tuple[str, ...] = ()
    guessed: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    numbers_as_text: frozenset[str] = frozenset()
    leaves_others: bool = False

    @property
    def key(self) -> str:
        """What tells rows that are read this way from rows that are read in another."""
        told = [self.format, self.dialect.delimiter, self.dialect.nulls, self.partitions]
        text = json.dumps([*told, sorted(self.guessed), sorted(self.numbers_as_text), self.leaves_others])
        return hashlib.sha256(self.schema.serialize().to_pybytes() + text.encode()).hexdigest()

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        """The rows of a piece, in order. Raises RefusedError for a file that is not what it should be."""
        kinds = {
            Format.PARQUET: self._parquet,
            Format.ARROW: self._arrow,
            Format.CSV: self._csv,
            Format.JSON: self._json,
            Format.LANCE: self._lance,
            Format.IMAGES: self._images,
        }
        folders = self._folder_values(piece)
        try:
            for found in kinds[self.format](piece):
                yield from (found,) if isinstance(found, Bad) else self._conformed(found, folders)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{piece.path} is no {self.format.value} file that can be read: {error}") from error
        except RefusedError as error:
            named = str(error).startswith(piece.path)
            raise error if named else RefusedError(f"{piece.path}: {error}") from error

    def _folder_values(self, piece: Piece) -> dict[str, pa.Scalar]:
        """The values that stand in the folders of a piece's file."""
        found = {}
        for name, text in zip(self.partitions, piece.folders, strict=True):
            dtype = self.schema.field(name).type
            try:
                found[name] = parse_text(pa.array([text], pa.string()), dtype, exact=False)[0]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise RefusedError(f"{piece.path}: the folder's '{name}' is no {dtype}: {error}") from error
        return found

    def _conformed(self, batch: pa.RecordBatch, folders: Mapping[str, pa.Scalar]) -> Iterator[pa.RecordBatch | Bad]:
        """A batch with the schema of all rows: columns that its file lacks are null, others are cast."""
        for name, value in folders.items():
            batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        if batch.schema.equals(self.schema):
            yield batch
            return
        names = set(batch.schema.names)
        yield from fit(batch, [Column(field, field.name if field.name in names else None) for field in self.schema])

    def _parquet(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with pyarrow.parquet.ParquetFile(open_file(piece.path, self.storage), pre_buffer=True) as file:
            names = [name for name in self.schema.names if name in file.schema_arrow.names]
            yield from file.iter_batches(BATCH_ROWS, list(piece.part), names, use_threads=False)

    def _arrow(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with open_file(piece.path, self.storage) as file:
            if not piece.part:
                with pa.ipc.open_stream(file) as stream:
                    yield from stream
                return
            with pa.ipc.open_file(file) as batches:
                for number in range(*piece.part):
                    yield batches.get_batch(number)

    def _csv(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        names = piece.names or tuple(name for name in self.schema.names if name not in self.partitions)
        dialect = piece.dialect or self.dialect
        how = csv_parser(names, self.schema, dialect, self.guessed)
        with TextPiece.opened(piece, self.storage) as text:
            chunks = text.after_header(dialect.delimiter)
            for block in read_blocks(chunks, dialect.delimiter, text.line):
                if block.is_open and not text.is_at_end():
                    raise RefusedError(
                        f"{piece.path}, {text.place(block.last_line)}: a value with a line break goes on behind byte "
                        f"{piece.part[1]}, where the file is cut into tasks: read each file as a whole (--multiline)."
                    )
                yield from _batches(parse_block(block, how), text)

    def _json(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        data = pa.schema([field for field in self.schema if field.name not in self.partitions])
        yield from self._lines(piece, json_parser(data, self.guessed, self.numbers_as_text, ignore=self.leaves_others))

    def _lines(self, piece: Piece, how: Parse) -> Iterator[pa.RecordBatch | Bad]:
        with TextPiece.opened(piece, self.storage) as text:
            line = 1
            for block in text.blocks():
                yield from _batches(parse_lines(block, how, line), text)
                line += block.count(b"\n")

    def _lance(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        dataset = lance.dataset(piece.path, version=int(piece.mark), storage_options=dict(self.storage) or None)
        yield from scanned(dataset, piece.part, columns=self.schema.names)

    def _images(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        if not piece.part:
            path = PurePosixPath(piece.path)
            row = {"file_name": path.name, "label": path.parent.name, "image": self._bytes(piece.path)}
            yield pa.RecordBatch.from_pylist([row], self.schema)
            return
        told = pa.schema([field for field in self.schema if field.name != "image"])
        how = json_parser(told, self.guessed, self.numbers_as_text, ignore=self.leaves_others)
        for found in self._lines(piece, how):
            yield from (found,) if isinstance(found, Bad) else self._with_images(found, piece.path)

    def _with_images(self, told: pa.RecordBatch, metadata: str) -> Iterator[pa.RecordBatch | Bad]:
        """Rows of metadata with the files that they name, few at a time: images are large."""
        folder = metadata.rpartition("/")[0]
        for row in told.to_pylist():
            try:
                image = self._bytes(f"{folder}/{row['file_name']}")
            except OSError as error:
                yield Bad(row, f"{row['file_name']} cannot be read: {error}")
            else:
                yield pa.RecordBatch.from_pylist([{**row, "image": image}], self.schema)

    def _bytes(self, path: str) -> bytes:
        with open_file(path, self.storage) as file:
            return bytes(file.read())


@dataclass(slots=True)
class TextPiece:
    """Text of a piece, read in blocks of whole lines; `line` is the number of the first one, from the piece on."""

    piece: Piece
    file: Any
    line: int = 1
    _before: int | None = None

    @classmethod
    @contextmanager
    def opened(cls, piece: Piece, storage: Mapping[str, str]) -> Iterator[TextPiece]:
        """Open the file of a piece. Raises RefusedError for one that is not compressed as its name says."""
        with open_file(piece.path, storage) as file:
            try:
                yield cls(piece, file)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise RefusedError(f"{piece.path} cannot be decompressed: {error}.") from error

    @property
    def start(self) -> int:
        """Where the piece begins in its file."""
        return self.piece.part[0] if self.piece.part else 0

    def blocks(self) -> Iterator[bytes]:
        """The lines, without the mark of UTF-8 at the beginning of the file."""
        end = self.piece.part[1] if self.piece.part else None
        found = text_blocks.blocks(text_blocks.unpacked(self.file, self.piece.path), self.start, end)
        if not self.start:
            yield next(found, b"").removeprefix(codecs.BOM_UTF8)
        yield from found

    def after_header(self, delimiter: str) -> Iterator[bytes]:
        """The lines without the record of names at the beginning of the file, which is read right away."""
        found = self.blocks()
        if self.start:
            return found
        first = next(found, b"")
        _, begin = read_header(first, delimiter, self.piece.path)
        self.line = 1 + count_breaks(first[:begin])
        return itertools.chain([first[begin:]], found)

    def is_at_end(self) -> bool:
        """Whether the piece ends where its file does."""
        return not self.piece.part or self.piece.part[1] >= self.file.size()

    def place(self, line: int) -> str:
        """A line of the piece as the file's; far into a large file it is told from the byte where the piece begins."""
        if not self.start:
            return f"line {line}"
        if self.start > _COUNTED_BYTES:
            return f"line {line} behind byte {self.start}"
        if self._before is None:  # up to the line break that the piece's first line follows
            self._before = text_blocks.count_lines(self.file, self.start - 1) + 1
        return f"line {self._before + line}"


def _batches(rows: Iterator[pa.Table | Bad], text: TextPiece) -> Iterator[pa.RecordBatch | Bad]:
    """Tables as batches; bad rows with their place in the file."""
    for found in rows:
        if isinstance(found, Bad):
            place = f"{text.place(found.line)}: " if found.line else ""
            yield Bad(found.row, f"{place}{found.reason}", found.line)
        else:
            yield from found.to_batches(BATCH_ROWS)
