"""A real PostgreSQL for tests: its own cluster in a temporary folder, gone with the session."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from tests.services.ports import reserve_port
from tiltyard.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = count(1)


def _find_binaries() -> Path:
    """Return the folder that holds `initdb` and `postgres`."""
    if program := shutil.which("initdb"):
        return Path(program).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    installed = [folder for folder in folders if (folder / "initdb").exists()]
    assert installed, "PostgreSQL's server is missing: run `make services`, or install the package postgresql"
    return installed[-1]


class PostgresServer:
    """A running server. It trusts everyone who reaches its loopback port."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        """Make the cluster and start it."""
        self.binaries, self.folder = binaries, folder
        self._template: str | None = None
        self.port, self._reserved = reserve_port()
        self._run("initdb", "-D", str(folder / "data"), "-U", "tilt", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        self.start()

    def start(self) -> None:
        """Start the server and return once it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-o", options, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server: `fast` cuts connections, `immediate` is a crash."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def new_database(self, *, socket: bool = False) -> str:
        """Create an empty database and return its URL: by TCP, or by the server's socket."""
        name = self._create_database("template1")
        return f"postgresql://tilt@/{name}?host={self.folder}&port={self.port}" if socket else self._url(name)

    def new_catalog(self) -> str:
        """Create a catalog with the schema of this code and return its URL: a copy, which is made in a third of the
        time.
        """
        if self._template is None:
            self._template = self._create_database("template1")
            open_store(self._url(self._template)).close()
        return self._url(self._create_database(self._template))

    def copy_database(self, url: str) -> str:
        """Copy a database that nobody uses; return the copy's URL."""
        return self._url(self._create_database(urlsplit(url).path.lstrip("/")))

    def drop_database(self, url: str) -> None:
        """Drop a database that `new_database` made, even if it is in use."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{urlsplit(url).path.lstrip("/")}" WITH (FORCE)')

    def _create_database(self, template: str) -> str:
        name = f"test_{os.getpid()}_{next(NUMBERS)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def _url(self, name: str) -> str:
        return f"postgresql://tilt@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_someone(), str(self.binaries / program), *arguments]
        with tempfile.TemporaryFile() as output:  # not a pipe: the server would keep it open
            done = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False, timeout=120)
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")


def create_database_beside(url: str) -> str:
    """Create an empty database on the server of another one; return its URL."""
    name = f"test_{os.getpid()}_{next(NUMBERS)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextmanager
def postgres_server(binaries: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server in a temporary folder, by the programs of a folder. Fails where PostgreSQL is not installed."""
    binaries = binaries or _find_binaries()
    folder = Path(tempfile.mkdtemp(prefix="tilt-pg-"))  # short: a socket's path must fit in 107 bytes
    if os.geteuid() == 0:
        shutil.chown(folder, _someone())
    try:
        server = PostgresServer(binaries, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _someone() -> str:
    """Return a user that is not root, as whom PostgreSQL refuses to run."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _as_someone() -> list[str]:
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv"):
        return ["setpriv", f"--reuid={_someone()}", "--clear-groups", "--"]
    return ["runuser", "-u", _someone(), "--"]
