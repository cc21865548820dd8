"""Grants and policies below a mount: who has them, what they bind, and that they go to no other table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.mounts.backends import local_directory
from tests.mounts.served.conftest import MOUNT, environ
from tests.services.secured import Secured, secured_server
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

ROWS = pa.table({"id": [1, 2, 3], "secret": ["a", "b", "c"]})
FRESH = 0.0


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[MountedCatalog]:
    """The mounted catalog itself: a folder."""
    (tmp_path / "lake").mkdir()
    catalog = local_directory(tmp_path / "lake", "manifest").open()
    yield catalog
    catalog.close()


@pytest.fixture
def secured(tmp_path: Path, catalog: MountedCatalog) -> Iterator[Secured]:
    """A server with callers that looks everything up anew."""
    mounted = environ(local_directory(tmp_path / "lake", "manifest"), tmp_path, FRESH)
    with secured_server(tmp_path / "served", "--retention-days", "0", names=("ann",), environ=mounted) as running:
        yield running


@pytest.fixture
def owner(secured: Secured) -> Wire:
    return secured.wire("administrator")


@pytest.fixture
def ann(secured: Secured) -> Wire:
    return secured.wire("ann")


def admin(wire: Wire, path: str, **body: Any) -> dict[str, Any]:
    """Call an operation of ours; it succeeds."""
    response = wire.http.post(f"/tiltyard/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def grant(owner: Wire, path: list[str], *privileges: str, kind: str = "table") -> None:
    admin(owner, "grant/add", object_kind=kind, id=path, grantee="ann", privileges=privileges)


def make_table(owner: Wire, *names: str) -> list[str]:
    path = [MOUNT, *names]
    for depth in range(2, len(path)):
        owner.call("namespace", path[:depth], "create", {"mode": "exist_ok"})
    assert owner.call("table", path, "create", stream(ROWS)).status_code == 200
    return path


def test_caller_without_a_grant_sees_neither_mount_nor_tables(owner: Wire, ann: Wire) -> None:
    table = make_table(owner, "a", "t")
    assert check_error(ann.call("table", table, "describe")) == 1
    assert check_error(ann.call("table", [*table[:-1], "missing"], "describe")) == 1
    assert check_error(ann.call("namespace", [MOUNT, "a"], "describe")) == 1
    assert check_error(ann.call("namespace", [MOUNT], "table/list", method="GET")) == 1
    assert ann.call("namespace", [], "list", method="GET").json()["namespaces"] == []
    assert check_error(ann.call("table", table, "count_rows")) == 1


def test_grant_on_a_table_shows_it_and_the_way_to_it_alone(owner: Wire, ann: Wire) -> None:
    table = make_table(owner, "a", "t")
    make_table(owner, "a", "other")
    make_table(owner, "b", "other")
    grant(owner, table, "read")
    assert ann.call("table", table, "count_rows").json() == 3
    assert ann.call("namespace", [], "list", method="GET").json()["namespaces"] == [MOUNT]
    assert ann.call("namespace", [MOUNT], "list", method="GET").json()["namespaces"] == ["a"]
    assert ann.call("namespace", [MOUNT, "a"], "table/list", method="GET").json()["tables"] == ["t"]
    assert check_error(ann.call("table", [MOUNT, "a", "other"], "count_rows")) == 4
    assert check_error(ann.call("table", table, "drop")) == 15
    assert check_error(ann.call("namespace", [MOUNT, "a"], "create")) == 15


def test_grant_on_the_mount_covers_what_others_add_later(owner: Wire, ann: Wire, catalog: MountedCatalog) -> None:
    grant(owner, [MOUNT], "read", "create", kind="namespace")
    catalog.create_namespace(Id(("later",)), {})
    location = catalog.declare_table(Id(("later", "t")), None, {}).location
    lance.write_dataset(ROWS, location)
    assert ann.call("table", [MOUNT, "later", "t"], "count_rows").json() == 3
    assert ann.call("table", [MOUNT, "later", "mine"], "create", stream(ROWS)).status_code == 200
    assert ann.call("table", [MOUNT, "later", "mine"], "insert", stream(ROWS)).status_code == 200
    assert check_error(ann.call("table", [MOUNT, "later", "t"], "insert", stream(ROWS))) == 15


def test_mask_and_filter_bind_below_a_mount(owner: Wire, ann: Wire) -> None:
    table = make_table(owner, "a", "t")
    grant(owner, table, "read")
    policy = {"name": "p", "filter": "id > 1", "masks": [{"column": "secret", "mask": "null"}]}
    set_policy(owner, table, policy)
    assert ann.call("table", table, "count_rows").json() == 2
    rows = query(ann, table)
    assert rows.column("secret").to_pylist() == [None, None]
    assert query(owner, table).num_rows == 3


def set_policy(owner: Wire, table: list[str], policy: dict[str, Any]) -> None:
    response = owner.http.post(f"/tiltyard/v1/table/{'$'.join(table)}/policy/set", json=policy)
    assert response.status_code == 200, response.text


def query(wire: Wire, table: list[str]) -> pa.Table:
    response = wire.call("table", table, "query", {"k": 10, "vector": {}})
    assert response.status_code == 200, response.text
    return pa.ipc.open_file(response.content).read_all()


def test_table_that_takes_a_name_gets_none_of_its_grants(owner: Wire, ann: Wire, catalog: MountedCatalog) -> None:
    table, below = make_table(owner, "a", "t"), Id(("a", "t"))
    grant(owner, table, "read")
    assert ann.call("table", table, "count_rows").json() == 3
    before = catalog.deregister_table(below).location
    lance.write_dataset(ROWS, catalog.declare_table(below, None, {}).location)
    assert catalog.get_table(below).location != before
    assert check_error(ann.call("table", table, "count_rows")) == 1
    assert owner.call("table", table, "count_rows").json() == 3
    grants = admin(owner, "grant/list", object_kind="table", id=table)["grants"]
    assert grants == []


def test_table_of_the_same_name_and_place_keeps_its_grants(owner: Wire, ann: Wire, catalog: MountedCatalog) -> None:
    table, below = make_table(owner, "a", "t"), Id(("a", "t"))
    grant(owner, table, "read")
    place = catalog.deregister_table(below).location
    assert check_error(owner.call("table", table, "count_rows")) == 4
    catalog.declare_table(below, place, {})
    assert ann.call("table", table, "count_rows").json() == 3


def test_policy_stays_with_the_place_when_others_rename_the_entry(
    owner: Wire, ann: Wire, catalog: MountedCatalog
) -> None:
    table, below = make_table(owner, "a", "t"), Id(("a", "t"))
    grant(owner, [MOUNT], "read", kind="namespace")
    set_policy(owner, table, {"name": "p", "filter": "id > 1"})
    assert ann.call("table", table, "count_rows").json() == 2
    place = catalog.deregister_table(below).location
    catalog.declare_table(Id(("a", "renamed")), place, {})
    assert ann.call("table", [MOUNT, "a", "renamed"], "count_rows").json() == 2
    assert check_error(ann.call("table", table, "count_rows")) == 4


def test_two_entries_with_one_place_are_not_both_served(owner: Wire, catalog: MountedCatalog) -> None:
    table = make_table(owner, "a", "t")
    place = catalog.get_table(Id(("a", "t"))).location
    catalog.declare_table(Id(("a", "twin")), place, {})
    assert owner.call("table", table, "count_rows").json() == 3
    refused = owner.call("table", [MOUNT, "a", "twin"], "count_rows")
    assert check_error(refused) == 19
    assert "location of another table" in refused.json()["error"]


def test_place_of_a_table_of_this_catalog_is_not_served_twice(
    owner: Wire, catalog: MountedCatalog, tmp_path: Path
) -> None:
    owner.call("table", ["own"], "create", stream(ROWS))
    place = tmp_path / "lake" / "shared"
    shutil.copytree(owner.call("table", ["own"], "describe").json()["location"], place)
    assert owner.call("table", ["registered"], "register", {"location": str(place)}).status_code == 200
    catalog.declare_table(Id(("entry",)), str(place), {})
    assert check_error(owner.call("table", [MOUNT, "entry"], "describe")) == 19
    assert owner.call("table", ["registered"], "count_rows").json() == 3


def test_audit_names_what_was_done_below_a_mount(owner: Wire) -> None:
    table = make_table(owner, "a", "t")
    records = admin(owner, "audit", limit=10)["records"]
    assert any(record["operation"] == "CreateTable" and record["object"] == "$".join(table) for record in records)
