"""Look up fields of a table by their path: `a`, `a.b`, "`a.b`.c"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.storage.errors import column_not_found

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_distance", "_score", "_relevance_score", "query_index"})
"""Names of columns that queries add to their results."""

_NAME = r"`(?:[^`]|``)+`|[^.`]+"
_PATH = re.compile(rf"(?:{_NAME})(?:\.(?:{_NAME}))*")


def path_names(path: str) -> tuple[str, ...]:
    """Split a path into the names of its fields. Raises InvalidInputError for what is no path."""
    if not _PATH.fullmatch(path):
        raise InvalidInputError(f"'{path}' is no path of a field: names with dots stand between backticks.")
    return tuple((name[1:-1].replace("``", "`") if name.startswith("`") else name) for name in re.findall(_NAME, path))


def fold_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a path case-folded: Lance compares names without case."""
    return tuple(name.casefold() for name in names)


def find_field(dataset: lance.LanceDataset, path: str) -> Any:  # pylance's stubs of LanceField lack half of it
    """Return the LanceField at a path. Raises TableColumnNotFoundError, which lists the table's columns."""
    field = dataset.lance_schema.field(path)
    if field is None:
        raise column_not_found(path, dataset.schema.names)
    return field


def arrow_field(dataset: lance.LanceDataset, path: str) -> pa.Field:
    """Return the Arrow field at a path. Raises TableColumnNotFoundError."""
    return find_field(dataset, path).to_arrow()
