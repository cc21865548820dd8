"""How a Lance table is written into a catalog of other tables: its marker, its own properties, its location.

Everybody's clients use this marker (lance-spark, lance-trino, `lance-namespace-impls`): Glue's write it in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import unquote

from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.model.ids import Id
from tiltyard.storage.locations import canonical_location, new_folder_name

MARKER_KEY, MARKER = "table_type", "lance"
MARKER_PROPERTIES = {MARKER_KEY: MARKER, "managed_by": "storage"}
"""What every entry of a Lance table has; `managed_by`: its versions are in the storage, not in the catalog."""
_OWN_PROPERTIES = frozenset((*MARKER_PROPERTIES, "empty_table"))
"""Properties of the entry itself, which no user sets or sees; upstream writes `empty_table`, and never changes it."""

_FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Hadoop's names of schemes."""


def is_lance(parameters: Mapping[str, str] | None) -> bool:
    """Whether a table's parameters have the marker."""
    return (parameters or {}).get(MARKER_KEY, "").casefold() == MARKER


def other_format_error(backend: str, table: Id) -> TableNotFoundError:
    """Return the error for a table without the marker."""
    return TableNotFoundError(f"{backend} has '{table}', but it is no Lance table: use the engine it is for.")


def user_properties(parameters: Mapping[str, str] | None, hidden: Collection[str] = ()) -> dict[str, str]:
    """Return what users gave, without the entry's own properties and those that the backend adds.

    `hidden` has their names, or beginnings of names that end in a dot.
    """
    return {key: value for key, value in (parameters or {}).items() if not _is_own(key, hidden)}


def check_properties(changes: Mapping[str, str | None], hidden: Collection[str] = ()) -> None:
    """Raise InvalidInputError for properties that are not the user's to set."""
    if own := sorted(key for key in changes if _is_own(key, hidden)):
        raise InvalidInputError(f"The property '{own[0]}' is the catalog's own: leave it out.")


def with_changes(properties: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the properties after some were set, and those that are None removed."""
    return {key: value for key, value in {**properties, **changes}.items() if value is not None}


def _is_own(key: str, hidden: Collection[str]) -> bool:
    return key in _OWN_PROPERTIES or key in hidden or any(key.startswith(name) for name in hidden if name[-1] == ".")


def new_table_location(folder: str, table: Id) -> str:
    """Return a location below a folder that no other table, and no other try to create this one, has.

    A catalog may remove the folder of a creation that it undoes: a Hive Metastore does, when another was first. And the
    place of a table that was dropped or renamed stays taken for as long as its files are there.
    """
    return f"{folder.rstrip('/')}/{new_folder_name(table)}"


def location_below_root(root: str, table: Id) -> str:
    """Return a location for a new table below a mount's root, in folders named as its namespaces."""
    return new_table_location("/".join((canonical_location(root).rstrip("/"), *table.parent)), table)


def normalized_location(location: str, *, is_encoded: bool) -> str:
    """Return a backend's location in our form: `file:/x` and `file:///x` are /x, s3a:// is s3://, no closing slash.

    `is_encoded` says whether the backend percent-encodes URIs; Hadoop does not. Whether the location may be opened at
    all is checked where tables are opened.
    """
    path, is_file = _FILE_URI.subn("", location, count=1) if _FILE_URI.match(location) else (location, 0)
    scheme = _URI.match(path)
    if is_encoded and (is_file or scheme):
        path = unquote(path)
    if scheme:
        name = scheme[1].lower()
        path = f"{_ALIASES.get(name, name)}://{path[scheme.end() :]}"
    return path.rstrip("/") or path[:1]
