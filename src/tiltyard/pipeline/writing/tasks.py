"""Tasks that write a table: select, cast, apply the user's function, collect rejects, check, write Lance files.

This runs in Spark's Python workers, for files and DataFrames alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.contracts.checked_rows import FOLDER, ROWS_PER_FILE, encode_reject, to_text
from tiltyard.contracts.checks import QualityCheck
from tiltyard.contracts.row_checks import split_failing
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.sources.casts import ColumnMapping, apply_function, cast_batch
from tiltyard.pipeline.sources.filesystem import write_file
from tiltyard.pipeline.sources.readers import Piece, SourceReader
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.writing.fragments import FragmentTarget, delete_fragment_files, write_batches
from tiltyard.pipeline.writing.quality_checks import CheckCounter
from tiltyard.view_refresh.added_columns import AddedColumns, ColumnCounts

_MAX_ROW_TEXT = 1000

RowStream = Iterable[pa.RecordBatch | RejectedRow]


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows of a source become rows of the table: select `columns`, apply `udf`, map to `table_columns`.

    `rejects` is a folder for rows that do not fit, with the run's id in the names of its files; without it, such a row
    ends the job, and is quoted in the error unless `hides_rows`: a job's error has more readers than its source. Rows
    in which one of the `keys` is null do not fit. With `added`, the rows are those of a view's query, and get the
    other columns of the view, whose code needs `column_resources`. With `may_sync_later` results may say what makes
    their files durable. Rows that fail one of the `rejecting` checks, those of the table's contract, are parked in the
    folder of rejects, or else in the table's own.
    """

    run: str
    target: FragmentTarget
    columns: tuple[ColumnMapping, ...]
    udf: GuardedFunction | None = None
    table_columns: tuple[ColumnMapping, ...] | None = None
    checks: tuple[QualityCheck, ...] = ()
    rejects: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    hides_rows: bool = False
    added: AddedColumns | None = None
    may_sync_later: bool = False
    rejecting: tuple[QualityCheck, ...] = ()
    column_resources: tuple[tuple[str, str], ...] = ()
    kept: tuple[str, ...] = ()
    """Columns that the source lacks, and that the rows of an upsert keep: null in what is written."""

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """Return what Spark reserves for each task."""
        return self.udf.resources if self.udf else self.column_resources


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The output of a task; `failures` counts rows that fail checks, by the check's text."""

    fragments: tuple[str, ...]
    rows: int
    rejected: int
    size: int
    failures: Mapping[str, int]
    columns: ColumnCounts = field(default_factory=ColumnCounts)
    """Values of a view's columns of code."""
    sync: Future[None] | None = field(default=None, compare=False)
    """What makes the files durable, where that goes on."""

    def to_json(self) -> str:
        """Serialize for the run's checkpoint."""
        fields = {"fragments": self.fragments, "rows": self.rows, "rejected": self.rejected, "size": self.size}
        return json.dumps({**fields, "wrong": self.failures, "columns": asdict(self.columns)})

    @classmethod
    def from_json(cls, text: str) -> WriteResult:
        """Deserialize from a checkpoint."""
        fields = json.loads(text)
        columns = ColumnCounts(**fields.get("columns", {}))
        return cls(
            tuple(fields["fragments"]), fields["rows"], fields["rejected"], fields["size"], fields["wrong"], columns
        )


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """A task's input: neighbouring pieces of a source, and the key of its reader."""

    pieces: tuple[Piece, ...]
    reader_key: str = ""

    @property
    def key(self) -> str:
        """Return the checkpoint key: equal for the same pieces of unchanged files, read the same way."""
        digest = hashlib.sha256(json.dumps([self.reader_key, *(piece.key for piece in self.pieces)]).encode())
        return f"share-{digest.hexdigest()[:32]}"


def write_pieces(spec: WriteSpec, reader: SourceReader, group: PieceGroup) -> WriteResult:
    """Read a group of pieces and write their rows. Runs in a task. Raises RefusedError."""
    rows = (row for piece in group.pieces for row in _add_path(reader.read(piece), piece))
    return write_rows(spec, rows, group.key)


def write_rows(spec: WriteSpec, rows: RowStream, key: str) -> WriteResult:
    """Write rows; `key` is unique in the run, and the same when the task is retried. Raises RefusedError."""
    counter = CheckCounter(spec.checks)
    rejects = _RejectWriter(spec, key)
    count = 0

    def valid_rows() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in transform_rows(spec, rows):
            if isinstance(batch, RejectedRow):
                rejects.add(batch)
            elif batch.num_rows:
                for row in rejects.take(batch):
                    counter.count(row)
                    count += row.num_rows
                    yield row

    columns = ColumnCounts()
    whole = valid_rows() if spec.added is None else spec.added.add(valid_rows(), counts=columns)
    fragments = write_batches(spec.target, whole)
    try:
        rejects.flush()
    except BaseException:
        delete_fragment_files(spec.target.location, fragments)
        raise
    size = sum(file.get("file_size_bytes") or 0 for fragment in fragments for file in json.loads(fragment)["files"])
    return WriteResult(tuple(fragments), count, rejects.count, size, counter.failures, columns)


def write_partition(spec: WriteSpec, number: int, batches: Iterator[pa.RecordBatch]) -> WriteResult | str:
    """Write a partition of a DataFrame; return the reason where its rows are refused. Runs in a task.

    An error would hide what the tasks of other partitions have written.
    """
    try:
        return write_rows(spec, batches, f"partition-{number}")
    except RefusedError as refusal:
        return str(refusal)


