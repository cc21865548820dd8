"""A server with root and catalog on a disk that loses power, the client of a lake, and PostgreSQL beside or below."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.power.disk import Disk
from tests.power.postgres import PostgresOnDisk
from tests.power.strengths import Strength
from tests.services.forked_process import ForkedProcess
from tests.services.postgres import PostgresServer
from tests.services.server import Process, ServerProcess

GRACE_SECONDS = 0.3
"""How long calls may still be answered once the power is off: nothing can become durable any more."""


class Database(StrEnum):
    """Where the catalog is."""

    SQLITE = "sqlite"  # on the disk that loses power
    POSTGRES = "postgres"  # its data folder is on that disk
    POSTGRES_ELSEWHERE = "postgres elsewhere"  # a machine of its own, which keeps its power


class PowerLossError(Exception):
    """The power went off during a call: whether it has an effect is not known."""


class CallFailedError(Exception):
    """A call failed, though the power was on."""


class _Server(ServerProcess):
    """A server whose syncfs(2) reaches the disk that loses power: the kernel tells no file system in user space."""

    def _start_process(self) -> Process:
        arguments = ["serve", "--root", str(self.root), "--port", str(self._port), *self.flags]
        return ForkedProcess(arguments, self._environ, Path.cwd(), module="tests.power.syncing_tiltyard")


class LakeClient:
    """A client of the lake that is killed with the server."""

    def __init__(self, url: str, folder: Path) -> None:
        address = folder / "client"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(1)
            self._process = ForkedProcess(
                [url, str(address)], dict(os.environ), Path.cwd(), module="tests.power.client"
            )
            listener.settimeout(120)
            connection, _ = listener.accept()
            connection.settimeout(None)
        self._wire = connection.makefile("rw")
        connection.close()

    def call(self, name: str, **arguments: Any) -> None:
        """Run a command. Raises CallFailedError; ConnectionError once it is killed."""
        try:
            self._wire.write(json.dumps({"do": name, **arguments}) + "\n")
            self._wire.flush()
            line = self._wire.readline()
        except ValueError:  # it is closed
            line = ""
        if not line:
            raise ConnectionError("the client was killed")
        if error := json.loads(line):
            raise CallFailedError(error)

    def kill(self) -> None:
        """End it. Idempotent."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            stream.close()
        with suppress(OSError):
            self._wire.close()


class Installation:
    """Root, catalog and targets on one disk; everything that runs on it ends when its power does."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        postgres: PostgresServer | None = None,
        cluster: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`cluster` is a prepared one (`postgres.prepare_cluster`), where PostgreSQL is to be on the disk."""
        self.folder, self.database = folder, database
        self.disk = Disk(folder / "disk")
        self.root = folder / "disk" / "root"
        self._postgres, self._cluster, self._environ = postgres, cluster, environ
        self._on_disk: PostgresOnDisk | None = None
        self._url: str | None = None
        self._client: LakeClient | None = None
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Mount the disk, empty but for PostgreSQL's folder, and start the server."""
        self.disk.mount(self._cluster if self.database is Database.POSTGRES else None)
        if self.database is Database.POSTGRES:
            assert self._postgres is not None
            self._on_disk = PostgresOnDisk(self._postgres.binaries, self.disk.folder)
            self._on_disk.start()
            self._url = self._on_disk.url
        elif self.database is Database.POSTGRES_ELSEWHERE:
            assert self._postgres is not None
            self._url = self._postgres.new_catalog()
        self.server = self._start_server()
        self._watcher = threading.Thread(target=self._end_with_power, daemon=True)
        self._watcher.start()

    def _start_server(self) -> ServerProcess:
        _, _, *database = self.catalog_flags
        return _Server(
            self.root, "--sql-port", "off", *database, environ={"TILTYARD_UPKEEP": "true", **(self._environ or {})}
        )

    def _end_with_power(self) -> None:
        while not self.disk.is_cut:
            time.sleep(0.02)
        time.sleep(GRACE_SECONDS)
        self.end_processes()

    def end_processes(self) -> None:
        """Kill all that runs on the disk."""
        self.server.process.kill()
        self.server.process.wait()
        if self._client is not None:
            self._client.kill()
        if self._on_disk is not None:
            self._on_disk.kill()

    @property
    def catalog_flags(self) -> tuple[str, ...]:
        """The flags of commands that open the catalog themselves."""
        return ("--root", str(self.root), *(("--db", self._url) if self._url else ()))

    @property
    def client(self) -> LakeClient:
        """The client of the lake, started when it is first needed. Raises ConnectionError if the power is off."""
        if self.disk.is_cut:
            raise ConnectionError("the power is off")
        if self._client is None:
            self._client = LakeClient(self.server.url, self.folder)
        return self._client

    def lose_power(self) -> None:
        """Cut the power, if it is not off yet, and wait until nothing runs on the disk any more."""
        self.disk.cut()
        assert self._watcher is not None
        self._watcher.join()

    @contextmanager
    def restarted(self, image: Path) -> Iterator[ServerProcess]:
        """Run a server on what is left, which takes the disk's place. Raises RuntimeError if it does not start.

        A database elsewhere is as the power loss left it for each image: it is copied.
        """
        self.disk.folder.rmdir()
        image.rename(self.disk.folder)
        url, server = self._url, None
        try:
            if self._on_disk is not None:
                self._on_disk.start()
            elif self._url is not None:
                self._url = self._postgres.copy_database(self._url)
            server = self._start_server()
            yield server
        finally:
            if server is not None:
                server.process.kill()
                server.process.wait()
            if self._on_disk is not None:
                self._on_disk.kill()
            elif url is not None:
                self._postgres.drop_database(self._url)
                self._url = url
            shutil.rmtree(self.disk.folder)
            self.disk.folder.mkdir()

    def keep(self, strength: Strength, seed: str) -> Path:
        """Write what is left to a folder beside the disk."""
        return self.disk.keep(strength, seed, self.folder / f"left-{strength}")

    def close(self) -> None:
        """End everything."""
        if self._watcher is not None and self._watcher.is_alive():
            self.lose_power()
        if hasattr(self, "server"):
            self.end_processes()
        self.disk.unmount()
        if self.database is Database.POSTGRES_ELSEWHERE and self._url is not None:
            self._postgres.drop_database(self._url)
