"""How tables are shared out among the servers of a catalog."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.store.test_process_records import SERVER
from tiltyard.catalog.table_servers import Server, TableServers, rank
from tiltyard.store.processes import ALIVE_MS, ProcessRecord

TABLES = [["lake", f"t{number}"] for number in range(3000)]
SERVERS = [Server("http://a", 100), Server("http://b", 100), Server("http://c", 200)]


def first_of(servers: list[Server]) -> list[str]:
    return [rank(servers, path)[0].url for path in TABLES]


def test_tables_are_shared_out_by_weight_and_only_those_of_a_server_move_with_it() -> None:
    before = first_of(SERVERS)
    shares = Counter(before)
    assert shares["http://c"] / len(TABLES) == pytest.approx(0.5, abs=0.04)
    assert shares["http://a"] / len(TABLES) == pytest.approx(0.25, abs=0.04)
    after = first_of(SERVERS[:2])
    assert all(now == then for then, now in zip(before, after, strict=True) if then != "http://c")
    second = [rank(SERVERS, path)[1].url for path in TABLES]
    assert all(now == next_ for then, now, next_ in zip(before, after, second, strict=True) if then == "http://c")


def test_table_servers_are_those_with_a_url_that_are_alive_and_processes_of_one_socket_are_one() -> None:
    now = 1_000_000

    def process(id_: str, url: str, silent: int = 0) -> ProcessRecord:
        return msgspec.structs.replace(SERVER, id=id_, url=url, weight=5, seen_at=now - silent)

    processes = [
        process("1", "http://a"),
        process("2", "http://a"),
        process("3", "http://b", ALIVE_MS),
        process("4", ""),
        process("5", "http://c"),
    ]
    servers = TableServers(lambda: processes, lambda: now, "http://a")
    assert {server.url for server in servers.keepers(["t"])} == {"http://a", "http://c"}
    del processes[0]
    assert len(servers.keepers(["t"])) == 2  # the list is read again after some seconds
