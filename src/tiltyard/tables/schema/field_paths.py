"""Look up fields of a table by their path: `a`, `a.b`, "`a.b`.c"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.storage.errors import column_not_found

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_distance", "_score", "_relevance_score", "query_index"})
"""Names of columns that queries add to their results."""


def find_field(dataset: lance.LanceDataset, path: str) -> Any:  # pylance's stubs of LanceField lack half of it
    """Return the LanceField at a path. Raises TableColumnNotFoundError, which lists the table's columns."""
    field = dataset.lance_schema.field(path)
    if field is None:
        raise column_not_found(path, dataset.schema.names)
    return field


def arrow_field(dataset: lance.LanceDataset, path: str) -> pa.Field:
    """Return the Arrow field at a path. Raises TableColumnNotFoundError."""
    return find_field(dataset, path).to_arrow()
