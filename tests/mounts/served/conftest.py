"""A server with one catalog mounted as the namespace `theirs`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts.backends import Backend, new_name
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

MOUNT = "theirs"
FAST = frozenset(("dir-manifest", "tiltyard"))
"""Backends over which `make test` runs what all of them do through a server; each needs a server of its own there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests over further backends as extended."""
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
        if "mounts/served" in item.nodeid and isinstance(backend, str) and backend not in FAST:
            item.add_marker(pytest.mark.extended)


def mount_settings(backend: Backend, allowed: Path, max_age: float = 1.0) -> dict[str, object]:
    """Return a table of the server's settings for a backend."""
    root = str(backend.settings.get("root", ""))
    locations = [] if root.startswith("s3:") else [backend.bucket or str(allowed)]
    return {"kind": backend.kind, "max_age": max_age, "allowed_locations": locations, **backend.settings}


def environ(backend: Backend, allowed: Path, max_age: float = 1.0) -> dict[str, str]:
    """Return the environment of a server that mounts a backend."""
    mounts = {MOUNT: mount_settings(backend, allowed, max_age)}
    return {
        "TILTYARD_MOUNTS": json.dumps(mounts),
        "TILTYARD_STORAGE_OPTIONS": json.dumps(dict(backend.storage_options)),
    }


@pytest.fixture
def server(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    """A server that mounts the backend; clients in this process open tables themselves, with credentials of its own."""
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        if name in backend.storage_options:
            monkeypatch.setenv(name.upper(), backend.storage_options[name])
    root = tmp_path_factory.mktemp("served")
    server = ServerProcess(root, "--retention-days", "0", environ=environ(backend, tmp_path_factory.getbasetemp()))
    yield server
    server.stop()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """Plain requests to it."""
    with Wire(server.url) as wire:
        yield wire


@pytest.fixture
def home(wire: Wire, catalog: MountedCatalog) -> Id:
    """A namespace below the mount that can have tables, made through the server."""
    path = Id((MOUNT,))
    for _ in range(1 if catalog.levels is None else catalog.levels):
        path = Id((*path, new_name("ns")))
        assert wire.call("namespace", path, "create").status_code == 200
    return path
