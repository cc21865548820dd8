"""A server that keeps an audit, and ways to read it."""

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


def eventually(condition: Callable[[], Any]) -> Any:
    """Return what `condition` returns, once that is true."""
    deadline = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
    return result


def recorded(server: ServerProcess, **criteria: Any) -> list[AuditRecord]:
    """Return the audit records, oldest first, read from the database and not through the server."""
    with open_store(f"sqlite:///{server.root}/catalog.db") as store:
        return store.list_audit(AuditFilter(**criteria), None, 1000)[::-1]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with authentication that records all requests."""
    root = tmp_path_factory.mktemp("audited")
    environ = {"TILTYARD_AUDIT": "all", "TILTYARD_AUDIT_LINES": str(root / "audit.jsonl")}
    with secured_server(root, environ=environ) as secured:
        yield secured


@pytest.fixture
def lines(audited: Secured) -> Path:
    return Path(audited.server.root) / "audit.jsonl"
