"""One key, many writers, several servers that are killed meanwhile: the table never has a key twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import httpx
import lance.namespace
import pyarrow as pa
import pytest

from tests.faults.conftest import Installation
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

pytestmark = pytest.mark.extended

Talk = Callable[[ServerProcess], Wire]

WRITERS = 4
KEYS = range(100, 106)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


class Model:
    """What writers know: the keys that were acknowledged, and those whose outcome is unknown."""

    def __init__(self) -> None:
        self.acknowledged: Counter[int] = Counter()
        self.uncertain: set[int] = set()
        self.lock = threading.Lock()

    def insert(self, wire: Wire, key: int) -> None:
        try:
            response = wire.table(["t"], "insert", stream(rows(key)))
        except httpx.HTTPError:
            self.uncertain.add(key)
            return
        if response.status_code == 200:
            with self.lock:
                self.acknowledged[key] += 1
        elif response.status_code == 409 and response.json()["code"] == 19:
            assert f"id = {key}" in response.json()["error"]
        else:
            self.uncertain.add(key)

    def commit(self, url: str, key: int) -> None:
        """Commit as a client of Lance that writes the files itself."""
        client = lance.namespace.RestNamespace(uri=url)
        try:
            lance.write_dataset(rows(key), namespace_client=client, table_id=["t"], mode="append")
        except OSError:  # refused, or not: pylance says so only in its log
            self.uncertain.add(key)
            return
        with self.lock:
            self.acknowledged[key] += 1


def prepare(installation: Installation, talk: Talk) -> list[ServerProcess]:
    servers = [installation.start() for _ in range(2)]
    wire = talk(servers[0])
    wire.good(wire.table(["t"], "create", stream(rows(1, 2, 3))))
    response = wire.http.post("/tiltyard/v1/table/t/primary_key/set", json={"columns": ["id"]})
    assert response.status_code == 200, response.text
    return servers


def stored(installation: Installation) -> Counter[int]:
    (location,) = installation.written()
    return Counter(lance.dataset(location).to_table(columns=["id"]).column("id").to_pylist())


def test_key_inserted_at_once_on_several_servers_has_one_winner(installation: Installation, talk: Talk) -> None:
    servers, model = prepare(installation, talk), Model()

    def write(server: ServerProcess, key: int, number: int) -> None:
        if number % 2:
            model.commit(server.url, key)
        else:
            model.insert(Wire(server.url), key)

    for key in KEYS:
        threads = [threading.Thread(target=write, args=(servers[n // 2 % 2], key, n)) for n in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert model.acknowledged[key] == 1, key
    assert stored(installation) == Counter([1, 2, 3, *KEYS])


def test_servers_that_are_killed_let_no_key_in_twice(installation: Installation, talk: Talk) -> None:
    servers, model = prepare(installation, talk), Model()
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            model.insert(Wire(servers[chance.randrange(2)].url), chance.choice(KEYS))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(WRITERS)]
    for thread in threads:
        thread.start()
    for turn in range(2):
        stop.wait(0.5)
        servers[turn % 2].kill()
        servers[turn % 2].start()
    stop.set()
    for thread in threads:
        thread.join()
    wire = Wire(servers[0].url)
    assert wire.table(["t"], "insert", stream(rows(999))).status_code == 200  # finalizes what a kill has left
    found = stored(installation)
    assert max(found.values()) == 1
    assert {key: count for key, count in model.acknowledged.items() if count != 1} == {}
    assert set(model.acknowledged) <= set(found)
    assert set(found) <= {1, 2, 3, 999} | set(model.acknowledged) | model.uncertain
