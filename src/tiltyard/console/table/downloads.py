"""Download what is shown, all of its rows: as CSV, lines of JSON, Parquet or Arrow, streamed as they are read."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import ErrorCode, UnsupportedOperationError

from tiltyard.api.errors import HttpError
from tiltyard.console.page import PageRequest
from tiltyard.console.saved_files import CSV, JSON_LINES, csv_lines, stream_file
from tiltyard.console.table.grid import shown_columns
from tiltyard.console.table.heads import read_head
from tiltyard.console.table.rows import Choice
from tiltyard.model.schemas.python_values import python_rows, python_values

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from starlette.responses import Response

    from tiltyard.console.page_calls import SqlAnswer
    from tiltyard.model.operations import ArrowAnswer

    Rows = ArrowAnswer | SqlAnswer

MAX_ROWS = (1 << 31) - 1
Encoder = Callable[[pa.Schema, Iterator[pa.RecordBatch]], Iterator[bytes]]


def send(page: PageRequest) -> Response:
    """Stream the rows that a page of rows begins with. Raises as `stream`."""
    head, choice = read_head(page), Choice.of(page)
    columns = shown_columns(head.columns, choice.columns)
    names = [column.name for column in columns if column.kind != "blob" and column.name not in head.hidden]
    request = choice.request(head, page.path, columns) | {
        "columns": {"column_names": names},
        "k": MAX_ROWS,
        "with_row_id": None,
        "offset": None,
    }
    return stream(page, lambda: page.calls.rows(**request), page.path[-1])


def stream(page: PageRequest, open_rows: Callable[[], AbstractContextManager[Rows]], title: str) -> Response:
    """Stream rows as a file of this title, in the format that is asked for; they are read as they are sent.

    Raises InvalidInputError for an unknown format, and what the query raises before its first rows are read.
    """
    return stream_file(page, title, FORMATS, lambda encode: _chunks(page, open_rows, encode))


def _chunks(
    page: PageRequest, open_rows: Callable[[], AbstractContextManager[Rows]], encode: Encoder
) -> Iterator[bytes]:
    with open_rows() as answer:
        yield from encode(answer.schema, _checked(page, answer))


def _checked(page: PageRequest, answer: Rows) -> Iterator[pa.RecordBatch]:
    """Yield batches for as long as the query may take, and as many bytes as it may have."""
    most, size = page.services.settings.max_result_bytes, 0
    for batch in answer.batches:
        page.calls.check()
        size += batch.nbytes
        if most and size > most:
            raise HttpError(413, ErrorCode.INVALID_INPUT, f"The rows have more than {most} bytes: narrow the filter.")
        yield batch


def encode_csv(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield lines of CSV under a line of names; nested values are JSON, bytes are base64, a null is empty."""
    yield csv_lines([schema.names])
    for batch in batches:
        columns = [python_values(column) for column in batch.columns]
        yield csv_lines([[_csv_text(value) for value in row] for row in zip(*columns, strict=True)])


def encode_json_lines(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield an object a row and line; bytes are base64."""
    for batch in batches:
        lines = [json.dumps(row, default=_json_text, ensure_ascii=False) for row in map(_finite, python_rows(batch))]
        yield "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def encode_arrow(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a stream of Arrow IPC."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


def encode_parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a Parquet file, a row group a batch. Raises UnsupportedOperationError for a type that it has not."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # downloads alone need it

    sink = _Sink()
    try:
        opened = pq.ParquetWriter(pa.PythonFile(sink, "w"), schema)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedOperationError(
            f"Parquet has not all of these types: {error}. Choose Arrow, or cast."
        ) from error
    with opened as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


class _Sink(io.RawIOBase):
    """What is written, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self._parts.append(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(_finite(value), default=_json_text, ensure_ascii=False)
    return _json_text(value) if isinstance(value, bytes) else str(value)


def _json_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have by null."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMATS: dict[str, tuple[str, Encoder]] = {
    "csv": (CSV, encode_csv),
    "jsonl": (JSON_LINES, encode_json_lines),
    "parquet": ("application/vnd.apache.parquet", encode_parquet),
    "arrow": ("application/vnd.apache.arrow.stream", encode_arrow),
}
