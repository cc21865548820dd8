"""What a block has changed so far, for its own reads and for the batch at its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from tiltyard.publishing.staged import Line

if TYPE_CHECKING:
    from tiltyard.publishing.staged import Table

Path: TypeAlias = tuple[str, ...]

COPIES = "_publishing-"
"""How the folder with a publication's copies begins, inside the folder of each table that it writes."""


def shown(path: Path) -> str:
    """A table's id, to be read."""
    return "$".join(path)


def fields_of(request: Any) -> dict[str, Any]:
    """A request as pylance hands it over, a model or like a mapping, without what is absent."""
    given = request.model_dump() if hasattr(request, "model_dump") else dict(request)
    return {name: value for name, value in given.items() if value is not None}


def path_of(request: Any) -> Path:
    """The id that a request names; empty for the root."""
    return tuple(fields_of(request).get("id") or ())


class Changes:
    """Tables and versions, under one lock; several threads write in a block."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.operations: list[upstream.CommitTableOperation] = []
        self.deregistered: dict[Path, Table] = {}
        self._copies = f"{COPIES}{uuid4().hex}"
        self._tables: dict[Path, Table] = {}
        self._lines: dict[tuple[Path, str | None], Line] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Take nothing more: what comes after is not in the batch."""
        with self._lock:
            self.is_open = False

    def check_open(self) -> None:
        """Raise InvalidInputError after the end of the block."""
        if not self.is_open:
            raise InvalidInputError("The block of this publication has ended: open another one to write.")

    def table(self, path: Path) -> Table | None:
        """A table as the block knows it; None if it does not. Raises TableNotFoundError if it deregistered it."""
        if path in self.deregistered:
            raise TableNotFoundError(f"{shown(path)} is deregistered in this block.")
        return self._tables.get(path)

    def declared(self, path: Path) -> Table | None:
        """A table that the block declares. Raises as `table` does."""
        found = self.table(path)
        return found if found is not None and found.declared else None

    def remember(self, table: Table) -> Table:
        """Keep what is known of a table; what was known before stands."""
        with self._lock:
            return self._tables.setdefault(table.path, table)

    def declare(self, table: Table) -> None:
        """Add a declaration to the batch. Raises TableAlreadyExistsError, also for a table that was there before."""
        request = upstream.DeclareTableRequest(
            id=list(table.path), location=table.location, properties=dict(table.properties)
        )
        with self._lock:
            self.check_open()
            if table.path in self._tables and self._tables[table.path].declared:
                raise TableAlreadyExistsError(f"{shown(table.path)} is declared in this block already.")
            if any(line.table.path == table.path for line in self._lines.values()):
                raise TableAlreadyExistsError(f"{shown(table.path)} was there when this block wrote it.")
            self._tables[table.path] = table
            self.operations.append(upstream.CommitTableOperation(declare_table=request))

    def deregister(self, table: Table) -> None:
        """Add a deregistration to the batch. Raises InvalidInputError for a table that the block writes."""
        request = upstream.DeregisterTableRequest(id=list(table.path))
        with self._lock:
            self.check_open()
            if table.declared or any(line.staged for line in self._lines.values() if line.table.path == table.path):
                raise InvalidInputError(f"{shown(table.path)} is written in this block: deregister it in another.")
            self.deregistered[table.path] = table
            self.operations.append(upstream.CommitTableOperation(deregister_table=request))

    def add(self, version: upstream.CreateTableVersionRequest) -> None:
        """Add a version to the batch."""
        with self._lock:
            self.check_open()
            self.operations.append(upstream.CommitTableOperation(create_table_version=version))

    def line(self, table: Table, branch: str | None) -> Line:
        """The versions of a branch, to be added to."""
        with self._lock:
            return self._lines.setdefault((table.path, branch), Line(table, branch, self._copies))

    def changed_line(self, path: Path, branch: str | None) -> Line | None:
        """The versions of a branch, if the block has added any."""
        found = self._lines.get((path, branch))
        return found if found is not None and found.staged else None

    def lines(self) -> list[Line]:
        """All branches that the block has written, or tried to."""
        with self._lock:
            return list(self._lines.values())

    def new_tables(self) -> list[Table]:
        """All tables that the block declares."""
        with self._lock:
            return [table for table in self._tables.values() if table.declared]

    def is_written(self, path: Path) -> bool:
        """Whether the block has added versions to a table."""
        return any(line.staged for line in self.lines() if line.table.path == path)

    def is_changed(self, path: Path) -> bool:
        """Whether the block has written a table, or declares it."""
        return self.is_written(path) or any(table.path == path for table in self.new_tables())
