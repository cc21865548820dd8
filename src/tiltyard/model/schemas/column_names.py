"""Check the names of new columns: those that Lance stores but cannot address are refused.

Lance allows no dot in a column's name. It stores a column with a backtick or a NUL in its name, or without a name, but
then filters, projections and even appends of it fail. Within a struct dots and backticks work everywhere, in a quoted
path: "s.`a.b`".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from tiltyard.model.classifications import is_classified
from tiltyard.model.schemas.nested_types import descendants

if TYPE_CHECKING:
    import pyarrow as pa


def check_column_name(name: str) -> None:
    """Check the name of a column. Raises InvalidInputError."""
    if reason := _reason(name):
        raise InvalidInputError(reason)


def check_new_columns(schema: pa.Schema) -> None:
    """Check the names of a new table's columns, and of all fields inside them, and what their metadata classifies.

    Raises TableSchemaValidationError, InvalidInputError (a key or a value that no classification has).
    """
    is_classified(schema)
    for field in schema:
        if reason := _reason(field.name):
            raise TableSchemaValidationError(reason)
        names = [kind.field(at).name for kind in descendants(field.type) for at in range(kind.num_fields)]
        invalid = [name for name in names if not name or "\0" in name]
        if invalid:
            raise TableSchemaValidationError(f"{_quote(invalid[0])} cannot name a field in the column '{field.name}'.")


def _reason(name: str) -> str | None:
    if name and not any(mark in name for mark in ".`\0"):
        return None
    return f"{_quote(name)} cannot be the name of a column: give it one without dots, backticks and NUL."


def _quote(name: str) -> str:
    return repr(name) if name else "An empty text"
