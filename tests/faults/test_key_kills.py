"""A server that is killed while it commits to a table with a key: the next one lets the key in no second time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import lance.namespace
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

import tiltyard
from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.publishing import commit
from tiltyard.runtime.failpoints import Point

Talk = Callable[[ServerProcess], Wire]
TABLES = ("t", "u")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def create_tables(wire: Wire) -> None:
    """Two tables with the key `id`, whose indexes are built."""
    transactions = []
    for name in TABLES:
        wire.good(wire.table([name], "create", stream(rows(1, 2, 3))))
        response = wire.http.post(f"/tiltyard/v1/table/{name}/primary_key/set", json={"columns": ["id"]})
        transactions += wire.good(response)["transaction_ids"]

    def are_built() -> bool:
        described = [wire.good(wire.call("transaction", [each], "describe"))["status"] for each in transactions]
        return described == ["Succeeded", "Succeeded"]

    wait_until(are_built, "the indexes are built")


def append(client: LanceNamespace, name: str, key: int) -> None:
    """Append a row as a client that writes its files itself."""
    lance.write_dataset(rows(key), namespace_client=client, table_id=[name], mode="append")


@pytest.mark.parametrize(
    ("disk_or_lake", "point"),
    [
        ("disk", Point.AFTER_RECORD),
        *(
            pytest.param("lake", point, marks=pytest.mark.extended)
            for point in (Point.BEFORE_RECORD, Point.AFTER_RECORD, Point.AFTER_FINALIZE)
        ),
    ],
    indirect=["disk_or_lake"],
)
def test_server_killed_in_a_commit_of_a_key_lets_it_in_once(
    disk_or_lake: Installation,
    talk: Talk,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    point: Point,
) -> None:
    """By an insert, by a client that writes files, and by a publication; another server gets the key meanwhile."""
    monkeypatch.setattr(commit, "PAUSES", (0.2,) * 500)  # until the server is there again
    armed = tmp_path_factory.mktemp("fault") / "armed"
    dying, other = disk_or_lake.start(TILTYARD_FAULT=f"{point}=kill@{armed}"), disk_or_lake.start()
    wire, witness = talk(dying), talk(other)
    create_tables(witness)
    is_recorded = point is not Point.BEFORE_RECORD

    def is_refused(key: int) -> bool:
        response = witness.table(["t"], "insert", stream(rows(key)))
        if response.status_code == 200:
            return False
        assert (response.status_code, response.json()["code"]) == (409, 19), response.text
        assert f"id = {key}" in response.json()["error"]
        return True

    armed.touch()
    with pytest.raises(httpx.TransportError):
        wire.table(["t"], "insert", stream(rows(10)))
    dying.wait()
    assert is_refused(10) is is_recorded
    dying.start()

    armed.touch()
    with pytest.raises(OSError):  # noqa: PT011  # pylance's own, about the connection
        append(lance.namespace.RestNamespace(uri=dying.url), "t", 11)
    assert not armed.exists()
    dying.wait()
    assert is_refused(11) is is_recorded
    dying.start()

    def publish() -> None:
        with tiltyard.publish(lance.namespace.RestNamespace(uri=dying.url)) as held:
            for name in TABLES:
                append(held, name, 12)
            armed.touch()

    publication = threading.Thread(target=publish)
    publication.start()
    dying.wait()
    if is_recorded:
        assert is_refused(12)
    dying.start()
    publication.join(120)
    assert is_refused(12)
    for name, keys in (("t", [1, 2, 3, 10, 11, 12]), ("u", [1, 2, 3, 12])):
        assert sorted(disk_or_lake.dataset(name).to_table()["id"].to_pylist()) == keys
