"""The server's page: its figures and who may read them, storage by namespace, and garbage that a job counts."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import httpx
import pytest

from tests.console.test_sign_in import PATIENCE_SECONDS
from tests.console.test_versions import words
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.api.metrics_history import Sample
from tiltyard.console.monitor.server import make_charts
from tiltyard.console.monitor.storage import MAX_PARTS, MapArea, Measured, make_boxes, make_parts
from tiltyard.model.ids import Id
from tiltyard.store import ProcessRecord, open_store, wall_clock
from tiltyard.store.processes import ALIVE_MS

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
FRAGMENT = {"hx-request": "true"}
REQUESTS = 200
"""More than other tests send to the server: the page lists the operations with the most requests alone."""


def test_figures_are_those_that_were_counted(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        for _ in range(REQUESTS):
            wire.good(wire.namespace(["cinema"], "describe"))
    text = words(http.get("/server"))
    assert re.search(r"Processes 1 of this server", text) and re.search(r"Memory [\d.,]+ MiB", text)
    described = re.search(r"DescribeNamespace ([\d,]+) 0 [\d.]+ ms", text)
    assert described is not None and int(described[1].replace(",", "")) >= REQUESTS
    part = http.get("/server", headers=FRAGMENT).text
    assert "Operations since the start" in part and "<html" not in part


def test_servers_and_workers_of_other_machines_are_listed_by_their_heartbeats(
    http: httpx.Client, server: ServerProcess
) -> None:
    now = wall_clock()
    idle = ProcessRecord("1", "worker", "far-away", 42, "9.8.7", 4, 1, 0, started_at=now, seen_at=now)
    killed = ProcessRecord("2", "server", "<b>gone", 43, "9.8.7", 0, 0, 0, now - 3_600_000, now - ALIVE_MS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with open_store(f"sqlite:///{server.root}/catalog.db") as store:
        while not store.list_processes():
            assert time.monotonic() < deadline, "the server has sent no heartbeat"
            time.sleep(0.05)
        for process in (killed, idle):
            store.record_process(process)
        page = http.get("/server")
        for process in (killed, idle):
            store.delete_process(process.id)
    text = words(page)
    assert "far-away worker 42 9.8.7 idle 0 of 5 just now just now" in text
    assert re.search("gone server 43 9.8.7 silent . 1 hour ago 1 minute ago", text) and "<b>gone" not in page.text
    assert re.search(rf"server this one {server.process.pid} \S+ (idle|busy) \d of \d", text), text


def test_storage_is_measured_by_namespace(http: httpx.Client) -> None:
    text = http.get("/server/storage", headers=FRAGMENT).text
    assert 'class="treemap"' in text and 'href="/console/namespace/media"' in text and " style=" not in text
    assert re.search(r"media: [\d.]+ [KM]iB, 2 tables", text) and "no time for the others" not in text


def test_garbage_is_counted_in_a_job(http: httpx.Client) -> None:
    page = http.get("/server")
    token = CSRF.search(page.text)
    assert token is not None
    assert http.post("/server", data={"action": "count"}).status_code == 403
    assert http.post("/server", data={"action": "explode", "csrf": token[1]}).status_code == 400
    queued = http.post("/server", data={"action": "count", "csrf": token[1]})
    assert queued.status_code == 303 and queued.headers["location"].startswith("/console/job?id=")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not re.search(r"bytes in \d+ files? of \d+ tables", text := words(http.get("/server"))):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def measured(sizes: dict[Id, int]) -> Measured:
    return Measured(defaultdict(int, sizes), defaultdict(int, dict.fromkeys(sizes, 1)))


@pytest.mark.parametrize("sizes", [[7], [5, 5], [9, 4, 4, 1, 0], [1 << 50, 1], list(range(40, 0, -1))])
def test_boxes_of_the_treemap_fill_it_by_share_and_do_not_overlap(sizes: list[int]) -> None:
    parts = make_parts(measured({Id((f"n{number}",)): size for number, size in enumerate(sizes)}))
    assert len(parts) <= MAX_PARTS and sum(part.size for part in parts) == sum(sizes)
    boxes = make_boxes(parts, 960, 300)
    assert len(boxes) == sum(part.size > 0 for part in parts)
    for box in boxes:
        assert box.width * box.height == pytest.approx(960 * 300 * box.part.size / sum(sizes), rel=1e-6, abs=1e-6)
        assert box.x >= -1e-6 and box.x + box.width <= 960 + 1e-6 and box.y + box.height <= 300 + 1e-6
    for one in boxes:
        for other in boxes:
            if one is not other:
                apart_x = one.x + one.width <= other.x + 1e-6 or other.x + other.width <= one.x + 1e-6
                assert apart_x or one.y + one.height <= other.y + 1e-6 or other.y + other.height <= one.y + 1e-6


def test_treemap_without_tables_has_no_boxes() -> None:
    assert make_boxes([MapArea(Id(("a",)), 0, 1)], 960, 300) == [] == make_parts(measured({}))


def test_charts_have_a_point_a_sample_and_gaps_without_requests() -> None:
    samples = [
        Sample(1000.0, 1 / 3, 0.0, 0.0012345, 0.5, 1, 2.0, 1 << 20, 1),
        Sample(1030.0, 0, 0, None, None, 0, 0, 5, 1),
    ]
    requests, times, work, memory = make_charts(samples)
    assert requests["x"] == [1000, 1030] and requests["series"][0]["values"] == [0.3333, 0]
    assert times["series"][0] == {"label": "p50", "values": [1.234, None]} and times["peak"] == 500
    assert work["peak"] == 2 and memory["series"][0]["values"] == [1 << 20, 5]
    assert make_charts([])[0]["peak"] is None
