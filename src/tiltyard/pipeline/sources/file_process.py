"""Read a file of anybody's in a process of its own; its rows go to standard output, as a stream of Arrow.

The file may be broken, or made to become many gigabytes: the system limits the memory and the time of this process,
rows are validated here, and whatever a reader makes of them ends with it. Standard input has the order, as JSON. The
stream is that of `model.file_reading`.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from tiltyard.model.columns.blob_columns import check_no_blobs
from tiltyard.model.file_reading import (
    COLUMNS,
    OUTCOME,
    PROGRESS,
    FileColumn,
    FileOrder,
    Progress,
    ReadOutcome,
    Rejected,
)
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.type_names import format_type, parse_type
from tiltyard.model.text.shown_text import shorten
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import SourceOptions, find_source
from tiltyard.pipeline.sources.file_options import FileOptions, pick_options
from tiltyard.pipeline.sources.file_rows import RowMapping, rows_of_new_table, rows_of_table
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.runtime.client_arrow.decoded_size import DecodedSizeCheck, encoded_columns
from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES, MAX_RATIO

MAX_EXAMPLES = 100
"""Rejected rows that the outcome shows."""
MAX_EXAMPLE_CHARACTERS = 300
"""Characters of a rejected row, and of its reason."""
MAX_SHOWN_BYTES = 4 << 20
"""Bytes of the first rows, where only those are read."""
_FAILURES = (RefusedError, pa.ArrowException, OSError, ValueError, ArithmeticError, MemoryError, RecursionError)
"""What readers of files raise for a file that is broken, too large, or of a type that cannot be."""
_OPTIONS = {
    "delimiter": "the separator",
    "escape": "the escape",
    "null-value": "the text for null",
    "format": "the format",
    "cast": "the type",
}
"""What the form calls the options of the command line, which messages name."""
_CAST = re.compile(r"--cast '?([^\s']+)=(\S+?)'? takes any")


def main() -> None:
    """Serve one order."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=FileOrder)
    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(order.seconds)
    try:
        _serve(order)
    except BrokenPipeError:  # whoever ordered it has left
        sys.stderr.close()


def _serve(order: FileOrder) -> None:
    outcome = ReadOutcome()
    try:
        rows = _open(order)
    except _FAILURES as error:
        outcome.problem = explain(error, order)
        with pa.ipc.new_stream(sys.stdout.buffer, pa.schema([], {OUTCOME: msgspec.json.encode(outcome)})):
            return
    metadata = {**(rows.schema.metadata or {}), COLUMNS: msgspec.json.encode(_columns(rows))}
    with pa.ipc.new_stream(sys.stdout.buffer, rows.schema.with_metadata(metadata)) as writer:
        try:
            for batch, progress in _read(order, rows, outcome):
                writer.write_batch(batch, pa.KeyValueMetadata({PROGRESS: msgspec.json.encode(progress)}))
        except BrokenPipeError:
            raise
        except _FAILURES as error:
            if not (order.is_cut and outcome.rows):
                outcome.problem = explain(error, order)
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in rows.schema], schema=rows.schema)
        writer.write_batch(empty, pa.KeyValueMetadata({OUTCOME: msgspec.json.encode(outcome)}))


def _open(order: FileOrder) -> RowMapping:
    """Find the columns of the file. Raises RefusedError, and what its format's reader raises."""

    types = {name: parse_type(text) for name, text in order.types.items() if name not in order.left_out}
    source = find_source(SourceOptions(order.path, pick_options(FileOptions, order.files), types, is_whole=True))
    check_no_blobs(source.reader.schema)
    names = tuple(name for name in source.reader.schema.names if name not in order.left_out)
    if not names:
        raise RefusedError("All columns of the file are left out: take one of them.")
    selection = ColumnSelection(names=names, types=types)
    if order.table is None:
        return rows_of_new_table(source, selection)
    return rows_of_table(source, pa.ipc.read_schema(pa.py_buffer(order.table)), selection)


def _columns(rows: RowMapping) -> list[FileColumn]:
    """Return the columns of the file, as they are read and as the table gets them."""

    becomes = {column.source: format_type(column.field.type) for column in rows.columns}
    return [
        FileColumn(
            field.name, format_type(field.type), field.name in rows.source.reader.inferred, becomes.get(field.name)
        )
        for field in rows.source.reader.schema
    ]


