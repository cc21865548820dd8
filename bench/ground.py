"""What rows share: the work folder, and servers that start when a row first asks for them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from bench import data, servers
from bench.embedded import Embedded
from bench.load import Load
from bench.servers import Server

TABLES = 1_000
MANY_TABLES = 100_000
ANSWER_ROWS = 960_000
"""Rows of 128 numbers, an id and a name: a little over 500 MB."""


class Pair(NamedTuple):
    """The two servers."""

    ours: Server
    theirs: Server


@dataclass
class Ground:
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

    def _start(self, name: str, *, ours: bool, session: bool = False) -> tuple[Server, Path]:
        root = self.roots / name
        root.mkdir(parents=True)
        log = self.roots / f"{name}.log"
        server = servers.tiltyard(root, log, self.workers) if ours else servers.peer(root, log, session=session)
        self.stack.callback(server.stop)
        return server, root

    @cached_property
    def catalog(self) -> Pair:
        """Both servers, each with 1,000 tables in one namespace."""
        return self._catalog("catalog", data.in_namespace)

    @cached_property
    def root_catalog(self) -> Pair:
        """Both servers, each with 1,000 tables in the root."""
        return self._catalog("root-catalog", data.in_root)

    def _catalog(self, name: str, place: data.Id) -> Pair:
        pair = Pair(self._start(name, ours=True)[0], self._start(f"{name}-peer", ours=False)[0])
        for server in pair:
            data.fill_catalog(server.address, TABLES, connections=8, place=place)
        return pair

    @cached_property
    def many(self) -> Server:
        """Tiltyard with 100,000 tables in one namespace."""
        server, _ = self._start("many", ours=True)
        data.fill_catalog(server.address, MANY_TABLES, connections=32)
        return server

    @cached_property
    def vectors(self) -> list[Server]:
        """Tiltyard, RestAdapter, and RestAdapter with a shared session, over the same indexed table."""
        source = data.indexed_table(self.work)
        found = []
        for name, ours, session in (("v", True, False), ("v-peer", False, False), ("v-peer-session", False, True)):
            server, root = self._start(name, ours=ours, session=session)
            data.register(source, root, data.VECTORS, server.address)
            found.append(server)
        return found

    @cached_property
    def writing(self) -> Pair:
        """Both servers, empty."""
        return Pair(self._start("writing", ours=True)[0], self._start("writing-peer", ours=False)[0])

    @cached_property
    def large(self) -> Pair:
        """Both servers over a table of more than 500 MB."""
        source = data.large_table(self.work, ANSWER_ROWS)
        found = []
        for name, ours in (("large", True), ("large-peer", False)):
            server, root = self._start(name, ours=ours)
            data.register(source, root, data.LARGE, server.address)
            found.append(server)
        return Pair(*found)

    @cached_property
    def embedded(self) -> Embedded:
        """pylance in one process with an open dataset."""
        process = Embedded()
        self.stack.callback(process.stop)
        return process

    def close(self) -> None:
        """Stop whatever was started."""
        self.stack.close()
