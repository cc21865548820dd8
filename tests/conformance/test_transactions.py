"""Long work as a transaction: queued, seen, steered, canceled, run by a worker of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance_namespace_urllib3_client as u
import pytest
from lance_namespace_urllib3_client.api import MetadataApi

from tests.conformance.conftest import Raw
from tests.conformance.test_catalog import code
from tests.services.forked_process import start_tiltyard
from tests.services.server import ServerProcess
from tiltyard.store import open_store
from tiltyard_conformance.cases import ROWS, World, ipc


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that leaves queued work to others."""
    running = ServerProcess(tmp_path_factory.mktemp("idle"), "--jobs", "0", "--retention-days", "0")
    yield running
    running.stop()


@pytest.fixture
def world(idle: ServerProcess) -> World:
    return World(Raw(idle.url), {})


def queue(world: World, name: str = "by_id") -> tuple[list[str], str]:
    """A table, and the transaction that will build an index on it."""
    table = world.table()
    created = world.post(f"/v1/table/{table[0]}/create_index", {"column": "id", "index_type": "BTREE", "name": name})
    return table, created["transaction_id"]


def kinds_of_processes(idle: ServerProcess) -> list[str]:
    """Return the kinds of the processes that send heartbeats to the catalog."""
    with open_store(f"sqlite:///{idle.root}/catalog.db") as store:
        return [process.kind for process in store.list_processes()]


def alter(world: World, transaction: str, *actions: Any) -> Any:
    return world.raw.post(f"/v1/transaction/{transaction}/alter", {"actions": list(actions)})


def until(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def status(world: World, transaction: str) -> str:
    return str(world.post(f"/v1/transaction/{transaction}/describe")["status"])


def test_describe_transaction_queued_names_its_kind_and_the_index_is_listed_as_being_built(world: World) -> None:
    table, transaction = queue(world)
    described = world.post(f"/v1/transaction/{transaction}/describe")
    assert described["status"] == "Queued" and described["properties"]["kind"] == "create_index"
    [index] = world.post(f"/v1/table/{table[0]}/index/list")["indexes"]
    assert index["index_name"] == "by_id" and index["status"].lower() not in ("done", "ready")


def test_worker_of_its_own_builds_what_a_server_queued(world: World, idle: ServerProcess) -> None:
    table, transaction = queue(world)
    worker = start_tiltyard("worker", "--root", str(idle.root))
    try:
        until(lambda: status(world, transaction) == "Succeeded")
        until(lambda: kinds_of_processes(idle) == ["server", "worker"])
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert world.post(f"/v1/table/{table[0]}/index/by_id/stats")["num_indexed_rows"] == 3


def test_alter_transaction_canceled_is_never_run(world: World, idle: ServerProcess) -> None:
    table, transaction = queue(world)
    assert alter(world, transaction, {"setStatusAction": {"status": "canceled"}}).json()["status"] == "Canceled"
    _, second = queue(world)
    worker = start_tiltyard("worker", "--root", str(idle.root))
    try:
        until(lambda: status(world, second) == "Succeeded")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert status(world, transaction) == "Canceled"
    assert world.post(f"/v1/table/{table[0]}/index/list")["indexes"] == []


def test_alter_transaction_applies_all_actions_or_none(world: World) -> None:
    _, transaction = queue(world)
    key, value = {"key": "a", "value": "1"}, {"key": "a", "value": "2"}
    assert alter(world, transaction, {"setPropertyAction": key}).json()["properties"]["a"] == "1"
    refused = alter(world, transaction, {"setPropertyAction": value}, {"setPropertyAction": {**value, "mode": "Fail"}})
    assert code(refused) == (400, 13)
    assert world.post(f"/v1/transaction/{transaction}/describe")["properties"]["a"] == "1"
    skipped = alter(world, transaction, {"setPropertyAction": {**value, "mode": "skip"}})
    assert skipped.json()["properties"]["a"] == "1"
    assert "a" not in alter(world, transaction, {"unsetPropertyAction": {"key": "a"}}).json()["properties"]
    assert alter(world, transaction, {"unsetPropertyAction": {"key": "a"}}).status_code == 200
    assert code(alter(world, transaction, {"unsetPropertyAction": {"key": "a", "mode": "Fail"}})) == (400, 13)


@pytest.mark.parametrize(
    "action",
    [
        {},
        {"setStatusAction": {"status": "Canceled"}, "unsetPropertyAction": {"key": "a"}},
        {"setStatusAction": {}},
        {"setStatusAction": {"status": "Sleeping"}},
        {"setPropertyAction": {"key": "a"}},
        {"unsetPropertyAction": {}},
    ],
)
def test_alter_transaction_refuses_actions_that_say_nothing_or_two_things(world: World, action: Any) -> None:
    _, transaction = queue(world)
    assert code(alter(world, transaction, action)) == (400, 13)
    assert status(world, transaction) == "Queued"


def test_alter_transaction_refuses_illegal_moves(world: World) -> None:
    _, transaction = queue(world)
    assert code(alter(world, transaction)) == (400, 13)
    alter(world, transaction, {"setStatusAction": {"status": "Canceled"}})
    for new_status in ("Running", "Queued", "Succeeded"):
        assert code(alter(world, transaction, {"setStatusAction": {"status": new_status}})) == (409, 19)
    assert alter(world, transaction, {"setStatusAction": {"status": "CANCELED"}}).status_code == 200


def test_transaction_unknown_is_404_with_its_code(world: World) -> None:
    assert code(world.raw.post("/v1/transaction/none/describe")) == (404, 10)
    assert code(alter(world, "none", {"setStatusAction": {"status": "Canceled"}})) == (404, 10)


def test_describe_transaction_through_the_generated_client(world: World, idle: ServerProcess) -> None:
    _, transaction = queue(world)
    api = MetadataApi(u.ApiClient(u.Configuration(host=idle.url)))
    assert api.describe_transaction(transaction, u.DescribeTransactionRequest()).status == "Queued"


def test_drop_namespace_cascade_is_seen_at_once_and_its_folders_go_as_a_transaction(
    world: World, idle: ServerProcess
) -> None:
    [space] = world.namespace()
    inner = f"{space}$inner"
    world.post(f"/v1/namespace/{inner}/create")
    for name in (f"{space}$a", f"{inner}$b"):
        assert world.raw.http.post(f"/v1/table/{name}/create", content=ipc(ROWS)).status_code == 200
    folders = [Path(world.post(f"/v1/table/{name}/describe")["location"]) for name in (f"{space}$a", f"{inner}$b")]
    [transaction] = world.post(f"/v1/namespace/{space}/drop", {"behavior": "Cascade"})["transaction_id"]
    assert code(world.raw.post(f"/v1/table/{inner}$b/describe")) == (404, 1)
    assert all(folder.exists() for folder in folders)
    worker = start_tiltyard("worker", "--root", str(idle.root))
    try:
        until(lambda: status(world, transaction) == "Succeeded")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert not any(folder.exists() for folder in folders)
    assert world.post(f"/v1/transaction/{transaction}/describe")["properties"]["folders_deleted"] == "2"
