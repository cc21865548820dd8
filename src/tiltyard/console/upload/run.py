"""Bring in a file: its rows go to the operation that writes them, how far it is to the browser, in lines of JSON."""

from __future__ import annotations

import json
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from starlette.responses import StreamingResponse

from tiltyard.api.errors import error_response
from tiltyard.console.browser_checks import HEADERS
from tiltyard.console.page_calls import ClientLeftError
from tiltyard.console.templates import link, plain
from tiltyard.console.upload.file_reader import FileReader
from tiltyard.console.upload.page import read_order
from tiltyard.console.upload.target import Target
from tiltyard.runtime.pool import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from starlette.responses import Response

    from tiltyard.console.page import PageRequest
    from tiltyard.console.page_calls import PageCalls
    from tiltyard.model.file_reading import Progress, ReadOutcome

MAX_SECONDS = 3600
"""How long it may take to read a file."""
PROGRESS_SECONDS = 0.5
"""How often the browser is told how far it is."""


def run(page: PageRequest) -> Response:
    """Make a table of a file. Raises InvalidInputError for a form that cannot be."""
    return _run(page, Target.of_new(page))


def run_into(page: PageRequest) -> Response:
    """Bring the rows of a file into the table of the page. Raises InvalidInputError for a form that cannot be."""
    return _run(page, Target.of_existing(page))


def permit(page: PageRequest) -> None:
    """Check, before a file comes, that its rows may become a table. Raises what creating it raises."""
    Target.of_new(page).authorize(page.calls)


def permit_into(page: PageRequest) -> None:
    """Check, before a file comes, that its rows may go into the table of the page. Raises what writing them raises."""
    Target.of_existing(page).authorize(page.calls)


def _run(page: PageRequest, target: Target) -> Response:
    target.request()
    written = _Written()
    work = start_thread("upload", lambda: written.write(page, target))
    return StreamingResponse(_lines(page, target, written, work), 200, HEADERS, "application/x-ndjson")


class _Written:
    """How far the rows of a file are written."""

    def __init__(self) -> None:
        self.rows = 0
        self.progress: Progress | None = None
        self.outcome: ReadOutcome | None = None

    def write(self, page: PageRequest, target: Target) -> int | None:
        """Write the rows of the page's file; return the table's version. Raises what operation and file raise."""
        file, calls = page.file, page.calls.without_end()
        assert file is not None
        try:
            schema = target.schema(calls)
            with FileReader(read_order(page, file, target, schema, seconds=MAX_SECONDS)) as reader:
                rows = pa.RecordBatchReader.from_batches(reader.schema, self._batches(calls, reader))
                name, fields = target.request()
                version: int | None = calls.write(name, rows, **fields).version
                self.outcome = reader.outcome
                return version
        finally:
            file.close()

    def _batches(self, calls: PageCalls, reader: FileReader) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches(self._follow):
            calls.check()
            yield batch

    def _follow(self, rows: int, progress: Progress) -> None:
        self.rows, self.progress = rows, progress


def _lines(page: PageRequest, target: Target, written: _Written, work: Future[int | None]) -> Iterator[bytes]:
    """Yield how far it is until it is done, then how it went."""
    while not wait([work], PROGRESS_SECONDS).done:
        progress = written.progress
        done, total, rejected = (progress.bytes, progress.total, progress.rejected) if progress else (0, 0, 0)
        yield _line({"rows": written.rows, "bytes": done, "total": total, "rejected": rejected})
    try:
        version = work.result()
    except ClientLeftError:
        return
    except Exception as error:  # noqa: BLE001  # the response has begun: its last line says what an error's page would
        _, body, _ = error_response(error, page.calls.ctx.request_id)
        yield _line({"problem": plain(body.error), "request": page.calls.ctx.request_id})
        return
    outcome = written.outcome
    assert outcome is not None
    yield _line(
        {
            "done": {
                "table": plain(" / ".join(target.path), 200),
                "address": link("rows", target.path),
                "rows": outcome.rows,
                "version": version,
                "rejected": outcome.rejected,
                "examples": [[plain(each.reason), plain(each.row)] for each in outcome.examples],
            }
        }
    )


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
