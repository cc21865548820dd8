"""Functions of clients: names with immutable versions, whose sources lie in storage, and the columns that use them."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, NamespaceNotFoundError

from tiltyard.store.repository import Record, Repository, encode, reads, writes


class FunctionRecord(Record, frozen=True):
    """One version of a function. `artifact` is the folder of its source, `definition` JSON of all else.

    `registrant` is a principal as JSON, "" where `created_by` alone is known; `secret_ids` has the ids of the secrets
    that the definition names, by their variables.
    """

    namespace_id: int
    name: str
    object_id: str
    version: int
    definition: str
    manifest_digest: str
    artifact: str
    created_at: int
    created_by: str
    registrant: str
    secret_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewFunction:
    """What a new version is registered with."""

    definition: str
    manifest_digest: str
    artifact: str
    created_by: str
    registrant: str = ""
    secret_ids: Mapping[str, str] = field(default_factory=dict)


class FunctionUse(Record, frozen=True):
    """A column that a version of a function computes, or did."""

    version: int
    table_id: int
    branch: str
    column: str


LOCK_NAMESPACE = "SELECT id FROM namespaces WHERE id = ? /*+ FOR KEY SHARE */"
LOCK_ARTIFACT = "SELECT claims FROM doomed_folders WHERE location = ? /*+ FOR UPDATE */"
CANCEL_DELETION = "DELETE FROM doomed_folders WHERE location = ? AND claims = 0"
ADD_NAME = """
    INSERT INTO functions (object_id, namespace_id, name, last_version) VALUES (?, ?, ?, 0) ON CONFLICT DO NOTHING
"""
LOCK_NAME = "SELECT object_id FROM functions WHERE namespace_id = ? AND name = ? /*+ FOR UPDATE */"
NEXT_VERSION = """
    UPDATE functions SET last_version = last_version + 1 WHERE namespace_id = ? AND name = ?
    RETURNING object_id, last_version
"""
ADD_VERSION = """
    INSERT INTO function_versions
        (object_id, version, definition, manifest_digest, artifact, created_at, created_by, registrant, secret_ids)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
REPLACE_REGISTRANT = """
    UPDATE function_versions SET registrant = ?, secret_ids = ?, created_by = ? WHERE object_id = ? AND version = ?
"""
_FROM = f"SELECT {FunctionRecord.COLUMNS} FROM function_versions JOIN functions USING (object_id)"
SAME = f"{_FROM} WHERE namespace_id = ? AND name = ? AND manifest_digest = ?"
FIND = f"{_FROM} WHERE namespace_id = ? AND name = ? AND version = COALESCE(?, version) ORDER BY version DESC LIMIT 1"
PINNED = f"{_FROM} WHERE object_id = ? AND version = ?"
LIST = f"{_FROM} WHERE namespace_id = ? AND (name, version) > (?, ?) ORDER BY name, version LIMIT ?"
DROP_VERSION = "DELETE FROM function_versions WHERE object_id = ? AND version = ?"
DROP_NAME = "DELETE FROM functions WHERE object_id = ?"
DROP_EMPTY = """
    DELETE FROM functions
    WHERE object_id = ? AND NOT EXISTS (SELECT 1 FROM function_versions v WHERE v.object_id = functions.object_id)
"""
ARTIFACTS = "SELECT DISTINCT artifact FROM function_versions WHERE object_id = ? AND version = COALESCE(?, version)"
IS_USED_ARTIFACT = "SELECT 1 FROM function_versions WHERE artifact = ? LIMIT 1"
SCHEDULE_DELETION = """
    INSERT INTO doomed_folders (location, due_at, transaction_id, reason, claims) VALUES (?, ?, NULL, 'dropped', 0)
    ON CONFLICT DO NOTHING
"""
USES = """
    SELECT version, table_id, branch, column_name FROM function_uses
    WHERE object_id = ? AND version = COALESCE(?, version) ORDER BY table_id, column_name LIMIT ?
"""
ADD_USE = """
    INSERT INTO function_uses (object_id, version, table_id, branch, column_name) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""
REMOVE_USE = """
    DELETE FROM function_uses
    WHERE object_id = ? AND version = ? AND table_id = ? AND branch = ? AND column_name = ?
