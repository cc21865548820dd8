"""Nothing is lost below a mount that the server does not own: drops, sweeps, cascades, and mounts themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.mounts.backends import local_directory
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

ROWS = pa.table({"id": [1, 2, 3]})
RETENTION_SECONDS = 2


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "lake"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def catalog(lake: Path) -> Iterator[MountedCatalog]:
    """Another client of the mounted folder."""
    catalog = local_directory(lake, "both").open()
    yield catalog
    catalog.close()


@pytest.fixture
def server(tmp_path: Path, lake: Path) -> Iterator[ServerProcess]:
    days = str(RETENTION_SECONDS / 86400)
    server = ServerProcess(tmp_path / "root", "--retention-days", days)
    with Wire(server.url) as wire:
        mount(wire, ["lake"], lake, max_age_millis=0)
    yield server
    server.stop()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as wire:
        yield wire


def mount(wire: Wire, path: list[str], root: Path, **more: Any) -> None:
    body = {"kind": "dir", "settings": {"root": str(root)}, **more}
    response = wire.http.post(f"/tiltyard/v1/mount/{'$'.join(path)}/create", json=body)
    assert response.status_code == 200, response.text


def make_table(wire: Wire, path: list[str]) -> Path:
    created = wire.call("table", path, "create", stream(ROWS))
    assert created.status_code == 200, created.text
    return Path(created.json()["location"])


def wait_until_gone(folder: Path) -> None:
    until = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < until, "the folder is still there"
        time.sleep(0.2)


def test_drop_removes_the_entry_at_once_and_the_folder_after_its_retention(wire: Wire, catalog: MountedCatalog) -> None:
    folder = make_table(wire, ["lake", "t"])
    assert wire.call("table", ["lake", "t"], "drop").status_code == 200
    assert catalog.list_tables(Id()).names == ()
    assert folder.exists()
    refused = wire.http.post("/tiltyard/v1/table/lake$t/undrop", json={})
    assert check_error(refused) == 0
    assert "is not kept here" in refused.json()["error"]
    wait_until_gone(folder)


def test_folder_that_was_written_to_since_the_drop_stays(wire: Wire, server: ServerProcess) -> None:
    wire.call("namespace", ["lake", "a"], "create")
    folder, other = make_table(wire, ["lake", "a", "t"]), make_table(wire, ["lake", "a", "other"])
    for name in ("t", "other"):
        assert wire.call("table", ["lake", "a", name], "drop").status_code == 200
    lance.write_dataset(ROWS, str(folder), mode="append")
    wait_until_gone(other)
    time.sleep(1)
    assert lance.dataset(str(folder)).count_rows() == 6
    assert any("was written to after" in line for line in server.log)


def test_table_that_is_back_before_its_folder_is_due_keeps_it(wire: Wire, catalog: MountedCatalog) -> None:
    wire.call("namespace", ["lake", "a"], "create")
    folder, other = make_table(wire, ["lake", "a", "t"]), make_table(wire, ["lake", "a", "other"])
    for name in ("t", "other"):
        assert wire.call("table", ["lake", "a", name], "drop").status_code == 200
    catalog.declare_table(Id(("a", "back")), str(folder), {})
    assert wire.call("table", ["lake", "a", "back"], "count_rows").json() == 3
    wait_until_gone(other)
    time.sleep(1)
    assert wire.call("table", ["lake", "a", "back"], "count_rows").json() == 3


def test_deregister_leaves_the_files(wire: Wire, catalog: MountedCatalog) -> None:
    wire.call("namespace", ["lake", "a"], "create")
    folder = make_table(wire, ["lake", "a", "t"])
    assert wire.call("table", ["lake", "a", "t"], "deregister").json()["location"] == str(folder)
    assert catalog.list_tables(Id(("a",))).names == ()
    assert lance.dataset(str(folder)).count_rows() == 3
    again = wire.call("table", ["lake", "a", "u"], "register", {"location": str(folder)})
    assert again.status_code == 200, again.text
    assert wire.call("table", ["lake", "a", "u"], "count_rows").json() == 3


def test_drop_refuses_a_folder_that_holds_another_table(wire: Wire, catalog: MountedCatalog, lake: Path) -> None:
    wire.call("namespace", ["lake", "a"], "create")
    inner = lake / "outer" / "inner"
    lance.write_dataset(ROWS, str(lake / "outer"))
    lance.write_dataset(ROWS, str(inner))
    for name, place in (("outer", lake / "outer"), ("inner", inner)):
        catalog.declare_table(Id(("a", name)), str(place), {})
    assert wire.call("table", ["lake", "a", "outer"], "count_rows").json() == 3
    assert check_error(wire.call("table", ["lake", "a", "inner"], "count_rows")) == 19
    assert check_error(wire.call("table", ["lake", "a", "outer"], "drop")) == 13
    assert catalog.get_table(Id(("a", "outer"))).location
    assert lance.dataset(str(inner)).count_rows() == 3


def test_dropping_what_is_around_a_mount_is_refused(wire: Wire, tmp_path: Path) -> None:
    theirs = tmp_path / "root" / "theirs"
    theirs.mkdir()
    wire.call("namespace", ["around"], "create")
    mount(wire, ["around", "theirs"], theirs)
    folder = make_table(wire, ["around", "theirs", "t"])
    for body in ({"behavior": "Cascade"}, {}):
        assert check_error(wire.call("namespace", ["around"], "drop", body)) == 3
    assert check_error(wire.call("namespace", ["around"], "create", {"mode": "overwrite"})) == 3
    assert check_error(wire.call("namespace", ["around", "theirs"], "drop", {"behavior": "Cascade"})) == 13
    assert lance.dataset(str(folder)).count_rows() == 3
    assert wire.http.post("/tiltyard/v1/mount/around$theirs/remove", json={}).status_code == 200
    assert lance.dataset(str(folder)).count_rows() == 3
    assert wire.call("namespace", ["around"], "drop").status_code == 200


def test_mount_is_bounded_by_the_servers_roots_and_its_own_locations(
    wire: Wire, catalog: MountedCatalog, tmp_path: Path, lake: Path
) -> None:
    outside = {"kind": "dir", "settings": {"root": str(tmp_path)}}
    refused = wire.http.post("/tiltyard/v1/mount/outside/create", json=outside)
    assert check_error(refused) == 15
    lance.write_dataset(ROWS, str(lake / "secret"))
    catalog.create_namespace(Id(("a",)), {})
    catalog.declare_table(Id(("a", "t")), str(lake / "secret"), {})
    narrow = {"allowed_locations": [str(lake / "public")]}
    assert wire.http.post("/tiltyard/v1/mount/lake/alter", json=narrow).status_code == 200
    for action in ("describe", "count_rows", "drop"):
        assert check_error(wire.call("table", ["lake", "a", "t"], action)) == 15
    assert check_error(wire.call("table", ["lake", "a", "new"], "create", stream(ROWS))) == 15
    assert wire.call("namespace", ["lake", "a"], "table/list", method="GET").json()["tables"] == ["t"]
    assert catalog.list_tables(Id(("a",))).names == ("t",)


def test_secret_in_plain_text_or_not_meant_for_mounts_is_refused(wire: Wire, server: ServerProcess) -> None:
    for token in ("plain", "env:HOME", "file:/etc/passwd"):
        mount = {"kind": "lance", "settings": {"uri": "http://127.0.0.1:1", "token": token}}
        refused = wire.http.post("/tiltyard/v1/mount/m/create", json=mount)
        assert check_error(refused) == 13, token
    assert check_error(wire.http.post("/tiltyard/v1/mount/m/create", json={"kind": "nosuch"})) == 13
    assert wire.call("namespace", [], "list", method="GET").json()["namespaces"] == ["lake"]


def test_batches_and_moves_stop_at_the_mount(wire: Wire, lake: Path) -> None:
    make_table(wire, ["own"])
    make_table(wire, ["lake", "t"])
    moved = wire.call("table", ["own"], "rename", {"new_table_name": "x", "new_namespace_id": ["lake"]})
    assert check_error(moved) == 0
    moved = wire.call("table", ["lake", "t"], "rename", {"new_table_name": "x", "new_namespace_id": []})
    assert check_error(moved) == 0
    for operation in ({"declare_table": {"id": ["lake", "b"]}}, {"deregister_table": {"id": ["lake", "t"]}}):
        batch = {"operations": [{"declare_table": {"id": ["with"]}}, operation]}
        refused = wire.http.post("/v1/table/batch-commit", json=batch)
        assert check_error(refused) == 0
        assert "below a mount" in refused.json()["error"]
    assert check_error(wire.call("table", ["with"], "exists")) == 4
    assert wire.call("table", ["lake", "t"], "count_rows").json() == 3


def test_failed_create_leaves_no_entry(wire: Wire, catalog: MountedCatalog) -> None:
    broken = stream(ROWS)[:-40]
    assert check_error(wire.call("table", ["lake", "t"], "create", broken)) == 13
    assert catalog.list_tables(Id()).names == ()
    make_table(wire, ["lake", "t"])
    assert check_error(wire.call("table", ["lake", "t"], "create", stream(ROWS))) == 5
    assert wire.call("table", ["lake", "t"], "create", stream(ROWS), query={"mode": "exist_ok"}).status_code == 200
    assert wire.call("table", ["lake", "t"], "create", stream(ROWS), query={"mode": "overwrite"}).status_code == 200
    assert wire.call("table", ["lake", "t"], "count_rows").json() == 3


def test_repeat_of_a_keyed_create_gets_the_same_response(wire: Wire) -> None:
    headers = {"idempotency-key": "k1"}
    first = wire.http.post("/v1/namespace/lake$a/create", json={"properties": {"x": "1"}}, headers=headers)
    again = wire.http.post("/v1/namespace/lake$a/create", json={"properties": {"x": "1"}}, headers=headers)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    for _ in range(2):
        made = wire.http.post("/v1/table/lake$a$t/create", content=stream(ROWS), headers={"idempotency-key": "k2"})
        assert made.status_code == 200, made.text
    assert wire.call("table", ["lake", "a", "t"], "count_rows").json() == 3


def test_settings_make_the_mount_and_another_server_sees_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "root" / "late").mkdir(parents=True)
    mounts = {"deep": {"kind": "dir", "namespace": "a$b$lake", "root": str(tmp_path / "lake")}}
    db = f"sqlite:///{tmp_path}/catalog.db"
    environ = {"TILTYARD_MOUNTS": json.dumps(mounts)}
    one = ServerProcess(tmp_path / "root", "--db", db, environ=environ)
    two = ServerProcess(tmp_path / "root", "--db", db)
    try:
        with Wire(one.url) as first, Wire(two.url) as second:
            make_table(first, ["a", "b", "lake", "t"])
            assert second.call("table", ["a", "b", "lake", "t"], "count_rows").status_code in (200, 403)
            mount(second, ["late"], tmp_path / "root" / "late")
            until = time.monotonic() + 10
            while first.http.post("/v1/table/late$t/create", content=stream(ROWS)).status_code == 503:
                assert time.monotonic() < until
            assert first.call("namespace", ["late"], "table/list", method="GET").json()["tables"] == ["t"]
            assert second.call("table", ["late", "t"], "count_rows").json() == 3
    finally:
        one.stop()
        two.stop()
