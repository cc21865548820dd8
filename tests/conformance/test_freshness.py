"""Clients of lancedb read their own writes, and no older state than before, from whichever server answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from tests.services.postgres import postgres_server
from tests.services.server import running_servers

Fresh = Callable[[str], str]
QUERY = {"vector": [], "k": 10}


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    return remote.create_table(fresh("t"), pa.table({"id": [1, 2, 3]}))


CALLS = [
    ("count_rows", {}),
    ("query", QUERY),
    ("describe", {}),
    ("stats", {}),
    ("index/list", {}),
    ("explain_plan", QUERY),
]


@pytest.mark.parametrize(("action", "body"), CALLS, ids=[action for action, _ in CALLS])
def test_older_state_is_never_the_answer(raw: Any, table: Any, action: str, body: dict[str, Any]) -> None:
    path = f"/v1/table/{table.name}/{action}/"
    for name, value in (("min-version", "1"), ("min-read-version", "1"), ("min-timestamp", later(0))):
        assert raw.post(path, body, headers={f"x-lancedb-{name}": value}).status_code == 200
    started = time.monotonic()
    stale = raw.post(path, body, headers={"x-lancedb-min-version": "2"})
    assert (stale.status_code, stale.json()["code"], stale.headers["retry-after"]) == (503, 17, "1")
    assert "version 2 is asked for" in stale.json()["error"]
    assert 1 < time.monotonic() - started < 30


def test_state_that_comes_in_time_is_waited_for(raw: Any, table: Any) -> None:
    with ThreadPoolExecutor() as pool:
        headers = {"x-lancedb-min-read-version": "2"}
        waiting = pool.submit(raw.post, f"/v1/table/{table.name}/count_rows/", {}, headers=headers)
        time.sleep(0.3)
        table.add(pa.table({"id": [4]}))
        response = waiting.result()
    assert (response.status_code, response.json()) == (200, 4)


def test_time_ahead_of_the_clock_is_waited_for_and_not_for_long(raw: Any, table: Any) -> None:
    path = f"/v1/table/{table.name}/count_rows/"
    assert raw.post(path, headers={"x-lancedb-min-timestamp": later(0.5)}).status_code == 200
    ahead = raw.post(path, headers={"x-lancedb-min-timestamp": later(3600)})
    assert (ahead.status_code, ahead.headers["retry-after"]) == (503, "1")
    assert "ahead of this server's clock" in ahead.json()["error"]


@pytest.mark.parametrize("header", ["min-version", "min-read-version", "min-timestamp"])
def test_malformed_headers_are_400(raw: Any, table: Any, header: str) -> None:
    response = raw.post(f"/v1/table/{table.name}/count_rows/", headers={f"x-lancedb-{header}": "soon"})
    assert (response.status_code, response.json()["code"]) == (400, 13)


def test_pinned_version_is_read_whatever_was_written_since(raw: Any, table: Any) -> None:
    headers = {"x-lancedb-min-version": "99"}
    response = raw.post(f"/v1/table/{table.name}/count_rows/", {"version": 1}, headers=headers)
    assert (response.status_code, response.json()) == (200, 3)


def check_replicas(root: Path, *flags: str) -> None:
    """Let one client write on one server, and read on another at once; each read has all writes of before."""
    with running_servers(2, root, *flags) as servers:
        writer, reader = (
            lancedb.connect("db://x", api_key="none", host_override=server.url, read_consistency_interval=timedelta(0))
            for server in servers
        )
        written = writer.create_table("t", pa.table({"id": [0]}))
        other = reader.open_table("t")
        for number in range(1, 20):
            version = written.add(pa.table({"id": [number]})).version
            assert (other.count_rows(), other.version) == (number + 1, version)
            assert other.search().where(f"id = {number}").limit(1).to_list() == [{"id": number}]


def test_replica_reads_what_another_has_written(tmp_path: Path) -> None:
    check_replicas(tmp_path)


@pytest.mark.extended
def test_replica_on_postgresql_reads_what_another_has_written(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        check_replicas(tmp_path, "--db", postgres.new_database())
