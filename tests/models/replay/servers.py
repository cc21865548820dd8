"""Servers of a stage: real services on one catalog and one folder, with gates in their calls of both."""

from __future__ import annotations

import dataclasses
import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import lance

from tests.models.replay.actors import Gated, Seat, Seats
from tests.models.replay.stage import Stage
from tests.tables.served import Server
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.tables.opening import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from tests.models.replay.actors import Gate
    from tiltyard.store import TableRecord, VersionRecord

NO_GATES: Mapping[str, Gate] = {}


class ServerStage(Stage):
    """A stage with a server for each process of the model that is one; `outside` is a context that nobody watches."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__()
        self._root = root
        self._settings = {"managed_versioning": True, "conflict_timeout": 60.0} | settings
        self._found = Seats(self.seats)
        self._servers = list[Server]()
        self.patched = ExitStack()
        self.outside = self._start().ctx

    def open_server(
        self, who: int, store: Mapping[str, Gate] = NO_GATES, manifests: Mapping[str, Gate] = NO_GATES
    ) -> None:
        """Start the server of a process; calls of its store and of its manifests by these names are gates."""
        services, seat = self._start().services, Seat()
        services.storage.locks._folder = self._root / f"locks-{who}"  # as on a machine of its own
        services.storage.manifests = Gated(services.storage.manifests, seat, manifests)
        seat.services = dataclasses.replace(services, store=Gated(services.store, seat, store))
        self.seats[who] = seat

    def replace(self, module: object, name: str, gate: Gate) -> None:
        """Make a function whose first argument is a context a gate, as a module calls it."""
        function = self._found.gated(gate, getattr(module, name))
        self.patched.enter_context(patch.object(module, name, function))

    def ctx(self, who: int) -> Context:
        """Return a context of a process's server."""
        return Context(self.seats[who].services, "replay")

    def new_table(self, rows: pa.Table | None = None) -> TableRecord:
        """Return a new table that is managed; it has no files without `rows`, which are of its first version."""
        name = f"t{uuid4().hex}"
        location = self.outside.storage.new_location(Id((name,)))
        if rows is not None:
            base = self._root / "base"
            if not base.exists():
                lance.write_dataset(rows, base)
            shutil.copytree(base, location, copy_function=os.link)
        return self.outside.store.insert_table((name,), location, {}, managed=True)

    def versions(self, table: TableRecord) -> list[VersionRecord]:
        """Return the versions of a table that the catalog has."""
        return self.outside.store.list_versions(table.id, "", None, 100)

    def note_step(self, who: int) -> None:
        """Mark what a server has finalized, which it does in the background."""
        if who in self.seats:
            self.seats[who].services.commit_log.flush()

    def change(self, statement: str, *values: object) -> int:
        """Change the catalog as nobody but time and a database do; return how many rows were."""
        database = self.outside.store._database
        return database.write(lambda connection: connection.change(statement, *values))

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of the catalog."""
        database = self.outside.store._database
        return list(database.write(lambda connection: connection.rows(query, *values)))

    def open(self, table: TableRecord) -> lance.LanceDataset:
        """Return the latest version of a table, as a reader opens it."""
        return open_for_reading(self.outside, [table.name]).dataset

    def close(self) -> None:
        self.patched.close()
        for server in self._servers:
            server.services.close()

    def _start(self) -> Server:
        server = Server(self._root / "root", **self._settings)
        self._servers.append(server)
        return server
