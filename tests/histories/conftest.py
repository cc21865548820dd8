"""The checker in Go, and servers of three kinds for it to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.conftest import objects, postgres
from tests.histories.history import build_checker, is_installed
from tests.services.ports import reserve_two_ports
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy
from tests.services.s3 import CREDENTIALS, S3Server
from tests.services.secured import make_keys
from tests.services.server import LOOPBACK, ServerProcess
from tests.services.skewed_clock import SkewedServer

__all__ = ["objects", "postgres"]

NEEDS_GO = pytest.mark.skipif(not is_installed(), reason="go is not installed, in which porcupine is written")
RUNNING = {"TILTYARD_REPEAT_LEASE": "2"}


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checker(tmp_path_factory.mktemp("checker"))


@dataclass(frozen=True, slots=True)
class Installed:
    """Servers of one catalog, who has which key, and what is in the way of the object store, if there is one.

    With `shares` they share out tables: two of them keep one, and others forward queries of it.
    """

    servers: Sequence[ServerProcess]
    keys: Mapping[str, str] = field(repr=False)
    storage: Proxy | None = None
    shares: bool = False


@pytest.fixture(params=["processes", "servers", "lossy S3"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installed]:
    """Run processes of one server on SQLite, three servers on PostgreSQL, or two there whose S3 loses answers."""
    with ExitStack() as stack:
        if request.param == "processes":
            db = f"sqlite:///{tmp_path / 'catalog.db'}"
            keys, flags = make_keys(db, "administrator", "ann"), ("--auth", "--db", db, "--workers", "2")
            server = ServerProcess(tmp_path / "root", *flags, environ=RUNNING)
            stack.callback(server.kill)
            stack.callback(print_errors, server)
            yield Installed([server], keys)
            return
        postgres: PostgresServer = request.getfixturevalue("postgres")
        db = postgres.new_database()
        stack.callback(postgres.drop_database, db)
        storage = stack.enter_context(_lossy_storage(request)) if request.param == "lossy S3" else None
        root, environ = (tmp_path / "root", RUNNING) if storage is None else (storage.root, storage.environ)
        keys, servers = make_keys(db, "administrator", "ann"), list[SkewedServer]()
        for _ in range(3 if storage is None else 2):
            port, _reserved = reserve_two_ports(LOOPBACK)
            url = {"TILTYARD_SERVER_URL": f"http://{LOOPBACK}:{port}"} if storage is None else {}
            flags = "--auth", "--db", db, "--port", str(port)
            servers.append(SkewedServer(0, root, *flags, environ={**environ, **url}))
            stack.callback(servers[-1].kill)
            stack.callback(print_errors, servers[-1])
        yield Installed(servers, keys, storage and storage.proxy, storage is None)


def print_errors(server: ServerProcess) -> None:
    """Print what a server has logged of errors that it did not expect: pytest shows it of a test that fails."""
    log = "".join(server.log)
    if "Traceback" in log:
        sys.stdout.write(log[log.index("Traceback") :])


@dataclass(frozen=True, slots=True)
class _LossyStorage:
    proxy: Proxy
    root: str
    environ: dict[str, str] = field(repr=False)


@contextmanager
def _lossy_storage(request: pytest.FixtureRequest) -> Iterator[_LossyStorage]:
    """Make a bucket behind a proxy, which servers and clients go through."""
    objects: S3Server = request.getfixturevalue("objects")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)  # clients that write files themselves bring their own
    with Proxy(objects.endpoint) as proxy:
        options = json.dumps({**objects.options, "aws_endpoint": proxy.url})
        yield _LossyStorage(
            proxy, f"{objects.new_bucket('histories')}/tables", {**RUNNING, "TILTYARD_STORAGE_OPTIONS": options}
        )
