"""Load the sample as a table, by the operations that any client calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.sample.films import EMBEDDING_FUNCTION, read_films

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_COLUMN = "about"


class SampleCalls(Protocol):
    """Calls operations: `tiltyard.calls.Caller`, and the calls of a page of the console."""

    def call(self, name: str, /, **fields: Any) -> Any:
        """Call an operation."""

    def write(self, name: str, rows: pa.RecordBatchReader, /, **fields: Any) -> Any:
        """Call an operation that takes rows."""


def load_sample(calls: SampleCalls, table: Sequence[str]) -> int:
    """Make the table, and queue an index of its texts; return the number of its rows.

    Raises what CreateTable and CreateTableIndex raise: TableAlreadyExistsError, NamespaceNotFoundError,
    PermissionDeniedError.
    """
    films = read_films()
    calls.write("CreateTable", films.to_reader(), id=list(table), mode="Create")
    calls.call("CreateTableIndex", id=list(table), column=TEXT_COLUMN, index_type="FTS")
    return int(films.num_rows)


def is_sample(metadata: Mapping[str, str] | None) -> bool:
    """Return whether a table with this metadata is the sample."""
    try:
        functions = json.loads((metadata or {}).get("embedding_functions", "[]"))
        return any(function["name"] == EMBEDDING_FUNCTION for function in functions)
    except (ValueError, TypeError, KeyError):
        return False  # whoever writes a table writes its metadata, too
