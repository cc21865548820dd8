"""Concurrent creations of one new table below a mount, over every backend: one wins, and what it was told is there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import httpx
import lance
import lancedb
import pyarrow as pa

from tests.mounts.backends import Backend, new_name
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

RACES = int(os.environ.get("MOUNT_RACES", "3"))
RAW_CALLERS, CLIENTS = 6, 3
ROWS = 3

T = TypeVar("T")


def rows_of(caller: int) -> pa.Table:
    """Rows that say who has written them."""
    return pa.table({"x": range(ROWS), "caller": [caller] * ROWS})


def race(callers: int, call: Callable[[int], T]) -> list[T]:
    """Return what each of several callers gets that start at once."""
    together = Barrier(callers)

    def start(caller: int) -> T:
        together.wait(60)
        return call(caller)

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(start, range(callers)))


def check_table(wire: Wire, catalog: MountedCatalog, backend: Backend, table: Id, answers: object) -> int:
    """Return who has won; the table has its entry, its folder and the rows of one caller."""
    found = catalog.get_table(Id(table[1:]))
    assert wire.call("table", table, "count_rows").json() == ROWS, answers
    dataset = lance.dataset(found.location, storage_options=dict(backend.storage_options))
    (caller,) = set(dataset.to_table()["caller"].to_pylist())
    winner: int = caller
    return winner


def test_create_by_several_callers_at_once_has_one_winner_whose_rows_are_there(
    server: ServerProcess, wire: Wire, home: Id, catalog: MountedCatalog, backend: Backend
) -> None:
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for _ in range(RACES):
            table = Id((*home, new_name("raced")))

            def create(caller: int, table: Id = table) -> httpx.Response:
                content = stream(rows_of(caller))
                headers = {"content-type": "application/vnd.apache.arrow.stream"}
                return http.post(f"/v1/table/{'$'.join(table)}/create", content=content, headers=headers)

            answers = [check(answer) for answer in race(RAW_CALLERS, create)]
            texts = [answer.text for answer in answers]
            statuses = Counter(answer.status_code for answer in answers)
            assert statuses == {200: 1, 409: RAW_CALLERS - 1}, texts
            winner = check_table(wire, catalog, backend, table, texts)
            assert answers[winner].status_code == 200, texts


def test_create_with_exist_ok_by_lancedb_clients_at_once_leaves_one_table_for_all(
    server: ServerProcess, wire: Wire, home: Id, catalog: MountedCatalog, backend: Backend
) -> None:
    for _ in range(RACES):
        name = new_name("shared")

        def create(caller: int, name: str = name) -> int:
            client = lancedb.connect("db://any", api_key="none", host_override=server.url)
            table = client.create_table(name, rows_of(caller), namespace_path=list(home), exist_ok=True)
            rows: int = table.count_rows()
            return rows

        counts = race(CLIENTS, create)
        assert counts == [ROWS] * CLIENTS
        check_table(wire, catalog, backend, Id((*home, name)), counts)
