"""The rows of a file as another process reads them: what that makes of a file of anybody's is not made here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.file_reading import COLUMNS, OUTCOME, PROGRESS, FileColumn, FileOrder, Progress, ReadOutcome
from tiltyard.runtime.child_process import start_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

_PROGRAM = (sys.executable, "-m", "tiltyard.runtime.lazy_imports", "tiltyard.pipeline.sources.file_process")
_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
"""Allocators that take memory as it is needed, so that a limit is one of what is used."""


class FileReader:
    """Reads one file. `schema` is that of its rows, `columns` are those of the file.

    `outcome` says how it went, once the rows are read.
    """

    def __init__(self, order: FileOrder) -> None:
        """Start the process, and wait for the file's columns. Raises InvalidInputError for a file without any."""
        self.outcome = ReadOutcome()
        self._title = order.title
        self._process = start_command(_PROGRAM, variables={**os.environ, **_VARIABLES})
        try:
            self._process.stdin.write(msgspec.json.encode(order))
            self._process.stdin.close()
            self._stream = pa.ipc.open_stream(self._process.stdout)
            metadata = self._stream.schema.metadata or {}
            if (outcome := metadata.pop(OUTCOME, None)) is not None:
                raise InvalidInputError(msgspec.json.decode(outcome, type=ReadOutcome).problem)
            self.columns = msgspec.json.decode(metadata.pop(COLUMNS), type=list[FileColumn])
            self.schema = self._stream.schema.with_metadata(metadata or None)
        except (pa.ArrowException, OSError) as error:
            self.close()
            raise self._cut() from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def batches(self, on_progress: Callable[[int, Progress], None]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; `on_progress` is called with those that are there so far.

        Raises InvalidInputError for a file that cannot be read to its end, or has a row that does not fit.
        """
        rows = 0
        try:
            while True:
                batch, metadata = self._stream.read_next_batch_with_custom_metadata()
                if (outcome := (metadata or {}).get(OUTCOME)) is not None:
                    self.outcome = msgspec.json.decode(outcome, type=ReadOutcome)
                    break
                rows += batch.num_rows
                on_progress(rows, msgspec.json.decode(metadata[PROGRESS], type=Progress))
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise self._cut() from error
        if self.outcome.problem:
            raise InvalidInputError(self.outcome.problem)

    def _cut(self) -> InvalidInputError:
        """Return the error of a file whose reader has ended in the middle of it."""
        status = self._process.wait(1)
        reason = "takes too long to be read" if status == -14 else "ended the process that reads it"
        return InvalidInputError(f"{self._title} {reason}: it is broken, or too large to be read here.")

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.close()
