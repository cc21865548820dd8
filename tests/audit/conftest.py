"""Servers that keep an audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess
from tiltyard.store import AuditFilter, AuditRecord, open_store

SECONDS = 90


def eventually(look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
    return found


def recorded(server: ServerProcess, **wanted: Any) -> list[AuditRecord]:
    """The records there are, oldest first, read behind the server's back."""
    with open_store(f"sqlite:///{server.root}/catalog.db") as store:
        return store.list_audit(AuditFilter(**wanted), None, 1000)[::-1]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server that asks who you are, and records all that is asked."""
    root = tmp_path_factory.mktemp("audited")
    environ = {"TILTYARD_AUDIT": "all", "TILTYARD_AUDIT_LINES": str(root / "audit.jsonl")}
    with secured_server(root, environ=environ) as secured:
        yield secured


@pytest.fixture
def lines(audited: Secured) -> Path:
    return Path(audited.server.root) / "audit.jsonl"
