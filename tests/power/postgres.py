"""PostgreSQL with its data folder on a disk that loses power."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from tests.services.ports import reserve_port
from tests.services.postgres import PostgresServer, _as_someone
from tiltyard.store import open_store

FOLDER = "postgres"


def prepare_cluster(server: PostgresServer, target: Path) -> Path:
    """Stop a server, and copy its data folder to `target/postgres`, with a database `catalog` that has our schema."""
    url = f"postgresql://tilt@127.0.0.1:{server.port}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE catalog")
    open_store(f"{url}/catalog").close()
    server.stop("fast")
    target.mkdir()
    subprocess.run(["cp", "-a", str(server.folder / "data"), str(target / FOLDER)], check=True)
    server.start()
    return target


class PostgresOnDisk:
    """The server of such a cluster; it starts, recovers, and is killed."""

    def __init__(self, binaries: Path, disk: Path) -> None:
        self._binaries, self._data = binaries, disk / FOLDER
        self._port, self._reserved = reserve_port()
        self.url = f"postgresql://tilt@127.0.0.1:{self._port}/catalog"
        self._log = disk.parent / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 60) -> None:
        """Start, and wait until it answers. Raises RuntimeError."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_wal_size": "64MB",
            "autovacuum": "off",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self._port), *flags]
            self._process = subprocess.Popen([*_as_someone(), *command], stdout=log, stderr=log, cwd="/")
        until = time.monotonic() + seconds
        while True:
            with suppress(psycopg.OperationalError), psycopg.connect(self.url):
                return
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it with all its processes, which are in sessions of their own."""
        if self._process is None:
            return
        with suppress(FileNotFoundError):
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            self._process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        self._process.wait()
        self._process = None