def _read(order: FileOrder, rows: RowMapping, outcome: ReadOutcome) -> Iterator[tuple[pa.RecordBatch, Progress]]:
    """Yield validated batches, each with the progress; count rows and rejects. Raises RefusedError."""

    growth = _Growth(rows)
    read_bytes = 0
    for piece in rows.source.pieces:
        for read in rows.read(piece):
            if isinstance(read, RejectedRow):
                if order.max_rows is not None and order.is_cut:
                    continue  # the last record may be cut
                _reject(read, order, outcome)
                continue
            read.validate(full=True)  # offsets that lead out of a buffer would end the process that gets them
            growth.add(read)
            batch = read if order.max_rows is None else _shown(read, order.max_rows - outcome.rows)
            outcome.rows += batch.num_rows
            yield batch, Progress(read_bytes, rows.source.size, outcome.rejected)
            if order.max_rows is not None and (outcome.rows >= order.max_rows or batch.num_rows < read.num_rows):
                return
        read_bytes += piece.size
    if not outcome.rows and not outcome.rejected and order.max_rows is None:
        raise RefusedError("The file has no rows.")


def _shown(batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    """Return the first rows of a batch, fewer where they are large."""
    while (part := batch.slice(0, rows)).nbytes > MAX_SHOWN_BYTES:
        rows //= 2
    return part


def _reject(row: RejectedRow, order: FileOrder, outcome: ReadOutcome) -> None:
    """Count a row that does not fit. Raises RefusedError where the first one ends the reading."""
    reason = shorten(in_words_of_form(row.reason, order), MAX_EXAMPLE_CHARACTERS)
    text = row.row if isinstance(row.row, str) else str(row.row)[: 2 * MAX_EXAMPLE_CHARACTERS]
    outcome.rejected += 1
    if len(outcome.examples) < MAX_EXAMPLES:
        outcome.examples.append(Rejected(reason, shorten(text, MAX_EXAMPLE_CHARACTERS)))
    if not order.leaves_out_rejected and order.max_rows is None:
        raise RefusedError(reason)


class _Growth:
    """How much larger than the file its rows are."""

    def __init__(self, rows: RowMapping) -> None:

        self._file_bytes = sum(Path(path).stat().st_size for path in {piece.path for piece in rows.source.pieces})
        self._decoded = DecodedSizeCheck(encoded_columns(rows.schema))
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch. Raises RefusedError once all are too large for their file."""

        self._bytes += batch.nbytes
        try:
            self._decoded.add(batch, self._file_bytes)
        except ValueError as error:
            raise RefusedError(f"The file grows too much: {error}.") from error
        if self._bytes > ALLOWED_BYTES + MAX_RATIO * self._file_bytes:
            raise RefusedError(
                f"The file would become more than {self._bytes >> 20} MiB, out of {self._file_bytes} bytes: unpack it, "
                "or write it with less compression."
            )


def explain(error: BaseException, order: FileOrder) -> str:
    """Return why a file cannot be read, for its owner."""
    if isinstance(error, MemoryError) or "malloc" in str(error) or "realloc" in str(error):
        return (
            f"{order.title} needs more than {order.memory_bytes >> 20} MiB of memory to be read: write it in smaller "
            "row groups or batches, or in several files."
        )
    if isinstance(error, RecursionError):
        return f"{order.title} is nested too deeply to be read."
    text = in_words_of_form((str(error).splitlines() or [type(error).__name__])[0], order)
    if not isinstance(error, RefusedError):
        text = f"{order.title} cannot be read: {text}"
    return shorten(text, 3 * MAX_EXAMPLE_CHARACTERS)


def in_words_of_form(message: str, order: FileOrder) -> str:
    """Return a message that names the file as its owner does, and options as the form does."""
    text = message.replace(order.path, order.title)
    text = _CAST.sub(r"the type \2 takes any", text)
    for option, words in _OPTIONS.items():
        text = text.replace(f"--{option} ", f"{words} ").replace(f"--{option}", words)
    return text


if __name__ == "__main__":
    main()
