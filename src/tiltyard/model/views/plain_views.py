"""Plain views: named queries in the catalog, each in the properties of a declared table that never gets data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.model.ids import Id, parse_id

PREFIX = "tiltyard.plain_view."
"""The prefix of their properties."""
QUERY_PROPERTY = f"{PREFIX}query"
_SCHEMA_PROPERTY = f"{PREFIX}schema"
DATABASE_PROPERTY = f"{PREFIX}database"
_ROOT = Id()


@dataclass(frozen=True, slots=True)
class PlainView:
    """The definition of a view: SQL, the schema that it had when the view was created, and what its names are in."""

    query: str
    schema: pa.Schema
    database: Id = _ROOT

    def properties(self) -> dict[str, str]:
        """Return the properties of the view's table."""
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        database = {DATABASE_PROPERTY: str(self.database)} if self.database else {}
        return {QUERY_PROPERTY: self.query, _SCHEMA_PROPERTY: schema, **database}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> PlainView | None:
        """Read the definition in the properties of a table; None for a table that is no view.

        Clients may set any properties, and so make a view without CreateView: it is read under its reader's own grants
        all the same.
        """
        query = properties.get(QUERY_PROPERTY)
        if query is None:
            return None
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(properties.get(_SCHEMA_PROPERTY, ""))))
            text = properties.get(DATABASE_PROPERTY, "")
            database = parse_id(text) if text else _ROOT
        except (pa.ArrowException, OSError, ValueError, InvalidInputError):
            return None
        return cls(query, schema, database)


def is_view(properties: Mapping[str, str]) -> bool:
    """Return whether a table with these properties is a view."""
    return PlainView.from_properties(properties) is not None


def refuse_view(properties: Mapping[str, str]) -> None:
    """Raise InvalidTableStateError if a table with these properties is a view, which has no files."""
    if is_view(properties):
        raise InvalidTableStateError("This is a view: it can be read, and has no rows, versions or indexes of its own.")
