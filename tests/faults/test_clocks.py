"""Servers whose clocks are minutes apart: the database's clock says what is a repeat, and whose lease has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from tests.conformance.test_repeats import wait_for
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.server import ServerProcess
from tests.services.skewed_clock import SkewedServer
from tiltyard.bootstrap import open_services
from tiltyard.config import Settings
from tiltyard.runtime.failpoints import VARIABLE, Point
from tiltyard.store import open_store, wall_clock

pytestmark = pytest.mark.extended

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
APART_SECONDS = 120


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.parametrize("ahead", [-APART_SECONDS, APART_SECONDS], ids=["behind", "ahead"])
def test_lancedb_write_that_a_server_of_another_time_has_done_is_not_done_again(
    postgres: PostgresServer, tmp_path: Path, ahead: int
) -> None:
    database, moment = postgres.new_database(), tmp_path / "now"
    flags = "--db", database
    fault = {VARIABLE: f"{Point.AFTER_FINALIZE}@{moment}"}
    wrong = SkewedServer(ahead, tmp_path / "root", *flags, environ=fault)
    right = ServerProcess(tmp_path / "root", *flags)
    try:
        open_table(wrong, ROWS)
        moment.touch()
        with pytest.raises(Exception, match=r"(?i)http|connection|request"):
            open_table(wrong).add(ROWS)  # it is in the table, and its client does not know that
        wait_for(lambda: wrong.process.poll() is not None)
        table = open_table(right)
        table.add(ROWS)  # with another x-request-id: that of this call
        assert table.count_rows() == 6
        table.add(ROWS)
        assert table.count_rows() == 9
    finally:
        wrong.process.kill()
        right.stop()
        postgres.drop_database(database)


def open_table(server: ServerProcess, rows: pa.Table | None = None) -> Any:
    """The table of a stock client; with rows, created."""
    db = lancedb.connect("db://tests", api_key="any", host_override=server.url)
    return db.open_table("t") if rows is None else db.create_table("t", rows)


def test_store_on_a_machine_of_another_time_has_the_time_of_the_database(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.new_database()
    with monkeypatch.context() as patched, open_store(database) as store:
        before, real_ns = wall_clock(), time.time_ns
        patched.setattr("time.time_ns", lambda: real_ns() + APART_SECONDS * 10**9)
        assert wall_clock() >= before + APART_SECONDS * 1000
        assert abs(store.clock() - before) < 30_000
        queued = store.create_transaction("ingest", None, {}, {})
        assert abs(store.describe_transaction(queued.id).created_at - before) < 30_000
        services = open_services(Settings(root=str(tmp_path), db=database))
        assert abs(services.started_at - before) < 30_000
        services.close()
    postgres.drop_database(database)
