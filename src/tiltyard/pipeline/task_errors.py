"""Errors of Spark tasks that no retry mends.

Tasks import this and not the namespace's errors: importing those takes a second.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_SOURCE_POSITION = re.compile(r",? (?:location: )?/\S*\.rs:\d+:\d+|\n\s*Debug source:.*", re.DOTALL)
_PREFIXES = re.compile(r"^(?:(?:Invalid user input|Namespace error|Schema error|LanceError\(\w+\)|External error): )+")


class RefusedError(Exception):
    """The job cannot succeed as requested; the message says what to change. Spark does not retry it."""


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
