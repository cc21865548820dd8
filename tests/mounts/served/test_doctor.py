"""CheckMount over every backend: what is sound, and what has no data, is told apart at all levels of namespaces."""

from __future__ import annotations

from typing import Any

from tests.mounts.backends import Backend, new_name
from tests.mounts.served.conftest import MOUNT
from tests.mounts.served.test_clients import vectors
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check, stream
from tiltyard.model.ids import Id


def check_mount(wire: Wire) -> list[dict[str, Any]]:
    """Return all pages of CheckMount."""
    pages: list[dict[str, Any]] = []
    token = None
    while not pages or token:
        body = {"page_token": token} if token else {}
        pages.append(check(wire.http.post(f"/tiltyard/v1/mount/{MOUNT}/check", json=body)).json())
        token = pages[-1].get("page_token")
    return pages


def test_doctor_counts_what_is_there_and_finds_what_has_no_data(
    server: ServerProcess, home: Id, wire: Wire, backend: Backend
) -> None:
    before = check_mount(wire)
    sound, declared = Id((*home, new_name("t"))), Id((*home, new_name("t")))
    assert wire.call("table", sound, "create", stream(vectors(0, 3))).status_code == 200
    assert wire.call("table", declared, "declare").status_code == 200
    after = check_mount(wire)
    assert all(page["reachable"] for page in (*before, *after))
    counts = [sum(page["tables"] for page in pages) for pages in (before, after)]
    assert counts[1] - counts[0] == 2
    assert sum(page["namespaces"] for page in after) >= len(home) - 1
    findings = {tuple(finding["id"]): finding["problem"] for page in after for finding in page["findings"]}
    assert sound not in findings
    assert findings[declared].startswith("There is no Lance table in its folder")
