"""A server with authentication, and the keys of an administrator and of two other principals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.services.catalogs import prepare_catalog
from tests.services.server import SECRETS, ServerProcess
from tests.services.wire import Wire
from tiltyard.config import Settings
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.store import open_store, wall_clock


@dataclass(frozen=True)
class Secured:
    """The server, and who has which key: `administrator`, `ann` and `bob`."""

    server: ServerProcess
    keys: Mapping[str, str] = field(repr=False)  # pytest prints what a failed test was given

    @property
    def url(self) -> str:
        return self.server.url

    def http(self, name: str | None = None) -> httpx.Client:
        """HTTP with the key of one of them; of a stranger without a name."""
        headers = {"x-api-key": self.keys[name]} if name else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def wire(self, name: str | None = None) -> Wire:
        """Operations with the key of one of them."""
        wire = Wire(self.server.url)
        if name:
            wire.http.headers["x-api-key"] = self.keys[name]
        return wire


def make_keys(database_url: str, *names: str) -> dict[str, str]:
    """Keys made on the database, as `tiltyard key create` does; `administrator` is one."""
    prepare_catalog(database_url)
    with open_store(database_url) as store:
        return {
            name: create_key(store, wall_clock, name, NewKeyOptions(), administrator=name == "administrator").text
            for name in names
        }


def kept_lines(catalog: Path) -> list[str]:
    """All that a catalog in SQLite holds."""
    with closing(sqlite3.connect(catalog)) as connection:
        return list(connection.iterdump())


@contextmanager
def secured_server(
    root: Path | str,
    *flags: str,
    db: str = "",
    environ: Mapping[str, str] | None = None,
    names: Sequence[str] = ("ann", "bob"),
    forked: bool = True,
) -> Iterator[Secured]:
    """Run a server with --auth. Whatever was shown to it, its log and its catalog must have no secret of it."""
    keys = make_keys(Settings(root=str(root), db=db).database_url, "administrator", *names)
    server = ServerProcess(root, "--auth", *(("--db", db) if db else ()), *flags, environ=environ, forked=forked)
    try:
        yield Secured(server, keys)
    finally:
        server.stop()
        template_lines = [] if db else kept_lines(Path(root) / "catalog.db")
        assert [line for line in [*server.log, *template_lines] if SECRETS.search(line)] == []
