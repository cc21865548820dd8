"""What is asked of the process that reads an uploaded file (`pipeline/sources/file_process`), and what it answers.

It answers with a stream of Arrow. The metadata of the schema has the file's columns, that of each batch the progress,
and that of the last batch, which is empty, how it went; a stream without that was cut. Where there are no rows at all
the schema is empty, and has the outcome itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

COLUMNS, PROGRESS, OUTCOME = b"tiltyard.columns", b"tiltyard.progress", b"tiltyard.outcome"
"""The keys of the metadata."""


class FileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to read: the file at `path`, which its owner calls `title`.

    `files` are options of files, `types` replace those of columns, `left_out` are columns not to take, `table` is the
    schema of the table that gets the rows, if there is one, as Arrow serializes it. `max_rows` ends the reading;
    `is_cut` says that the file is the beginning of another, with its end. Rows that do not fit end the reading, unless
    `leaves_out_rejected`. Beyond `memory_bytes` and `seconds` the system ends it.
    """

    path: str
    title: str
    files: dict[str, Any]
    types: dict[str, str] = {}
    left_out: list[str] = []
    table: bytes | None = None
    max_rows: int | None = None
    is_cut: bool = False
    leaves_out_rejected: bool = False
    memory_bytes: int
    seconds: int


class FileColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of the file: its type as it is read, whether that was inferred from text, and what the table gets.

    `becomes` is None for a column that is left out.
    """

    name: str
    type: str
    is_inferred: bool
    becomes: str | None


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How much is read: bytes of the file's parts that are done, of all of them, and the rows that were rejected."""

    bytes: int
    total: int
    rejected: int


class Rejected(msgspec.Struct, frozen=True):
    """A row that does not fit, as far as it is shown."""

    reason: str
    row: str


class ReadOutcome(msgspec.Struct, kw_only=True):
    """How the reading went: `problem` is why it ended before its end, in words for the file's owner."""

    problem: str = ""
    rows: int = 0
    rejected: int = 0
    examples: list[Rejected] = []
