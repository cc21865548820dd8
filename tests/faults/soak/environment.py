"""The systems under test: servers, their catalog, their storage, and faults in each of them."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Self

from tests.services.postgres import PostgresServer, postgres_server
from tests.services.proxy import Proxy
from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess, running_servers

SERVERS = 2
"""On SQLite, too: they share its file like the processes of `--workers`, but each can be killed."""


class Variant(StrEnum):
    """The kinds of database and storage of a run."""

    EMBEDDED = "embedded"  # SQLite and a local folder
    REPLICAS = "replicas"  # PostgreSQL and a local folder
    OBJECTS = "objects"  # PostgreSQL and an object store


@dataclass(slots=True)
class Environment:
    """The running systems; `options` open the storage without the server, on a connection that is never cut."""

    servers: Sequence[ServerProcess]
    postgres: PostgresServer | None = None
    proxy: Proxy | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def count(self, fault: str) -> None:
        """Count a fault."""
        self.faults[fault] = self.faults.get(fault, 0) + 1


@contextmanager
def start_environment(variant: Variant, folder: Path) -> Iterator[Environment]:
    """Start everything that a variant needs."""
    with ExitStack() as stack:
        if variant is Variant.EMBEDDED:
            yield Environment(stack.enter_context(running_servers(SERVERS, folder / "root")))
            return
        postgres = stack.enter_context(postgres_server())
        root, proxy = str(folder / "root"), None
        options: Mapping[str, str] = {}
        environ: dict[str, str] = {}
        if variant is Variant.OBJECTS:
            objects = stack.enter_context(s3_server())
            proxy = stack.enter_context(Proxy(objects.endpoint))
            root, options = f"{objects.new_bucket('history')}/tables", objects.options
            environ["TILTYARD_STORAGE_OPTIONS"] = json.dumps(S3Server(proxy.url).options)
        database = postgres.new_database()
        servers = stack.enter_context(running_servers(SERVERS, root, "--db", database, environ=environ))
        yield Environment(servers, postgres, proxy, options)


class FaultInjector:
    """Kill servers about every second, crash PostgreSQL, cut the connection to the object store."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self._environment = environment
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        faults = [partial(self._kill_servers, environment.servers)]
        faults += [partial(self._crash_postgres, environment.postgres)] if environment.postgres else []
        faults += [partial(self._cut_wire, environment.proxy)] if environment.proxy else []
        self._threads = [
            threading.Thread(target=self._run, args=(fault, random.Random(f"{seed} {number}")))
            for number, fault in enumerate(faults)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed and error[0] is None:
            raise self._failed[0]

    def _run(self, fault: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            fault(chance)
        except BaseException as error:  # noqa: BLE001  # raised when the injector is stopped
            self._failed.append(error)

    def _wait(self, chance: random.Random, seconds: float) -> bool:
        return not self._stop.wait(chance.uniform(0.5, 1.5) * seconds)

    def _kill_servers(self, servers: Sequence[ServerProcess], chance: random.Random) -> None:
        while self._wait(chance, 1):
            server = chance.choice(servers)
            server.kill()
            self._environment.count("kill")
            _restart(server)

    def _crash_postgres(self, postgres: PostgresServer, chance: random.Random) -> None:
        while self._wait(chance, 4):
            postgres.stop(chance.choice(["immediate", "fast"]))
            self._environment.count("crash of PostgreSQL")
            postgres.start()

    def _cut_wire(self, proxy: Proxy, chance: random.Random) -> None:
        while self._wait(chance, 2):
            proxy.cut()
            self._environment.count("cut")
            self._stop.wait(chance.uniform(0.02, 0.5))
            proxy.mend()


def _restart(server: ServerProcess, attempts: int = 20) -> None:
    """Start a server; start it again if its database or storage was unavailable."""
    for _ in range(attempts - 1):
        with suppress(RuntimeError):
            server.start()
            return
    server.start()
