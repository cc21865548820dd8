"""What the files of a source are: the schema of each, and the pieces that tasks take. Runs in tasks for many files."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.csv_records import LONGEST_RECORD, Dialect, guess_columns, read_header, split_records
from tiltyard.pipeline.sources.filesystem import Found, open_file
from tiltyard.pipeline.sources.json_lines import json_evidence
from tiltyard.pipeline.sources.readers import Format, Piece
from tiltyard.pipeline.sources.type_inference import Evidence, merge_guesses
from tiltyard.pipeline.task_errors import RefusedError

RANGE_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
"""How much of a file of text its types are guessed from."""

_SAMPLES, _SAMPLE_BYTES = 8, 64 << 10
"""How many places within a large file are looked at, too, and how much of each."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A file: its schema, and its pieces. Of text the schema is a guess, of JSON lines there is `evidence` instead."""

    path: str
    schema: pa.Schema
    pieces: tuple[Piece, ...]
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A task: files of a format to look at. `head_bytes` of each text are read; with `whole`, text is not cut."""

    format: Format
    files: tuple[Found, ...]
    storage: Mapping[str, str]
    dialect: Dialect | None = None
    nulls: tuple[str, ...] = ()
    head_bytes: int = HEAD_BYTES
    whole: bool = False

    def __call__(self) -> list[Inspected]:
        """Look at the files. Raises RefusedError for one that is not of the format."""
        kinds = {
            Format.PARQUET: self._parquet,
            Format.ARROW: self._arrow,
            Format.CSV: self._csv,
            Format.JSON: self._json,
        }
        return [kinds[self.format](file) for file in self.files]

    def parts(self, count: int) -> list[Inspection]:
        """The same for `count` files each."""
        return [replace(self, files=self.files[at : at + count]) for at in range(0, len(self.files), count)]

    def _parquet(self, file: Found) -> Inspected:
        try:
            with pyarrow.parquet.ParquetFile(open_file(file.path, self.storage)) as opened:
                told = opened.metadata
                sizes = [told.row_group(number).total_byte_size for number in range(told.num_row_groups)]
                pieces = tuple(Piece(file.path, size, file.mark, (at,)) for at, size in enumerate(sizes))
                return Inspected(file.path, opened.schema_arrow.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is no Parquet file: {error}") from error

    def _arrow(self, file: Found) -> Inspected:
        """A file's batches; a stream is one piece."""
        try:
            with open_file(file.path, self.storage) as opened:
                is_file = opened.read(6) == b"ARROW1"
                opened.seek(0)
                if not is_file:
                    schema = pa.ipc.open_stream(opened).schema.remove_metadata()
                    return Inspected(file.path, schema, (Piece(file.path, file.size, file.mark),))
                batches = pa.ipc.open_file(opened)
                count = batches.num_record_batches
                size = file.size // max(1, count)
                pieces = tuple(Piece(file.path, size, file.mark, (at, at + 1)) for at in range(count))
                return Inspected(file.path, batches.schema.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is no Arrow file or stream: {error}") from error

    def _csv(self, file: Found) -> Inspected:
        dialect = self.dialect or dialect_of(file, self.nulls)
        head, complete = read_head(file, self.storage, self.head_bytes)
        names, begin = read_header(head, dialect.delimiter, file.path)
        ends, _ = split_records(head[begin:], dialect.delimiter)
        whole = len(head) if complete else begin + (int(ends[-1]) if len(ends) else 0)
        try:
            schema = guess_columns(head[begin:whole], names, dialect)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is no CSV file: {error}") from error
        pieces = tuple(replace(piece, names=names, dialect=dialect) for piece in self._ranges(file))
        for sample in self._samples(file, pieces):
            schema = _joined(schema, guess_columns(sample, names, dialect))
        return Inspected(file.path, schema, pieces)

    def _json(self, file: Found) -> Inspected:
        head, complete = read_head(file, self.storage, self.head_bytes)
        evidence, pieces = json_evidence(head, complete=complete), self._ranges(file)
        for sample in self._samples(file, pieces):
            evidence.join(json_evidence(sample, complete=True))
        return Inspected(file.path, pa.schema([]), pieces, evidence)

    def _samples(self, file: Found, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Whole lines from within a large file: what its beginning is like need not be all."""
        with open_file(file.path, self.storage) as opened:
            for piece in pieces[1 :: max(1, len(pieces) // _SAMPLES)]:
                opened.seek(piece.part[0])
                text = bytes(opened.read(_SAMPLE_BYTES))
                yield text[text.find(b"\n") + 1 : text.rfind(b"\n") + 1]

    def _ranges(self, file: Found) -> tuple[Piece, ...]:
        if file.path.lower().endswith(".gz"):
            return (Piece(file.path, file.size * 4, file.mark),)
        count = 1 if self.whole else -(-file.size // RANGE_BYTES)
        cuts = [file.size * number // count for number in range(count + 1)]
        return tuple(Piece(file.path, b - a, file.mark, (a, b)) for a, b in itertools.pairwise(cuts))


def _joined(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The guess for the values of both, column by column."""
    return pa.schema([own.with_type(merge_guesses(own.type, more.type)) for own, more in zip(one, other, strict=True)])


def dialect_of(file: Found, nulls: tuple[str, ...]) -> Dialect:
    """How a file of CSV is written, by its name."""
    return Dialect("\t" if file.path.lower().removesuffix(".gz").endswith(".tsv") else ",", nulls)


def read_head(file: Found, storage: Mapping[str, str], size: int = HEAD_BYTES) -> tuple[bytes, bool]:
    """The beginning of a text, and whether that is all of it. Raises RefusedError."""
    with open_file(file.path, storage) as opened:
        try:
            text = text_blocks.unpacked(opened, file.path)
            head = bytes(text.read(size))
            complete = len(head) < size
            while not complete and b"\n" not in head and len(head) < LONGEST_RECORD:  # the first line is longer
                more = bytes(text.read(len(head)))
                complete = len(more) < len(head)
                head += more
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RefusedError(f"{file.path} cannot be unpacked, as its name says it can: {error}.") from error
    return head, complete
