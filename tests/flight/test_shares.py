"""SQL of several principals: one that takes what it can leaves places and memory to others, and no files behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from tests.flight.conftest import ENDLESS, NUMBERS, SqlServer, flight_port
from tests.flight.test_ending import LONG_QUERIES, query_processes, run_until_started, wait_for
from tests.flight.test_service import running_queries
from tests.services.secured import secured_server


def test_principal_that_takes_all_places_it_can_leaves_some_to_others(sql: SqlServer) -> None:
    with sql.channel("ann") as ann:
        submitted = [ann.poll(ENDLESS) for _ in range(6)]
        with pytest.raises(grpc.RpcError, match="of yours run already"):
            ann.poll(ENDLESS)
        assert sql.lancedb().execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]
        assert sql.lancedb("bob").execute_query("SELECT count(*) AS n FROM films").read_all().num_rows == 1
        for polled in submitted:
            ann.cancel(polled.info)
    wait_for(lambda: running_queries(sql) == 0)


@pytest.mark.extended
def test_principal_whose_queries_take_its_half_of_the_memory_loses_them(tmp_path: Path) -> None:
    environ = {"TILTYARD_SQL_TOTAL_BYTES": str(512 << 20), "TILTYARD_SQL_MEMORY_BYTES": str(4 << 30)}
    with secured_server(tmp_path / "root", environ=environ, names=("ann",)) as secured:
        sql = SqlServer(secured, flight_port(secured.url))
        sql.lancedb().create_table("numbers", NUMBERS)
        run_until_started(sql)
        with pytest.raises(RuntimeError, match=r"more memory than 256 MiB|than all may have"):
            sql.lancedb().execute_query(LONG_QUERIES["sort"]).read_all()
        wait_for(lambda: running_queries(sql) == 0)
        assert sql.lancedb().execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]


def test_spill_folders_of_a_killed_server_are_removed_by_the_next_one(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "tiltyard-sql-of-others").mkdir()
    environ = {"TILTYARD_SQL_SPILL_FOLDER": str(spill)}
    for is_first in (True, False):
        with secured_server(tmp_path / "root", environ=environ, names=()) as secured:
            sql = SqlServer(secured, flight_port(secured.url))
            if is_first:
                run_until_started(sql)
                assert len(list(spill.iterdir())) == 2
                processes = query_processes(sql)
                assert processes
                secured.server.kill()
                wait_for(lambda: not any(map(_is_alive, processes)))  # noqa: B023  # called before the next round
            else:
                assert [folder.name for folder in spill.iterdir()] == ["tiltyard-sql-of-others"]


def _is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
