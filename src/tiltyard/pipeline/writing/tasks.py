"""What a task does with rows: choose, cast, run the caller's function, put bad rows aside, check, write Lance files.

This is all that runs in Spark's Python workers when a table is written, from files and from DataFrames alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tiltyard.pipeline.sources.filesystem import write_file
from tiltyard.pipeline.sources.readers import Piece, SourceReader
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import Loadable
from tiltyard.pipeline.writing.casts import ColumnMapping, apply_function, cast_batch
from tiltyard.pipeline.writing.fragments import FragmentTarget, delete_fragment_files, write_batches
from tiltyard.pipeline.writing.quality_checks import CheckCounter, QualityCheck

REJECTS_PER_FILE = 10_000
_MAX_ROW_TEXT = 1000

RowStream = Iterable[pa.RecordBatch | RejectedRow]


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows become rows of the table: `columns` of the source, then the function `udf`, then columns of the table.

    `rejects` is a folder for rows that do not fit, with the run's id in the names of its files; without one, such a
    row ends the job, and is quoted unless `discreet`: a job's error is seen by more people than its source.
    """

    run: str
    target: FragmentTarget
    columns: tuple[ColumnMapping, ...]
    udf: Loadable | None = None
    fitted: tuple[ColumnMapping, ...] | None = None
    checks: tuple[QualityCheck, ...] = ()
    rejects: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)
    discreet: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a task has written; `wrong` counts rows that fail checks, by the check's text."""

    fragments: tuple[str, ...]
    rows: int
    rejected: int
    size: int
    wrong: Mapping[str, int]

    def to_json(self) -> str:
        """As text, for the run to keep."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WriteResult:
        """From that text."""
        told = json.loads(text)
        return cls(tuple(told["fragments"]), told["rows"], told["rejected"], told["size"], told["wrong"])


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """A task: neighbouring pieces of a source, and the key of how they are read."""

    pieces: tuple[Piece, ...]
    reading: str = ""

    @property
    def key(self) -> str:
        """The same for the same pieces of the same files, read alike: what is kept of it is found by this."""
        digest = hashlib.sha256(json.dumps([self.reading, *(piece.key for piece in self.pieces)]).encode())
        return f"share-{digest.hexdigest()[:32]}"


def write_pieces(recipe: WriteSpec, reading: SourceReader, share: PieceGroup) -> WriteResult:
    """Read the pieces of a share and write them. Runs in a task. Raises RefusedError."""
    rows = (row for piece in share.pieces for row in _add_path(reading.read(piece), piece))
    return write_rows(recipe, rows, share.key)


def write_rows(recipe: WriteSpec, rows: RowStream, key: str) -> WriteResult:
    """Write rows; `key` is unique in the run, and the same if this is tried again. Raises RefusedError."""
    tally = CheckCounter(recipe.checks)
    aside = _RejectWriter(recipe, key)
    count = 0

    def good() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for found in transform_rows(recipe, rows):
            if isinstance(found, RejectedRow):
                aside.put(found)
            elif found.num_rows:
                tally.look(found)
                count += found.num_rows
                yield found

    fragments = write_batches(recipe.target, good())
    try:
        aside.flush()
    except BaseException:
        delete_fragment_files(recipe.target.location, fragments)
        raise
    size = sum(file.get("file_size_bytes") or 0 for one in fragments for file in json.loads(one)["files"])
    return WriteResult(tuple(fragments), count, aside.count, size, tally.wrong)


def write_partition(recipe: WriteSpec, number: int, batches: Iterator[pa.RecordBatch]) -> WriteResult:
    """Write a partition of a DataFrame. Runs in a task. Raises RefusedError."""
    return write_rows(recipe, batches, f"partition-{number}")


def infer_piece_schema(recipe: WriteSpec, reading: SourceReader, piece: Piece) -> pa.Schema:
    """What the function makes of the first rows of a piece. Runs in a task. Raises RefusedError if it takes none."""
    for found in transform_rows(recipe, reading.read(piece)):
        if not isinstance(found, RejectedRow):
            return found.schema
    raise RefusedError(f"The UDF takes none of the rows of {piece.path}.")


def infer_partition_schema(recipe: WriteSpec, _: int, batches: Iterator[pa.RecordBatch]) -> pa.Schema | None:
    """What the function makes of the first rows of a partition; None if it takes none. Runs in a task.

    All rows are taken: Spark ends a worker that leaves some.
    """
    schemas = [found.schema for found in transform_rows(recipe, batches) if not isinstance(found, RejectedRow)]
    return schemas[0] if schemas else None


def transform_rows(recipe: WriteSpec, rows: RowStream) -> Iterator[pa.RecordBatch | RejectedRow]:
    """The rows of the table that rows of the source become, and those that become none."""
    function = recipe.udf.load() if recipe.udf else None
    for row in rows:
        for chosen in _map_columns(row, recipe.columns):
            if function is None or isinstance(chosen, RejectedRow):
                yield from _map_columns(chosen, recipe.fitted)
                continue
            for computed in apply_function(chosen, function, alone=recipe.rejects is not None):
                yield from _map_columns(computed, recipe.fitted)


def _map_columns(
    row: pa.RecordBatch | RejectedRow, columns: Sequence[ColumnMapping] | None
) -> Iterator[pa.RecordBatch | RejectedRow]:
    if columns is None or isinstance(row, RejectedRow):
        yield row
    else:
        yield from cast_batch(row, columns)


def _add_path(rows: RowStream, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Rows as they are; bad ones say which file they are of."""
    for row in rows:
        if not isinstance(row, RejectedRow):
            yield row
        else:
            yield RejectedRow(row.row, f"{piece.path}{', ' if row.line else ': '}{row.reason}", row.line)


@dataclass(slots=True)
class _RejectWriter:
    """Rows put aside, in files of JSON lines: {"reason": …, "row": …}."""

    recipe: WriteSpec
    key: str
    count: int = 0
    _waiting: list[str] = field(default_factory=list)
    _files: int = 0

    def put(self, bad: RejectedRow) -> None:
        if self.recipe.discreet:
            raise RefusedError(
                "A row does not fit the table: a value is none of its column's type, or null where none may be."
            )
        if self.recipe.rejects is None:
            shown = json.dumps(bad.row, default=_to_text)[:_MAX_ROW_TEXT]
            raise RefusedError(
                f"A row does not fit: {bad.reason}. The row: {shown}. Name a folder for such rows (--rejects), "
                "and the others are taken."
            )
        self.count += 1
        self._waiting.append(json.dumps({"reason": bad.reason, "row": bad.row}, default=_to_text))
        if len(self._waiting) == REJECTS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            name = f"{self.recipe.rejects}/{self.recipe.run}-{self.key}-{self._files}.jsonl"
            write_file(name, ("\n".join(self._waiting) + "\n").encode(), self.recipe.storage)
            self._files, self._waiting = self._files + 1, []


def _to_text(value: Any) -> str:
    """What JSON has no form for, as text."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
