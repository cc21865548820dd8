"""Read the pieces of a source in Spark tasks: yields Arrow batches, and rejected rows with their reasons."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.casts import ColumnMapping, cast_batch
from tiltyard.pipeline.sources.csv_records import (
    CsvDialect,
    count_line_breaks,
    make_csv_parser,
    parse_records,
    read_header,
    read_record_blocks,
)
from tiltyard.pipeline.sources.filesystem import open_file
from tiltyard.pipeline.sources.json_lines import Parser, make_json_parser, parse_json_lines
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.text_types import parse_text
from tiltyard.pipeline.table_location import scan_fragments

BATCH_ROWS = 8192

_LINE_COUNT_BYTES = 1 << 30
"""Up to this offset in a file, lines are counted to name the line of a rejected row."""


class Format(StrEnum):
    """The formats of a source."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSON = "json"
    LANCE = "lance"
    IMAGES = "images"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file that one task reads.

    `part` holds row groups (Parquet), batches (Arrow), fragments (Lance), or first and last byte (text); empty: the
    whole file. `size` is in bytes, to balance tasks; `revision` changes with the file. `partition_values` are those of
    its folders; `names` are the columns of its file and `dialect` how it is written, where they differ from those of
    the source (CSV).
    """

    path: str
    size: int
    revision: str
    part: tuple[int, ...] = ()
    partition_values: tuple[str | None, ...] = ()
    names: tuple[str, ...] = ()
    dialect: CsvDialect | None = None

    @property
    def key(self) -> str:
        """Return a key that identifies the piece, and changes when its file does."""
        return json.dumps([self.path, self.revision, self.part, self.partition_values, self.names])


@dataclass(frozen=True, slots=True)
class SourceReader:
    """Reads the pieces of a source: `schema` is that of all rows, `storage` are Lance's options.

    `partitions` are the columns whose values are in folder names. Columns in `inferred` (text) are rejected where their
    type does not give back the text as written. Of JSON, `number_fields` are fields with numbers, `numbers_as_text`
    those of them whose numbers become text; fields that the schema lacks are an error, unless `ignores_unknown_fields`.
    """

    format: Format
    schema: pa.Schema
    storage: Mapping[str, str]
    dialect: CsvDialect = field(default_factory=CsvDialect)
    partitions: tuple[str, ...] = ()
    inferred: frozenset[str] = frozenset()
    number_fields: frozenset[str] = frozenset()
    numbers_as_text: frozenset[str] = frozenset()
    ignores_unknown_fields: bool = False

    @property
    def key(self) -> str:
        """Return a key of how rows are read: other options give another key."""
        options = [self.format, *astuple(self.dialect), self.partitions]
        text = json.dumps([*options, sorted(self.inferred), sorted(self.numbers_as_text), self.ignores_unknown_fields])
        return hashlib.sha256(self.schema.serialize().to_pybytes() + text.encode()).hexdigest()

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
        """Yield the rows of a piece, in order. Raises RefusedError for a file that is not as expected."""
        readers = {
            Format.PARQUET: self._read_parquet,
            Format.ARROW: self._read_arrow,
            Format.CSV: self._read_csv,
            Format.JSON: self._read_json,
            Format.LANCE: self._read_lance,
            Format.IMAGES: self._read_images,
        }
        partition_values = self._partition_values(piece)
        try:
            for rows in readers[self.format](piece):
                yield from (rows,) if isinstance(rows, RejectedRow) else self._conform(rows, partition_values)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{piece.path} is no {self.format.value} file that can be read: {error}") from error
        except RefusedError as error:
            names_path = str(error).startswith(piece.path)
            raise error if names_path else RefusedError(f"{piece.path}: {error}") from error

    def _partition_values(self, piece: Piece) -> dict[str, pa.Scalar]:
        """Return the partition values of a piece's file."""
        values = {}
        for name, text in zip(self.partitions, piece.partition_values, strict=True):
            dtype = self.schema.field(name).type
            try:
                values[name] = parse_text(pa.array([text], pa.string()), dtype, exact=False)[0]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise RefusedError(f"{piece.path}: the folder's '{name}' is no {dtype}: {error}") from error
        return values

    def _conform(
        self, batch: pa.RecordBatch, partition_values: Mapping[str, pa.Scalar]
    ) -> Iterator[pa.RecordBatch | RejectedRow]:
        """Cast a batch to the schema of all rows; columns that its file lacks are null."""
        for name, value in partition_values.items():
            batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        if batch.schema.equals(self.schema):
            yield batch
            return
        names = set(batch.schema.names)
        yield from cast_batch(
            batch, [ColumnMapping(field, field.name if field.name in names else None) for field in self.schema]
        )

    def _read_parquet(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with pyarrow.parquet.ParquetFile(open_file(piece.path, self.storage), pre_buffer=True) as file:
            names = [name for name in self.schema.names if name in file.schema_arrow.names]
            yield from file.iter_batches(BATCH_ROWS, list(piece.part), names, use_threads=False)

    def _read_arrow(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with open_file(piece.path, self.storage) as file:
            if not piece.part:
                with pa.ipc.open_stream(file) as stream:
                    yield from stream
                return
            with pa.ipc.open_file(file) as batches:
                for number in range(*piece.part):
                    yield batches.get_batch(number)

    def _read_csv(self, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
        names = piece.names or tuple(name for name in self.schema.names if name not in self.partitions)
        dialect = piece.dialect or self.dialect
        parser = make_csv_parser(names, self.schema, dialect, self.inferred)
        with TextReader.open(piece, self.storage) as text:
            chunks = text.after_header(dialect)
            for block in read_record_blocks(chunks, dialect, text.line):
                if block.is_open and not text.is_at_end():
                    raise RefusedError(
                        f"{piece.path}, {text.locate(block.last_line)}: a value goes on behind byte {piece.part[1]}, "
                        "where a record began when the file was inspected: leave it as it is while it is read."
                    )
                yield from _to_batches(parse_records(block, parser), text)

    def _read_json(self, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
        data_schema = pa.schema([field for field in self.schema if field.name not in self.partitions])
        yield from self._read_lines(
            piece,
            make_json_parser(data_schema, self.inferred, self.numbers_as_text, ignore=self.ignores_unknown_fields),
        )

    def _read_lines(self, piece: Piece, parser: Parser) -> Iterator[pa.RecordBatch | RejectedRow]:
        with TextReader.open(piece, self.storage) as text:
            line = 1
            for block in text.blocks():
                yield from _to_batches(parse_json_lines(block, parser, line), text)
                line += block.count(b"\n")

    def _read_lance(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        dataset = lance.dataset(piece.path, version=int(piece.revision), storage_options=dict(self.storage) or None)
        yield from scan_fragments(dataset, piece.part, columns=self.schema.names)

    def _read_images(self, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
        if not piece.part:
            path = PurePosixPath(piece.path)
            row = {"file_name": path.name, "label": path.parent.name, "image": self._read_bytes(piece.path)}
            yield pa.RecordBatch.from_pylist([row], self.schema)
            return
        metadata_schema = pa.schema([field for field in self.schema if field.name != "image"])
        parser = make_json_parser(
            metadata_schema, self.inferred, self.numbers_as_text, ignore=self.ignores_unknown_fields
        )
        for rows in self._read_lines(piece, parser):
            yield from (rows,) if isinstance(rows, RejectedRow) else self._with_images(rows, piece.path)

    def _with_images(self, metadata: pa.RecordBatch, path: str) -> Iterator[pa.RecordBatch | RejectedRow]:
        """Add to rows of metadata the images that they name, one row at a time: images are large."""
        folder = path.rpartition("/")[0]
        for row in metadata.to_pylist():
            try:
                image = self._read_bytes(f"{folder}/{row['file_name']}")
            except OSError as error:
                yield RejectedRow(row, f"{row['file_name']} cannot be read: {error}")
            else:
                yield pa.RecordBatch.from_pylist([{**row, "image": image}], self.schema)

    def _read_bytes(self, path: str) -> bytes:
        with open_file(path, self.storage) as file:
            return bytes(file.read())


@dataclass(slots=True)
class TextReader:
    """Reads the text of a piece in blocks of whole lines; `line` is the number of its first data line."""

    piece: Piece
    file: Any
    storage: Mapping[str, str]
    line: int = 1
    _lines_before: int | None = None

    @classmethod
    @contextmanager
    def open(cls, piece: Piece, storage: Mapping[str, str]) -> Iterator[TextReader]:
        """Open the file of a piece. Raises RefusedError for a file that is not compressed as its name says."""
        with open_file(piece.path, storage) as file:
            try:
                yield cls(piece, file, storage)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise RefusedError(f"{piece.path} cannot be decompressed: {error}.") from error

    @property
    def start(self) -> int:
        """Return the offset of the piece in its file."""
        return self.piece.part[0] if self.piece.part else 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the lines in blocks, without the byte order mark at the beginning of the file."""
        end = self.piece.part[1] if self.piece.part else None
        blocks = text_blocks.read_line_blocks(
            text_blocks.open_decompressed(self.file, self.piece.path), self.start, end
        )
        if not self.start:
            yield next(blocks, b"").removeprefix(codecs.BOM_UTF8)
        yield from blocks

    def after_header(self, dialect: CsvDialect) -> Iterator[bytes]:
        """Yield the lines after the header record at the beginning of the file, which is read immediately."""
        blocks = self.blocks()
        if self.start:
            return blocks
        first = next(blocks, b"")
        _, end = read_header(first, dialect, self.piece.path)
        self.line = 1 + count_line_breaks(first[:end])
        return itertools.chain([first[end:]], blocks)

    def is_at_end(self) -> bool:
        """Return whether the piece ends where its file does."""
        return not self.piece.part or self.piece.part[1] >= self.file.size()

    def locate(self, line: int) -> str:
        """Describe a line of the piece by its number in the file.

        Far into a large file, the number counts from the byte where the piece begins.
        """
        if not self.start:
            return f"line {line}"
        if self.start > _LINE_COUNT_BYTES:
            return f"line {line} behind byte {self.start}"
        if self._lines_before is None:  # up to the line break before the piece's first line
            with open_file(self.piece.path, self.storage) as file:  # of its own: blocks are still read from the other
                self._lines_before = text_blocks.count_lines(file, self.start - 1) + 1
        return f"line {self._lines_before + line}"


def _to_batches(rows: Iterator[pa.Table | RejectedRow], text: TextReader) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Convert tables to batches; add to rejected rows their position in the file."""
    for table in rows:
        if isinstance(table, RejectedRow):
            position = f"{text.locate(table.line)}: " if table.line else ""
            yield RejectedRow(table.row, f"{position}{table.reason}", table.line)
        else:
            yield from table.to_batches(BATCH_ROWS)
