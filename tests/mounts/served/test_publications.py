"""Publications: entries in other catalogs that follow our tables, and touch nobody else's.

Here over a folder, as stock clients of Lance's directory namespace use it, and over another Tiltyard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pytest
from lance_namespace import DescribeTableRequest, ListTablesRequest

from tests.mounts.backends import new_name
from tests.mounts.served.publishing import ROWS, Publisher
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder beside the server's root."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, elsewhere: Path) -> Iterator[ServerProcess]:
    environ = {"TILTYARD_ALLOWED_ROOTS": json.dumps([str(elsewhere)])}
    server = ServerProcess(tmp_path_factory.mktemp("publishing"), "--retention-days", "0", environ=environ)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess, elsewhere: Path) -> Iterator[ServerProcess]:
    """Another Tiltyard, which may register the tables of the first."""
    environ = {"TILTYARD_ALLOWED_ROOTS": json.dumps([str(server.root), str(elsewhere)])}
    other = ServerProcess(tmp_path_factory.mktemp("other"), "--retention-days", "0", environ=environ)
    yield other
    other.stop()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as wire:
        yield wire


@pytest.fixture(params=["dir", "lance"])
def publisher(request: pytest.FixtureRequest, server: ServerProcess, wire: Wire) -> Iterator[Publisher]:
    settings: dict[str, object] = {"root": str(server.root), "mode": "manifest"}
    if request.param == "lance":
        settings = {"uri": request.getfixturevalue("other").url}
    catalog = open_catalog(request.param, settings)
    publisher = Publisher(wire, request.param, settings, catalog)
    yield publisher
    if publisher.name:
        wire.http.post("/tiltyard/v1/publication/drop", json={"publication": publisher.name})
    catalog.close()


def test_tables_of_a_namespace_and_below_are_published_and_follow(publisher: Publisher) -> None:
    ours = new_name("films")
    publisher.namespace(ours)
    publisher.namespace(ours, "old")
    location = publisher.create(ours, "a")
    publisher.create(ours, "old", "b")
    entry = publisher.publish(namespace=[ours])
    assert entry["namespace"] == [ours] and entry["tables"] == 0 and not entry["in_step"]

    entry = publisher.wait()
    assert entry["tables"] == 2 and entry["problems"] == [] and entry["lag_millis"] == 0 and "outage" not in entry
    assert publisher.names(ours) == ["a"] and publisher.names(ours, "old") == ["b"]
    assert publisher.there(ours, "a").location == location
    assert lance.dataset(publisher.there(ours, "a").location).count_rows() == 3

    publisher.rename((ours, "a"), "c")
    publisher.create(ours, "d")
    publisher.drop(ours, "old", "b")
    publisher.wait(lambda entry: publisher.names(ours) == ["c", "d"])
    assert publisher.there(ours, "c").location == location
    assert publisher.names(ours, "old") == []

    # Two tables swap their names: each entry has the other's place then.
    for name, new in (("c", "e"), ("d", "c"), ("e", "d")):
        publisher.rename((ours, name), new)
    publisher.wait(lambda entry: publisher.there(ours, "d").location == location)
    assert publisher.there(ours, "c").location == publisher.location(ours, "c")


def test_entries_are_what_stock_clients_open(server: ServerProcess, wire: Wire) -> None:
    settings = {"root": str(server.root), "mode": "manifest"}
    publisher = Publisher(wire, "dir", settings, open_catalog("dir", settings))
    ours = new_name("stock")
    publisher.namespace(ours)
    publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.sync()
    options = {"root": str(server.root), "dir_listing_enabled": "false"}
    client = lance_namespace.connect("dir", options)
    assert list(client.list_tables(ListTablesRequest(id=[ours])).tables) == ["t"]
    location = client.describe_table(DescribeTableRequest(id=[ours, "t"])).location
    assert lance.dataset(location).count_rows() == 3


def test_another_tiltyard_serves_what_is_published_to_it(wire: Wire, other: ServerProcess) -> None:
    settings = {"uri": other.url}
    publisher = Publisher(wire, "lance", settings, open_catalog("lance", settings))
    ours = new_name("shared")
    publisher.namespace(ours)
    publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.sync()
    with Wire(other.url) as theirs:
        assert theirs.good(theirs.table([ours, "t"], "count_rows")) == 3
        wire.good(wire.table([ours, "t"], "insert", stream(ROWS)))
        assert theirs.good(theirs.table([ours, "t"], "count_rows")) == 6
        theirs.good(theirs.table([ours, "t"], "insert", stream(ROWS)))
    assert wire.good(wire.table([ours, "t"], "count_rows")) == 9


def test_tables_and_namespaces_are_published_by_their_property(publisher: Publisher) -> None:
    ours = new_name("chosen")
    publisher.publish()
    properties = {"tiltyard.publish_to": f"another, {publisher.name}"}
    publisher.namespace(ours)
    publisher.create(ours, "a", properties=properties)
    publisher.create(ours, "b")
    publisher.wire.good(publisher.wire.namespace([ours, "all"], "create", {"properties": properties}))
    publisher.create(ours, "all", "c")
    publisher.wait(lambda entry: entry["tables"] == 2)
    assert publisher.names(ours) == ["a"] and publisher.names(ours, "all") == ["c"]


def test_a_table_without_data_is_published_once_it_has_some(publisher: Publisher) -> None:
    ours = new_name("declared")
    publisher.namespace(ours)
    publisher.wire.good(publisher.wire.table([ours, "t"], "declare"))
    publisher.publish(namespace=[ours])
    assert publisher.wait()["tables"] == 0
    publisher.create(ours, "t")
    publisher.wait(lambda entry: entry["tables"] == 1)
    assert publisher.names(ours) == ["t"]


def test_entries_of_others_are_reported_and_never_touched(publisher: Publisher, elsewhere: Path) -> None:
    ours = new_name("contested")
    publisher.namespace(ours)
    publisher.create(ours, "a")
    publisher.create(ours, "b")
    root = str(publisher.settings.get("root", elsewhere))
    theirs = f"{root}/{new_name('theirs')}"
    lance.write_dataset(ROWS, theirs)
    publisher.catalog.create_namespace(Id((ours,)), {})
    publisher.catalog.declare_table(Id((ours, "a")), theirs, {})
    publisher.publish(namespace=[ours])

    entry = publisher.wait()
    assert entry["tables"] == 1 and entry["number_of_problems"] == 1
    assert entry["problems"][0]["id"] == [ours, "a"]
    assert "somebody else" in entry["problems"][0]["problem"]
    assert publisher.there(ours, "a").location == theirs
    publisher.drop(ours, "a")  # ours: theirs stays
    publisher.wait(lambda entry: entry["number_of_problems"] == 0)
    assert publisher.there(ours, "a").location == theirs

    # An entry of ours that somebody has replaced is theirs from then on.
    publisher.catalog.deregister_table(Id((ours, "b")))
    theirs_too = f"{root}/{new_name('theirs')}"
    lance.write_dataset(ROWS, theirs_too)
    publisher.catalog.declare_table(Id((ours, "b")), theirs_too, {})
    entry = publisher.sync()
    assert entry["tables"] == 0 and entry["problems"][0]["id"] == [ours, "b"]
    publisher.call("drop", publication=publisher.name, remove_entries=True)
    assert publisher.names(ours) == ["a", "b"]


def test_an_entry_that_was_removed_there_comes_back_with_a_sync(publisher: Publisher) -> None:
    ours = new_name("lost")
    publisher.namespace(ours)
    location = publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.sync()
    publisher.catalog.deregister_table(Id((ours, "t")))
    assert publisher.sync()["in_step"]
    assert publisher.there(ours, "t").location == location


@pytest.mark.parametrize("remove", [False, True])
def test_dropping_a_publication_leaves_or_removes_its_entries(publisher: Publisher, remove: bool) -> None:
    ours = new_name("dropped")
    publisher.namespace(ours)
    location = publisher.create(ours, "t")
    publisher.publish(namespace=[ours])
    publisher.sync()
    response = publisher.call("drop", publication=publisher.name, remove_entries=remove)
    assert response == {}
    assert publisher.names(ours) == ([] if remove else ["t"])
    assert lance.dataset(location).count_rows() == 3
    refused = publisher.wire.http.post("/tiltyard/v1/publication/sync", json={"publication": publisher.name})
    assert refused.status_code == 400 and check_error(refused) == 13


def test_target_is_the_namespace_there(publisher: Publisher) -> None:
    ours, target = new_name("mapped"), new_name("target")
    publisher.namespace(ours)
    publisher.namespace(ours, "deep")
    publisher.create(ours, "a")
    publisher.create(ours, "deep", "b")
    publisher.publish(namespace=[ours], target=[target])
    publisher.sync()
    assert publisher.names(target) == ["a"] and publisher.names(target, "deep") == ["b"]


def test_tables_that_the_other_catalog_cannot_hold_are_reported(
    server: ServerProcess, wire: Wire, elsewhere: Path
) -> None:
    settings = {"root": str(server.root), "mode": "manifest"}
    publisher = Publisher(wire, "dir", settings, open_catalog("dir", settings))
    ours = new_name("impossible")
    publisher.namespace(ours)
    publisher.create(ours, "ä")
    publisher.create(ours, "fine")
    lance.write_dataset(ROWS, f"{elsewhere}/{ours}")
    wire.good(wire.table([ours, "far"], "register", {"location": f"{elsewhere}/{ours}"}))
    publisher.publish(namespace=[ours])
    entry = publisher.sync()
    problems = {each["id"][-1]: each["problem"] for each in entry["problems"]}
    assert entry["tables"] == 1 and set(problems) == {"ä", "far"}
    assert "cannot hold the name 'ä'" in problems["ä"]
    assert "not below the directory's root" in problems["far"]
    assert publisher.names(ours) == ["fine"]


@pytest.mark.parametrize(
    ("request_fields", "code", "sentence"),
    [
        ({"kind": "nothing", "settings": {}}, 13, "no kind of mount"),
        ({"kind": "lance", "settings": {"uri": "http://127.0.0.1:1", "timeout": 2}}, 17, ""),
        ({"kind": "lance", "settings": {"uri": "http://127.0.0.1:1", "token": "plain"}}, 13, "plain text"),
        ({"kind": "lance", "settings": {"uri": "http://127.0.0.1:1", "token": "env:HOME"}}, 13, "TILTYARD_MOUNT_"),
        ({"kind": "dir", "settings": {"root": "/"}}, 15, "not below"),
        ({"namespace": ["not there"]}, 1, "not there"),
        ({"publication": "a,b"}, 13, "comma"),
    ],
)
def test_create_publication_that_cannot_be_is_refused(
    server: ServerProcess, wire: Wire, request_fields: Mapping[str, Any], code: int, sentence: str
) -> None:
    fields = {"publication": "refused", "kind": "dir", "settings": {"root": str(server.root)}, **request_fields}
    response = wire.http.post("/tiltyard/v1/publication/create", json=fields)
    assert response.status_code >= 400 and check_error(response) == code, response.text
    assert sentence in response.json()["error"]
    listed = wire.good(wire.http.get("/tiltyard/v1/publication/list"))["publications"]
    assert "refused" not in [entry["publication"] for entry in listed]


def test_a_second_publication_of_one_name_is_refused(publisher: Publisher) -> None:
    publisher.publish(namespace=[])
    response = publisher.wire.http.post(
        "/tiltyard/v1/publication/create",
        json={"publication": publisher.name, "kind": publisher.kind, "settings": publisher.settings},
    )
    assert response.status_code == 400 and "already" in response.json()["error"]


def test_columns_are_a_property_of_the_entry_and_follow(
    server: ServerProcess, wire: Wire, other: ServerProcess
) -> None:
    settings = {"uri": other.url}
    publisher = Publisher(wire, "lance", settings, open_catalog("lance", settings))
    ours = new_name("columns")
    publisher.namespace(ours)
    publisher.create(ours, "t")
    publisher.publish(namespace=[ours], columns=True)
    publisher.sync()

    def columns() -> Sequence[str]:
        return [each["name"] for each in json.loads(publisher.there(ours, "t").properties["tiltyard.columns"])]

    assert columns() == ["x"]
    wire.good(wire.table([ours, "t"], "add_columns", {"new_columns": [{"name": "y", "expression": "x + 1"}]}))
    publisher.sync()
    assert columns() == ["x", "y"]


def test_namespace_that_takes_the_name_of_a_published_one_is_not_published(publisher: Publisher) -> None:
    ours = new_name("films")
    publisher.namespace(ours)
    publisher.create(ours, "a")
    publisher.publish(namespace=[ours])
    assert publisher.wait()["tables"] == 1
    dropped = publisher.wire.http.post(f"/v1/namespace/{ours}/drop", json={"behavior": "Cascade"})
    assert dropped.status_code == 200, dropped.text
    publisher.namespace(ours)
    publisher.create(ours, "secret_plans")
    publisher.sync()
    assert publisher.wait()["tables"] == 0
    assert publisher.names(ours) == []
