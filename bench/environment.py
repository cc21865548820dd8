"""The shared environment of rows: the work folder, and servers that start when a row first uses them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tests.services.postgres import postgres_server

from bench import data, servers
from bench.embedded import Embedded
from bench.load import Load
from bench.servers import Server

TABLES = 1_000
MANY_TABLES = 100_000
ANSWER_ROWS = 960_000
"""Rows of 128 numbers, an id and a name: a little over 500 MB."""


OURS, THEIRS, SHARING, TRACKING = "tiltyard", "peer", "peer-session", "peer-tracking"
"""Tiltyard; RestAdapter as it comes; with one session that its requests share; with managed versions."""
PROCESSES = 2
"""Of Tiltyard, where its catalog is in PostgreSQL."""


class Placed(NamedTuple):
    """A server, and the folder of its tables."""

    server: Server
    root: Path


@dataclass
class Environment:
    """Everything a row needs; closing it stops all servers."""

    work: Path
    roots: Path
    rounds: int
    seconds: float
    workers: int
    stack: ExitStack = field(default_factory=ExitStack)

    def load(self, connections: int = 32) -> Load:
        """The load of a round."""
        return Load(connections, self.seconds)

    def _start(self, name: str, kind: str, tables: int, place: data.Id = data.in_namespace) -> Placed:
        root = self.roots / f"{name}-{kind}"
        root.mkdir(parents=True, exist_ok=True)
        log = self.roots / f"{name}-{kind}.log"
        if kind == OURS:
            server = servers.tiltyard(root, log, self.workers)
        else:
            server = servers.peer(root, log, session=kind == SHARING, tracking=kind == TRACKING)
        self.stack.callback(server.stop)
        data.fill_catalog(server.address, tables, 32 if tables > TABLES else 8, place)
        return Placed(server, root)

    @cached_property
    def catalog(self) -> list[Placed]:
        """Both servers, each with 1,000 tables in one namespace."""
        return [self._start("catalog", kind, TABLES) for kind in (OURS, THEIRS)]

    @cached_property
    def root_catalog(self) -> list[Placed]:
        """Both servers, each with 1,000 tables in the root."""
        return [self._start("root", kind, TABLES, data.in_root) for kind in (OURS, THEIRS)]

    @cached_property
    def many(self) -> Placed:
        """Tiltyard with 100,000 tables in one namespace."""
        return self._start("many", OURS, MANY_TABLES)

    @cached_property
    def vectors(self) -> list[Placed]:
        """Tiltyard, RestAdapter, and RestAdapter with a shared session, each with the indexed table as its 1,001st."""
        source = data.indexed_table(self.work)
        found = [self._start("vectors", kind, TABLES) for kind in (OURS, THEIRS, SHARING)]
        for server, root in found:
            data.register(source, root, data.VECTORS, server.address)
        return found

    @cached_property
    def large(self) -> list[Placed]:
        """Both servers, each with a table of more than 500 MB."""
        source = data.large_table(self.work, ANSWER_ROWS)
        found = [self._start("large", kind, 1) for kind in (OURS, THEIRS)]
        for server, root in found:
            data.register(source, root, data.LARGE, server.address)
        return found

    @cached_property
    def writing(self) -> list[Placed]:
        """Both servers, each with 1,000 tables, to write further ones."""
        return [self._start("writing", kind, TABLES) for kind in (OURS, THEIRS)]

    @cached_property
    def managing(self) -> list[Placed]:
        """Both servers with managed versions, then RestAdapter as it comes; without any tables."""
        return [self._start("managing", kind, 0) for kind in (OURS, TRACKING, THEIRS)]

    @cached_property
    def on_postgres(self) -> Placed:
        """Tiltyard in several processes, its catalog in PostgreSQL. Raises AssertionError if that is not installed."""
        database = self.stack.enter_context(postgres_server()).new_database(socket=True)
        root = self.roots / "postgres"
        root.mkdir()
        server = servers.tiltyard(root, self.roots / "postgres.log", PROCESSES, database)
        self.stack.callback(server.stop)
        data.fill_catalog(server.address, 0, 1)
        return Placed(server, root)

    @cached_property
    def embedded(self) -> Embedded:
        """pylance in one process with an open dataset."""
        process = Embedded()
        self.stack.callback(process.stop)
        return process

    def close(self) -> None:
        """Stop whatever was started."""
        self.stack.close()