"""


class Functions(Repository):
    """The methods for functions; a namespace is named by its id."""

    __slots__ = ()

    @writes
    def add_function(self, namespace_id: int, name: str, new: NewFunction) -> FunctionRecord:
        """Add a version, or return the one that has the same definition.

        Its source is in storage by now. Raises NamespaceNotFoundError, ConcurrentModificationError (a source of this
        digest is being deleted just now).
        """
        if self.connection.row(LOCK_NAMESPACE, namespace_id) is None:
            raise NamespaceNotFoundError("Namespace not found: it was just dropped")
        self.connection.change(ADD_NAME, uuid4().hex, namespace_id, name)
        self.connection.row(LOCK_NAME, namespace_id, name)
        if same := self.connection.row(SAME, namespace_id, name, new.manifest_digest):
            return FunctionRecord.of(same)
        is_doomed = self.connection.row(LOCK_ARTIFACT, new.artifact) is not None
        if is_doomed and not self.connection.change(CANCEL_DELETION, new.artifact):
            raise ConcurrentModificationError("A source of this digest is being deleted: register the function again.")
        if (row := self.connection.row(NEXT_VERSION, namespace_id, name)) is None:
            raise ConcurrentModificationError(f"The function '{name}' was dropped just now: register it again.")
        object_id, version = row
        values = new.definition, new.manifest_digest, new.artifact, self._clock(), new.created_by, new.registrant
        self.connection.change(ADD_VERSION, object_id, version, *values, encode(dict(new.secret_ids)))
        return FunctionRecord(namespace_id, name, object_id, version, *values, new.secret_ids)

    @writes
    def replace_registrant(self, object_id: str, version: int, new: NewFunction) -> None:
        """Let a version stand on the rights of another registrant, who has named the secrets anew."""
        values = new.registrant, encode(dict(new.secret_ids)), new.created_by
        self.connection.change(REPLACE_REGISTRANT, *values, object_id, version)

    @reads
    def find_function(self, namespace_id: int, name: str, version: int | None) -> FunctionRecord | None:
        """Return a version of a function, the latest one for None; None if there is none."""
        row = self.connection.row(FIND, namespace_id, name, version)
        return FunctionRecord.of(row) if row else None

    @reads
    def find_pinned_function(self, object_id: str, version: int) -> FunctionRecord | None:
        """Return a version by the id of its function, whatever that is called now; None if it was dropped."""
        row = self.connection.row(PINNED, object_id, version)
        return FunctionRecord.of(row) if row else None

    @reads
    def list_functions(self, namespace_id: int, after: tuple[str, int] | None, limit: int) -> list[FunctionRecord]:
        """Return up to `limit` versions of a namespace's functions by (name, version), those after `after`."""
        return [FunctionRecord.of(row) for row in self.connection.rows(LIST, namespace_id, *(after or ("", 0)), limit)]

    @writes
    def drop_function(self, object_id: str, version: int | None, due_at: int) -> bool:
        """Drop a version, or all for None; sources that nothing else has are deleted from `due_at` on.

        Returns whether there was one.
        """
        artifacts = [row[0] for row in self.connection.rows(ARTIFACTS, object_id, version)]
        if version is None:
            dropped = self.connection.change(DROP_NAME, object_id)
        else:
            dropped = self.connection.change(DROP_VERSION, object_id, version)
            self.connection.change(DROP_EMPTY, object_id)
        for artifact in artifacts:
            if self.connection.row(IS_USED_ARTIFACT, artifact) is None:
                self.connection.change(SCHEDULE_DELETION, artifact, due_at)
        return dropped > 0

    @reads
    def function_uses(self, object_id: str, version: int | None, limit: int) -> list[FunctionUse]:
        """Return up to `limit` recorded uses of a version, or of all for None."""
        return [FunctionUse.of(row) for row in self.connection.rows(USES, object_id, version, limit)]

    @writes
    def add_function_use(self, object_id: str, use: FunctionUse) -> None:
        """Record that a version computes a column."""
        self.connection.change(ADD_USE, object_id, use.version, use.table_id, use.branch, use.column)

    @writes
    def remove_function_use(self, object_id: str, use: FunctionUse) -> None:
        """Forget a use."""
        self.connection.change(REMOVE_USE, object_id, use.version, use.table_id, use.branch, use.column)
