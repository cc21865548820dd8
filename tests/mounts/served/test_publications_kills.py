"""Publishing servers that are killed, several of them at once, and catalogs that are away."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lance
import pytest

from tests.mounts.backends import new_name
from tests.mounts.served.publishing import ROWS, Publisher
from tests.services.server import ServerProcess, running_servers
from tests.services.wire import Wire
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog

TABLES = 50


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ServerProcess]:
    """The catalog that is published to: another Tiltyard."""
    root = tmp_path / "other"
    root.mkdir()
    other = ServerProcess(root, environ={"TILTYARD_ALLOWED_ROOTS": json.dumps([str(tmp_path)])})
    yield other
    other.stop()


def create_tables(publisher: Publisher, ours: str, number: int = TABLES) -> dict[str, str]:
    """Create tables; return the location of each."""
    publisher.namespace(ours)
    return {f"t{i:02}": publisher.create(ours, f"t{i:02}") for i in range(number)}


def wait_for_entries(publisher: Publisher, ours: str, number: int) -> None:
    until = time.monotonic() + 60
    while True:
        listed = publisher.catalog.list_namespaces(Id()).names
        if ours in listed and len(publisher.names(ours)) >= number:
            return
        assert time.monotonic() < until
        time.sleep(0.01)


def assert_in_step(publisher: Publisher, ours: str, locations: dict[str, str]) -> None:
    found = {name: publisher.there(ours, name).location for name in publisher.names(ours)}
    assert found == locations


@pytest.mark.extended
def test_a_server_that_is_killed_in_the_middle_of_a_sync_goes_on(tmp_path: Path, other: ServerProcess) -> None:
    settings = {"uri": other.url, "timeout": 60}
    server = ServerProcess(tmp_path / "publishing", "--retention-days", "0")
    ours = new_name("killed")
    with Wire(server.url) as wire, closing(open_catalog("lance", settings)) as catalog:
        publisher = Publisher(wire, "lance", settings, catalog)
        locations = create_tables(publisher, ours)
        theirs = str(tmp_path / "theirs")
        lance.write_dataset(ROWS, theirs)
        catalog.create_namespace(Id((ours,)), {})
        catalog.declare_table(Id((ours, "t49")), theirs, {})
        publisher.publish(namespace=[ours])
        for number in (10, 25, 40):
            wait_for_entries(publisher, ours, number)
            server.kill()
            server.start()
        entry = publisher.wait(lambda entry: entry["tables"] == TABLES - 1)
        assert [each["id"] for each in entry["problems"]] == [[ours, "t49"]]
        assert_in_step(publisher, ours, {**locations, "t49": theirs})

        # Killed again, while renames and drops are brought over.
        for i in range(20):
            publisher.rename((ours, f"t{i:02}"), f"r{i:02}")
        for i in range(20, 30):
            publisher.drop(ours, f"t{i:02}")
        server.kill()
        server.start()
        left = {name.replace("t", "r") if int(name[1:]) < 20 else name: place for name, place in locations.items()}
        left = {name: place for name, place in left.items() if not 20 <= int(name[1:]) < 30} | {"t49": theirs}
        publisher.wait(lambda entry: entry["tables"] == len(left) - 1)
        assert_in_step(publisher, ours, left)
    server.stop()


def test_two_servers_publish_each_table_once(tmp_path: Path, other: ServerProcess) -> None:
    settings = {"uri": other.url, "timeout": 60}
    ours = new_name("both")
    with (
        running_servers(2, tmp_path / "publishing", "--retention-days", "0") as (first, second),
        Wire(first.url) as wire,
        Wire(second.url) as second_wire,
        closing(open_catalog("lance", settings)) as catalog,
    ):
        publisher = Publisher(wire, "lance", settings, catalog)
        locations = create_tables(publisher, ours)
        publisher.publish(namespace=[ours])
        beside = Publisher(second_wire, "lance", settings, catalog, publisher.name)
        assert beside.sync()["problems"] == []
        assert publisher.wait()["problems"] == []
        assert_in_step(publisher, ours, locations)
        for i in range(10):
            publisher.rename((ours, f"t{i:02}"), f"r{i:02}")
        renamed = {name.replace("t", "r") if int(name[1:]) < 10 else name: place for name, place in locations.items()}
        publisher.wait(lambda entry: "r09" in publisher.names(ours))
        assert_in_step(publisher, ours, renamed)
        assert publisher.entry()["problems"] == []


def test_a_catalog_that_is_silent_delays_no_other_publication_and_no_stop(tmp_path: Path, other: ServerProcess) -> None:
    """It has answered once, and never does again."""
    settings = {"uri": other.url, "timeout": 60}
    gone_root = tmp_path / "gone"
    gone_root.mkdir()
    gone = ServerProcess(gone_root)
    server = ServerProcess(tmp_path / "publishing", "--retention-days", "0")
    ours = new_name("delayed")
    with Wire(server.url) as wire, closing(open_catalog("lance", settings)) as catalog:
        away = Publisher(wire, "lance", {"uri": gone.url, "timeout": 2, "connect_timeout": 2}, catalog)
        away.publish(namespace=[])
        gone.stop()
        publisher = Publisher(wire, "lance", settings, catalog)
        with closing(socket.create_server(("127.0.0.1", int(gone.url.rpartition(":")[2])), backlog=64)):
            locations = create_tables(publisher, ours, 3)
            publisher.publish(namespace=[ours])
            publisher.wait(lambda entry: entry["tables"] == 3)
            assert_in_step(publisher, ours, locations)
            until = time.monotonic() + 60
            while "outage" not in away.entry():
                assert time.monotonic() < until
                time.sleep(0.1)
            entry = away.entry()
            assert not entry["in_step"] and entry["lag_millis"] > 0 and "not answer" in entry["outage"]
    server.stop()
