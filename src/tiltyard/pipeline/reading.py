"""Pieces of sources, read in tasks: each yields Arrow batches, and rows that cannot be read with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet

from tiltyard.pipeline import lines
from tiltyard.pipeline.lines import Bad
from tiltyard.pipeline.opening import open_file
from tiltyard.pipeline.places import scanned
from tiltyard.pipeline.refusing import RefusedError

BATCH_ROWS = 8192


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

    An empty `part` is the whole file. `size` is in bytes, to balance tasks by; `mark` changes with the file.
    """

    path: str
    size: int
    mark: str
    part: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """What tells it from any other, and from itself after the file was changed."""
        return json.dumps([self.path, self.mark, self.part])


@dataclass(frozen=True, slots=True)
class Reading:
    """How the pieces of a source are read: `schema` is what text is parsed to, `storage` are Lance's options."""

    format: Format
    schema: pa.Schema
    storage: Mapping[str, str]
    delimiter: str = ","

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        """The rows of a piece, in order. Raises RefusedError for a file that is not what it should be."""
        kinds = {
            Format.PARQUET: self._parquet,
            Format.ARROW: self._arrow,
            Format.CSV: self._text,
            Format.JSON: self._text,
            Format.LANCE: self._lance,
            Format.IMAGES: self._images,
        }
        try:
            yield from kinds[self.format](piece)
        except pa.ArrowInvalid as error:
            raise RefusedError(f"{piece.path} is no {self.format.value} file that can be read: {error}") from error

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

    def _text(self, piece: Piece) -> Iterator[pa.RecordBatch | Bad]:
        how = (
            lines.json_parser(self.schema)
            if self.format is Format.JSON
            else lines.csv_parser(self.schema, self.delimiter)
        )
        for block in text_blocks(piece, self.storage, head=self.format is Format.CSV):
            for found in lines.parse(block, how):
                if isinstance(found, Bad):
                    yield found
                else:
                    yield from found.to_batches(BATCH_ROWS)

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
        for block in text_blocks(piece, self.storage):
            for found in lines.parse(block, lines.json_parser(told)):
                if isinstance(found, Bad):
                    yield found
                else:
                    yield from self._with_images(found, piece.path)

    def _with_images(self, told: pa.Table, metadata: str) -> Iterator[pa.RecordBatch | Bad]:
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


def text_blocks(piece: Piece, storage: Mapping[str, str], *, head: bool = False) -> Iterator[bytes]:
    """The lines of a piece in blocks; without the first line of the file if that holds names."""
    start, end = piece.part or (0, None)
    with open_file(piece.path, storage) as file:
        found = lines.blocks(lines.unpacked(file, piece.path), start, end)
        if head and not start:
            first: Any = next(found, b"")
            yield first[first.find(b"\n") + 1 :]
        yield from found
