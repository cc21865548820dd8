"""Metrics, as Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.audit.conftest import eventually
from tests.services.secured import secured_server
from tests.services.server import ServerProcess
from tiltyard.runtime.system_memory import read_system_memory
from tiltyard.server.memory import VECTORS_SHARE

if TYPE_CHECKING:
    from pathlib import Path

FROM_AFAR = {"x-forwarded-for": "203.0.113.9"}


UNITS = ("load", "bytes", "events_total")
PAST = ("lost", "searches of", "reads of")
"""Words of what is counted since the start."""


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_requests_by_operation_and_status(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(3):
            client.post("/v1/namespace/a/create", json={})
        client.get("/nowhere")
        response = client.get("/metrics")
    assert server.stop() == 0
    counts = samples(response.text)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert counts["tiltyard_requests_total", "CreateNamespace", "200"] == 1
    assert counts["tiltyard_requests_total", "CreateNamespace", "409"] == 2
    assert counts["tiltyard_requests_total", "none", "404"] == 1
    for histogram in ("tiltyard_request_seconds", "tiltyard_request_first_byte_seconds"):
        assert counts[f"{histogram}_count", "CreateNamespace", "2xx"] == 1
        assert counts[f"{histogram}_count", "CreateNamespace", "4xx"] == 2
    assert counts["tiltyard_requests_running",] == 1
    assert counts["tiltyard_catalog_up",] == 1
    loads = {unit: {key[2] for key in counts if key[0] == f"tiltyard_process_{unit}"} for unit in UNITS}
    assert loads["load"] >= {
        "queries waiting for a thread",
        "identity waiting for a thread",
        "catalog writes waiting",
        "audit records waiting",
        "queries running",
    }
    assert loads["bytes"] >= {f"bytes of {what}" for what in ("rows in memory", "vectors in memory", "tables on disk")}
    assert {"bytes of Lance's pages in memory", "bytes of memory that the allocator has given out"} <= loads["bytes"]
    assert loads["events_total"] >= {"audit records lost", "searches of vectors in memory", "reads of tables on disk"}
    for unit, names in loads.items():
        assert all(("bytes" in name) == (unit == "bytes") for name in names), names
        assert all(any(word in name for word in PAST) == (unit == "events_total") for name in names), names


def test_metrics_of_several_processes_are_summed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--workers", "2")
    try:

        def spread() -> set[str]:
            """Processes that have answered: each connection finds one of them."""
            texts = [httpx.get(f"{server.url}/metrics", timeout=60).text for _ in range(10)]
            return {key[1] for text in texts for key in samples(text) if key[0] == "tiltyard_process_load"}

        eventually(lambda: len(spread()) == 2)
        before = samples(httpx.get(f"{server.url}/metrics", timeout=60).text)
        for _ in range(20):
            assert httpx.get(f"{server.url}/v1/namespace/%24/list", timeout=60).status_code == 200
        key = ("tiltyard_requests_total", "ListNamespaces", "200")

        def counted() -> tuple[float, float]:
            """Return the requests counted since, and those running: one counts once its response is sent."""
            after = samples(httpx.get(f"{server.url}/metrics", timeout=60).text)
            return after[key] - before.get(key, 0), after["tiltyard_requests_running",]

        eventually(lambda: counted() == (20, 1))
        bounds = [value for name, value in before.items() if {"vectors in memory", "bound"} <= set(name)]
        memory = read_system_memory()
        assert memory is not None
        assert bounds == [int(VECTORS_SHARE * memory.total) // 2] * 2
    finally:
        assert server.stop() == 0


def test_metrics_from_afar_are_for_administrators(tmp_path: Path) -> None:
    with secured_server(tmp_path) as secured:
        with secured.http() as anonymous:
            assert anonymous.get("/metrics").status_code == 200
            assert anonymous.get("/metrics", headers=FROM_AFAR).status_code == 401
            assert anonymous.post("/metrics").status_code == 405
        with secured.http("ann") as ann:
            refused = ann.get("/metrics", headers=FROM_AFAR)
            assert (refused.status_code, refused.json()["code"]) == (403, 15)
        with secured.http("administrator") as admin:
            assert "tiltyard_requests_total" in admin.get("/metrics", headers=FROM_AFAR).text
