"""Rows that a function failed on, and the messages of errors: for Spark's tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

_SOURCE_POSITION = re.compile(r",? (?:location: )?/\S*\.rs:\d+:\d+|\n\s*Debug source:.*", re.DOTALL)
_PREFIXES = re.compile(r"^(?:(?:Invalid user input|Namespace error|Schema error|LanceError\(\w+\)|External error): )+")

_REPEATED_PREFIX = re.compile(r"^([^:]+: )\1+")
"""What generated clients put before an error's message, which begins with the same."""


class RowsFailedError(RefusedError):
    """A function failed on rows, of which others may have values: those of its last call are `rows`."""

    def __init__(self, message: str, rows: pa.RecordBatch | None = None) -> None:
        super().__init__(message)
        self.rows = rows

    def __reduce__(self) -> tuple[type[RowsFailedError], tuple[str]]:
        return type(self), (str(self),)


def clean_message(error: BaseException) -> str:
    """Return the message of an error of Lance or an object store, without source positions and final full stop."""
    return _PREFIXES.sub("", _SOURCE_POSITION.sub("", str(error))).strip().rstrip(".,")


def drop_repeated_prefix(message: str) -> str:
    """Return a message without what it begins with twice: `Table not found: Table not found: films`."""
    return _REPEATED_PREFIX.sub(r"\1", message)
