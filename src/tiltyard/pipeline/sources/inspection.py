"""Inspect the files of a source: find the schema of each, and split it into pieces. Runs in tasks for many files."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline.sources import text_blocks
from tiltyard.pipeline.sources.csv_records import (
    MAX_RECORD_BYTES,
    CsvDialect,
    infer_csv_schema,
    read_header,
    split_records,
)
from tiltyard.pipeline.sources.filesystem import FileInfo, open_file
from tiltyard.pipeline.sources.json_lines import profile_json
from tiltyard.pipeline.sources.readers import Format, Piece
from tiltyard.pipeline.sources.type_inference import JsonProfile, merge_inferred_types
from tiltyard.pipeline.task_errors import RefusedError

RANGE_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
"""Bytes at the beginning of a text file from which types are inferred."""

_SAMPLES, _SAMPLE_BYTES = 8, 64 << 10
"""How many samples within a large file are inspected, too, and the bytes of each."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A file's schema and its pieces. The schema of CSV is inferred; JSON lines have a `profile` instead."""

    path: str
    schema: pa.Schema
    pieces: tuple[Piece, ...]
    profile: JsonProfile | None = None


@dataclass(frozen=True, slots=True)
class InspectionTask:
    """A task that inspects files of one format.

    `head_bytes` of each text file are read; with `whole`, text files are not split.
    """

    format: Format
    files: tuple[FileInfo, ...]
    storage: Mapping[str, str]
    dialect: CsvDialect | None = None
    nulls: tuple[str, ...] = ()
    head_bytes: int = HEAD_BYTES
    whole: bool = False

    def __call__(self) -> list[InspectedFile]:
        """Inspect the files. Raises RefusedError for one that is not of the format."""
        inspectors = {
            Format.PARQUET: self._inspect_parquet,
            Format.ARROW: self._inspect_arrow,
            Format.CSV: self._inspect_csv,
            Format.JSON: self._inspect_json,
        }
        return [inspectors[self.format](file) for file in self.files]

    def split(self, count: int) -> list[InspectionTask]:
        """Split the task into tasks of `count` files each."""
        return [replace(self, files=self.files[first : first + count]) for first in range(0, len(self.files), count)]

    def _inspect_parquet(self, file: FileInfo) -> InspectedFile:
        try:
            with pyarrow.parquet.ParquetFile(open_file(file.path, self.storage)) as parquet:
                metadata = parquet.metadata
                sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
                pieces = tuple(Piece(file.path, size, file.revision, (number,)) for number, size in enumerate(sizes))
                return InspectedFile(file.path, parquet.schema_arrow.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not a Parquet file: {error}") from error

    def _inspect_arrow(self, file: FileInfo) -> InspectedFile:
        """Return a file's batches as pieces; a stream is one piece."""
        try:
            with open_file(file.path, self.storage) as opened:
                is_file = opened.read(6) == b"ARROW1"
                opened.seek(0)
                if not is_file:
                    schema = pa.ipc.open_stream(opened).schema.remove_metadata()
                    return InspectedFile(file.path, schema, (Piece(file.path, file.size, file.revision),))
                batches = pa.ipc.open_file(opened)
                count = batches.num_record_batches
                size = file.size // max(1, count)
                pieces = tuple(Piece(file.path, size, file.revision, (number, number + 1)) for number in range(count))
                return InspectedFile(file.path, batches.schema.remove_metadata(), pieces)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not an Arrow file or stream: {error}") from error

    def _inspect_csv(self, file: FileInfo) -> InspectedFile:
        dialect = self.dialect or dialect_by_name(file, self.nulls)
        head, complete = read_head(file, self.storage, self.head_bytes)
        names, start = read_header(head, dialect.delimiter, file.path)
        ends, _ = split_records(head[start:], dialect.delimiter)
        end = len(head) if complete else start + (int(ends[-1]) if len(ends) else 0)
        try:
            schema = infer_csv_schema(head[start:end], names, dialect)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{file.path} is not a CSV file: {error}") from error
        pieces = tuple(replace(piece, names=names, dialect=dialect) for piece in self._ranges(file))
        for sample in self._samples(file, pieces):
            schema = _merge_csv_schemas(schema, infer_csv_schema(sample, names, dialect))
        return InspectedFile(file.path, schema, pieces)

    def _inspect_json(self, file: FileInfo) -> InspectedFile:
        head, complete = read_head(file, self.storage, self.head_bytes)
        profile, pieces = profile_json(head, complete=complete), self._ranges(file)
        for sample in self._samples(file, pieces):
            profile.merge(profile_json(sample, complete=True))
        return InspectedFile(file.path, pa.schema([]), pieces, profile)

    def _samples(self, file: FileInfo, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Yield whole lines from within a large file, which its beginning need not represent."""
        with open_file(file.path, self.storage) as opened:
            for piece in pieces[1 :: max(1, len(pieces) // _SAMPLES)]:
                opened.seek(piece.part[0])
                text = bytes(opened.read(_SAMPLE_BYTES))
                yield text[text.find(b"\n") + 1 : text.rfind(b"\n") + 1]

    def _ranges(self, file: FileInfo) -> tuple[Piece, ...]:
        if file.path.lower().endswith(".gz"):
            return (Piece(file.path, file.size * 4, file.revision),)
        count = 1 if self.whole else -(-file.size // RANGE_BYTES)
        cuts = [file.size * number // count for number in range(count + 1)]
        return tuple(Piece(file.path, b - a, file.revision, (a, b)) for a, b in itertools.pairwise(cuts))


def _merge_csv_schemas(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the inferred types for the values of both, column by column."""
    return pa.schema(
        [
            field.with_type(merge_inferred_types(field.type, other.type))
            for field, other in zip(left, right, strict=True)
        ]
    )


def dialect_by_name(file: FileInfo, nulls: tuple[str, ...]) -> CsvDialect:
    """Return the dialect of a CSV file by its name: tab-separated for .tsv."""
    return CsvDialect("\t" if file.path.lower().removesuffix(".gz").endswith(".tsv") else ",", nulls)


def read_head(file: FileInfo, storage: Mapping[str, str], size: int = HEAD_BYTES) -> tuple[bytes, bool]:
    """Return the beginning of a text file, and whether that is all of it. Raises RefusedError."""
    with open_file(file.path, storage) as opened:
        try:
            text = text_blocks.open_decompressed(opened, file.path)
            head = bytes(text.read(size))
            complete = len(head) < size
            while not complete and b"\n" not in head and len(head) < MAX_RECORD_BYTES:  # the first line is longer
                more = bytes(text.read(len(head)))
                complete = len(more) < len(head)
                head += more
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RefusedError(f"{file.path} cannot be unpacked, as its name says it can: {error}.") from error
    return head, complete
