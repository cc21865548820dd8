"""What stored definitions name by path where no ids were recorded: find the ids once.

That is at the upgrade, and later for a publication that an earlier server has made beside later ones. The names are
resolved as they are at that moment. Whether a function's registrant may still have its secrets is checked
at each use, as for all others; a name that resolves to nothing gets no id: such a function has to be registered again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tiltyard.store.functions.secrets import SecretRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.store.backend import Connection

VERSIONS = "SELECT object_id, version, definition FROM function_versions ORDER BY object_id, version"
PIN_SECRETS = "UPDATE function_versions SET secret_ids = ? WHERE object_id = ? AND version = ?"
PUBLICATIONS = "SELECT id, namespace FROM publications WHERE namespace IS NOT NULL ORDER BY id"
PIN_NAMESPACE = "UPDATE publications SET namespace_id = ? WHERE id = ?"
ROOT = "SELECT id FROM namespaces WHERE parent_id IS NULL"
CHILD = "SELECT id FROM namespaces WHERE parent_id = ? AND name = ?"
SECRET = f"SELECT {SecretRecord.ID} FROM named_secrets WHERE namespace_id = ? AND name = ?"  # noqa: S608  # a constant


def pin_names(connection: Connection) -> None:
    """Record the ids of the secrets that functions name, and of the namespaces that publications do."""
    for object_id, version, definition in connection.rows(VERSIONS):
        bindings = json.loads(definition).get("secret_bindings") or ()
        found = {binding["variable"]: _find_secret(connection, binding["secret_ref"]) for binding in bindings}
        ids = {variable: id_ for variable, id_ in found.items() if id_ is not None}
        if ids:
            connection.change(PIN_SECRETS, json.dumps(ids), object_id, version)
    for publication, path in connection.rows(PUBLICATIONS):
        pin_namespace(connection, publication, json.loads(path))


def pin_namespace(connection: Connection, publication: int, path: Sequence[str]) -> int:
    """Record the id of the namespace that a publication names, and return it; 0, which none has, if it is gone."""
    found = _find_namespace(connection, path) or 0
    connection.change(PIN_NAMESPACE, found, publication)
    return found


def _find_secret(connection: Connection, reference: Mapping[str, Any]) -> str | None:
    namespace = _find_namespace(connection, reference.get("namespace_path") or ())
    row = None if namespace is None else connection.row(SECRET, namespace, reference["name"])
    return None if row is None else str(row[0])


def _find_namespace(connection: Connection, path: Sequence[str]) -> int | None:
    row = connection.row(ROOT)
    for name in path:
        row = None if row is None else connection.row(CHILD, row[0], name)
    return None if row is None else int(row[0])
