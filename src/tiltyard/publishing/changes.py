"""What a block has changed so far, for its own reads and for the batch at its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from tiltyard.publishing.staged import StagedBranch

if TYPE_CHECKING:
    from tiltyard.publishing.staged import PublishedTable

Path: TypeAlias = tuple[str, ...]

COPIES_PREFIX = "_publishing-"
"""Prefix of the folder with a publication's copies of manifests, inside the folder of each table that it writes."""


def display_id(path: Path) -> str:
    """Format a table's id for messages."""
    return "$".join(path)


def fields_of(request: Any) -> dict[str, Any]:
    """Return the fields of a request as pylance passes it, a model or a mapping, without those that are absent."""
    fields = request.model_dump() if hasattr(request, "model_dump") else dict(request)
    return {name: value for name, value in fields.items() if value is not None}


def path_of(request: Any) -> Path:
    """Return the id in a request; empty for the root."""
    return tuple(fields_of(request).get("id") or ())


class Changes:
    """The tables and versions of a block, under one lock: several threads may write in it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.operations: list[upstream.CommitTableOperation] = []
        self.deregistered: dict[Path, PublishedTable] = {}
        self._copies_folder = f"{COPIES_PREFIX}{uuid4().hex}"
        self._tables: dict[Path, PublishedTable] = {}
        self._branches: dict[tuple[Path, str | None], StagedBranch] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Accept no more changes: later ones would not be in the batch."""
        with self._lock:
            self.is_open = False

    def check_open(self) -> None:
        """Raise InvalidInputError after the end of the block."""
        if not self.is_open:
            raise InvalidInputError("The block of this publication has ended: open another one to write.")

    def table(self, path: Path) -> PublishedTable | None:
        """Return a table that the block has used; None for others. Raises TableNotFoundError for a deregistered one."""
        if path in self.deregistered:
            raise TableNotFoundError(f"{display_id(path)} is deregistered in this block.")
        return self._tables.get(path)

    def declared_table(self, path: Path) -> PublishedTable | None:
        """Return a table that the block declares. Raises as `table` does."""
        table = self.table(path)
        return table if table is not None and table.declared else None

    def remember(self, table: PublishedTable) -> PublishedTable:
        """Add a table that the client described, unless it is known; return the known one."""
        with self._lock:
            return self._tables.setdefault(table.path, table)

    def declare(self, table: PublishedTable) -> None:
        """Add a declaration to the batch. Raises TableAlreadyExistsError, also for a table that existed before."""
        request = upstream.DeclareTableRequest(
            id=list(table.path), location=table.location, properties=dict(table.properties)
        )
        with self._lock:
            self.check_open()
            if table.path in self._tables and self._tables[table.path].declared:
                raise TableAlreadyExistsError(f"{display_id(table.path)} is declared in this block already.")
            if any(branch.table.path == table.path for branch in self._branches.values()):
                raise TableAlreadyExistsError(f"{display_id(table.path)} was there when this block wrote it.")
            self._tables[table.path] = table
            self.operations.append(upstream.CommitTableOperation(declare_table=request))

    def deregister(self, table: PublishedTable) -> None:
        """Add a deregistration to the batch. Raises InvalidInputError for a table that the block writes."""
        request = upstream.DeregisterTableRequest(id=list(table.path))
        with self._lock:
            self.check_open()
            branches = [branch for branch in self._branches.values() if branch.table.path == table.path]
            if table.declared or any(branch.versions for branch in branches):
                raise InvalidInputError(f"{display_id(table.path)} is written in this block: deregister it in another.")
            self.deregistered[table.path] = table
            self.operations.append(upstream.CommitTableOperation(deregister_table=request))

    def add_version(self, version: upstream.CreateTableVersionRequest) -> None:
        """Add a version to the batch."""
        with self._lock:
            self.check_open()
            self.operations.append(upstream.CommitTableOperation(create_table_version=version))

    def branch(self, table: PublishedTable, name: str | None) -> StagedBranch:
        """Return the staged versions of a branch, to add to them."""
        with self._lock:
            return self._branches.setdefault((table.path, name), StagedBranch(table, name, self._copies_folder))

    def changed_branch(self, path: Path, name: str | None) -> StagedBranch | None:
        """Return the staged versions of a branch; None if the block has added none."""
        branch = self._branches.get((path, name))
        return branch if branch is not None and branch.versions else None

    def branches(self) -> list[StagedBranch]:
        """Return all branches that the block has written, or tried to."""
        with self._lock:
            return list(self._branches.values())

    def new_tables(self) -> list[PublishedTable]:
        """Return all tables that the block declares."""
        with self._lock:
            return [table for table in self._tables.values() if table.declared]

    def is_written(self, path: Path) -> bool:
        """Whether the block has added versions to a table."""
        return any(branch.versions for branch in self.branches() if branch.table.path == path)

    def is_changed(self, path: Path) -> bool:
        """Whether the block has written a table, or declares it."""
        return self.is_written(path) or any(table.path == path for table in self.new_tables())
