"""Outages of a database or a disk: 503 with code 17 meanwhile, and no restart needed afterwards."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.faults.conftest import ROWS, Installation, wait_until
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream

Talk = Callable[[ServerProcess], Wire]


MAX_LINES = 6
"""A stopped database fails for several causes, one after the other: each is logged once a minute."""


def logged_failures(server: ServerProcess, system: str) -> list[str]:
    """Return the log lines about outages of a system."""
    return [line for line in server.log if system in line and " fails: " in line]


def check_unavailable(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    assert check_error(response) == 17


@pytest.mark.extended
def test_database_away_is_503_and_comes_back(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        installation = Installation(tmp_path / "root", postgres.new_database())
        try:
            _lose_the_database(installation, postgres)
        finally:
            installation.close()


def _lose_the_database(installation: Installation, postgres: PostgresServer) -> None:
    server = installation.start()
    http = httpx.Client(base_url=server.url, timeout=60)
    with Wire(server.url) as wire:
        wire.good(wire.table(["t"], "create", stream(ROWS)))
    postgres.stop()
    with ThreadPoolExecutor(4) as pool:  # each waits for a connection until it gives up
        responses = [
            pool.submit(http.post, "/v1/table/t/describe", json={}),
            pool.submit(http.post, "/v1/namespace/n/create", json={}),
            pool.submit(http.post, "/v1/table/u/create", content=stream(ROWS)),
        ]
        ready = pool.submit(http.get, "/health/ready").result()
        for response in responses:
            check_unavailable(response.result())
    assert ready.status_code == 503 and ready.json()["checks"]["storage"] == "ok"
    assert http.get("/health/live").status_code == 200
    postgres.start()
    wait_until(lambda: http.get("/health/ready").status_code == 200, "the server has its database again")
    assert http.post("/v1/table/t/count_rows", json={}).text == "100"
    assert http.post("/v1/table/u/create", content=stream(ROWS)).status_code == 200
    installation.wait_until_swept()
    http.close()
    assert server.stop() == 0
    assert not [line for line in server.log if "Traceback" in line], "".join(server.log)
    lines = logged_failures(server, "the catalog's database postgresql://127.0.0.1:")
    assert any("onnection refused" in line or "shutdown" in line or "terminating" in line for line in lines), server.log
    assert len(lines) <= MAX_LINES, lines


@pytest.mark.extended
def test_failing_writes_are_503_and_leave_no_files(small_installation: Installation, talk: Talk) -> None:
    """A limit on file sizes simulates a full disk: both fail inside a write."""
    server = small_installation.start()
    wire = talk(server)
    large = pa.table({"id": pa.array(range(1_000_000), pa.int64()), "text": ["x" * 10] * 1_000_000})
    wire.good(wire.table(["t"], "create", stream(ROWS)))
    before = small_installation.files()
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
    for path in ("t/insert", "t/insert?mode=overwrite", "t/create?mode=overwrite", "new/create"):
        check_unavailable(wire.http.post(f"/v1/table/{path}", content=stream(large)))
    [line] = logged_failures(server, f"the root {small_installation.root} ")  # of four refusals
    assert "File too large (os error 27)" in line
    assert wire.table(["t"], "count_rows").text == "100"
    assert wire.table(["new"], "exists").status_code == 404
    wait_until(lambda: small_installation.files() == before, "the files are as before")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert wire.good(wire.table(["t"], "insert", stream(large)))["version"] == 2
    wire.good(wire.table(["new"], "create", stream(large)))
    small_installation.wait_until_swept()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"needs the right to mount: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte."""
    file = disk / "filler"
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    return file


def test_full_disk_of_the_tables_is_503_with_one_line_in_the_log(small_disk: Path, tmp_path: Path) -> None:
    installation = Installation(small_disk / "root", f"sqlite:///{tmp_path / 'catalog.db'}")
    try:
        server = installation.start()
        with Wire(server.url) as wire:
            wire.good(wire.table(["t"], "create", stream(ROWS)))
            filler = fill(small_disk)
            for path in ("t/insert", "t/insert?mode=overwrite", "new/create") * 3:
                check_unavailable(wire.http.post(f"/v1/table/{path}", content=stream(ROWS)))
            assert wire.http.get("/health/ready").status_code == 503
            [line] = logged_failures(server, f"the root {installation.root} ")
            assert "No space left on device" in line
            filler.unlink()
            wire.good(wire.table(["t"], "insert", stream(ROWS)))
            assert wire.http.get("/health/ready").status_code == 200
    finally:
        installation.close()


def test_full_disk_of_the_catalog_is_not_ready_with_one_line_in_the_log(small_disk: Path, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "root", f"sqlite:///{small_disk / 'catalog.db'}")
    try:
        server = installation.start()
        with Wire(server.url) as wire:
            wire.good(wire.table(["t"], "create", stream(ROWS)))
            filler = fill(small_disk)
            for _ in range(5):
                ready = wire.http.get("/health/ready")
                assert ready.status_code == 503 and ready.json()["checks"]["storage"] == "ok"
                check_unavailable(wire.http.post("/v1/namespace/n/create", json={"properties": {"a": "b" * 100_000}}))
            [line] = logged_failures(server, f"the catalog's database sqlite:///{small_disk / 'catalog.db'} ")
            assert "No space left on device" in line
            assert wire.table(["t"], "count_rows").text == "100"
            filler.unlink()
            assert wire.http.get("/health/ready").status_code == 200
            wire.good(wire.namespace(["n"], "create"))
    finally:
        installation.close()


def test_server_that_cannot_write_next_to_its_catalog_is_not_ready(
    small_installation: Installation, talk: Talk
) -> None:
    """The same without the right to mount a disk: a limit on file sizes simulates a full one."""
    server = small_installation.start()
    http = talk(server).http
    assert http.get("/health/ready").status_code == 200
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100 << 10, resource.RLIM_INFINITY))
    for _ in range(3):
        assert http.get("/health/ready").status_code == 503
    [line] = logged_failures(server, f"the catalog's database {small_installation.db} ")
    assert "File too large" in line
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert http.get("/health/ready").status_code == 200
    assert not list(small_installation.root.parent.glob("*probe*"))