def infer_schema(spec: WriteSpec, reader: SourceReader, piece: Piece) -> pa.Schema | None:
    """Return what the user's function makes of a piece's first rows; None if it takes none. Runs in a task."""
    batches = transform_rows(spec, reader.read(piece))
    return next((batch.schema for batch in batches if not isinstance(batch, RejectedRow)), None)


def infer_partition_schema(spec: WriteSpec, _: int, batches: Iterator[pa.RecordBatch]) -> pa.Schema | None:
    """Return what the user's function makes of a partition's first rows; None if it takes none. Runs in a task.

    All rows are consumed: Spark ends a worker that leaves some.
    """
    schemas = [batch.schema for batch in transform_rows(spec, batches) if not isinstance(batch, RejectedRow)]
    return schemas[0] if schemas else None


def transform_rows(spec: WriteSpec, rows: RowStream) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Yield the rows of the table that rows of the source become, and those that are rejected."""
    function = spec.udf.load() if spec.udf else None
    for row in rows:
        for selected in _map_columns(row, spec.columns):
            if spec.udf is None or function is None or isinstance(selected, RejectedRow):
                computed = iter([selected])
            else:
                computed = apply_function(selected, function, spec.udf.policy, spec.table_columns)
            for made in computed:
                for mapped in _map_columns(made, spec.table_columns):
                    yield from _reject_null_keys(mapped, spec.keys)


def _map_columns(
    row: pa.RecordBatch | RejectedRow, columns: Sequence[ColumnMapping] | None
) -> Iterator[pa.RecordBatch | RejectedRow]:
    if columns is None or isinstance(row, RejectedRow):
        yield row
    else:
        yield from cast_batch(row, columns)


def _reject_null_keys(
    rows: pa.RecordBatch | RejectedRow, keys: Sequence[str]
) -> Iterator[pa.RecordBatch | RejectedRow]:
    if isinstance(rows, RejectedRow):
        yield rows
        return
    for name in keys:
        if rows.column(name).null_count:
            is_null = rows.column(name).is_null()
            yield from (RejectedRow(row, f"the key '{name}' is null") for row in rows.filter(is_null).to_pylist())
            rows = rows.filter(pc.invert(is_null))
    yield rows


def _add_path(rows: RowStream, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
    """Yield rows unchanged; add to rejected ones the path of their file."""
    for row in rows:
        if not isinstance(row, RejectedRow):
            yield row
        else:
            yield RejectedRow(row.row, f"{piece.path}{', ' if row.line else ': '}{row.reason}", row.line)


@dataclass(slots=True)
class _RejectWriter:
    """Takes rejected rows to their files, or ends the task where there is no folder for them."""

    spec: WriteSpec
    key: str
    files: RejectFiles = field(init=False)

    def __post_init__(self) -> None:
        folder, storage = self.spec.rejects, self.spec.storage
        if folder is None:
            folder, storage = rejects_folder(self.spec.target.location), self.spec.target.location.options
        self.files = RejectFiles(folder, f"{self.spec.run}-{self.key}", storage)

    def take(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the rows that the table's contract lets in; the others are parked. Raises RefusedError."""
        if not self.spec.rejecting:
            return [batch]
        passing, failed = split_failing(self.spec.rejecting, pa.Table.from_batches([batch]))
        for reason, row in failed:
            self.files.add(reason, row)
        return passing.to_batches() if failed else [batch]

    @property
    def count(self) -> int:
        return self.files.count

    def add(self, rejected: RejectedRow) -> None:
        if self.spec.hides_rows and self.spec.rejects is None:
            raise RefusedError(
                "A row does not fit the table: a value is none of its column's type, or null where none may be."
            )
        if self.spec.rejects is None:
            raise describe_unfit(rejected)
        self.files.add(rejected.reason, rejected.row)

    def flush(self) -> None:
        self.files.flush()


def rejects_folder(location: TableLocation) -> str:
    """Return the folder of a table for rows that its contract rejects."""
    return f"{location.uri}/{FOLDER}"


@dataclass(slots=True)
class RejectFiles:
    """Files of rejected rows in a folder, JSON lines of {"reason": …, "row": …}; their names begin with `stem`."""

    folder: str
    stem: str
    storage: Mapping[str, str]
    count: int = 0
    _buffer: list[bytes] = field(default_factory=list)
    _files: int = 0

    def add(self, reason: str, row: Any) -> None:
        """Add a row; a full file is written."""
        self.count += 1
        self._buffer.append(encode_reject(reason, row))
        if len(self._buffer) == ROWS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are in no file yet."""
        if self._buffer:
            name = f"{self.folder}/{self.stem}-{self._files}.jsonl"
            write_file(name, b"".join(self._buffer), self.storage)
            self._files, self._buffer = self._files + 1, []


def describe_unfit(rejected: RejectedRow) -> RefusedError:
    """Return the error of a row that does not fit, where there is no folder for such rows."""
    text = json.dumps(rejected.row, default=to_text)[:_MAX_ROW_TEXT]
    return RefusedError(
        f"A row does not fit: {rejected.reason}. The row: {text}. Name a folder for such rows (--rejects), and the "
        "others are taken."
    )


def encode_rejects(rejected: Iterable[RejectedRow]) -> bytes:
    """Return rejected rows as lines of JSON: {"reason": …, "row": …}."""
    return b"".join(encode_reject(row.reason, row.row) for row in rejected)
