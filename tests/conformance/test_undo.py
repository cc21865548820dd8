"""Undrop: dropped tables and namespaces can be restored, by HTTP and from the command line, for a retention time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lance.namespace as rust
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.conformance.conftest import Raw
from tests.services.server import ServerProcess
from tiltyard.bootstrap import open_services
from tiltyard.catalog import garbage
from tiltyard.catalog.garbage import UnknownFolder, find_unknown_folders
from tiltyard.cli import main
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard_conformance.cases import World

ROWS = pa.table({"id": [1, 2, 3]})
Fresh = Callable[[str], str]


@pytest.fixture
def world(raw: Raw, server: ServerProcess) -> World:
    return World(raw, server.options)


def code(response: Any) -> tuple[int, int]:
    return response.status_code, response.json()["code"]


def dropped(world: World, name: str) -> list[dict[str, Any]]:
    """List dropped tables of one name, newest first."""
    tables, token = [], None
    while True:
        page = world.post("/tiltyard/v1/table/dropped", {"limit": 50, "page_token": token})
        tables += [entry for entry in page["tables"] if entry["id"] == name.split("$")]
        token = page.get("page_token")
        if not token:
            return tables


def test_undrop_table_brings_back_data_versions_and_properties(world: World, rest: Any, remote: Any) -> None:
    [name] = world.table()
    remote.open_table(name).delete("id = 1")
    world.post(f"/v1/table/{name}/update", {"updates": [["text", "'x'"]], "properties": {"owner": "ada"}})
    before = world.describe([name])
    remote.drop_table(name)
    assert code(world.raw.post(f"/v1/table/{name}/describe")) == (404, 4)
    [entry] = dropped(world, name)
    assert (entry["kind"], entry["location"]) == ("dropped", before["location"])
    assert entry["due_at_millis"] - entry["removed_at_millis"] == 7 * 24 * 3600 * 1000
    response = world.post(f"/tiltyard/v1/table/{name}/undrop")
    assert (response["id"], response["location"]) == ([name], before["location"])
    after = world.describe([name])
    assert {key: after[key] for key in ("version", "properties", "schema")} == {
        key: before[key] for key in ("version", "properties", "schema")
    }
    assert remote.open_table(name).count_rows() == 2
    remote.open_table(name).add([{"id": 9, "text": "new", "vector": [0.0, 0.0]}])
    assert world.count([name]) == 3
    assert len(rest.list_table_versions(rust.ListTableVersionsRequest(id=[name])).versions) == after["version"] + 1
    assert dropped(world, name) == []
    assert code(world.raw.post(f"/tiltyard/v1/table/{name}/undrop")) == (404, 4)


def test_undrop_table_whose_name_was_given_again_needs_another(world: World, fresh: Fresh) -> None:
    [name] = world.table()
    old = dict(world.describe([name]))
    world.post(f"/v1/table/{name}/drop")
    world.post(f"/v1/table/{name}/declare")
    assert code(world.raw.post(f"/tiltyard/v1/table/{name}/undrop")) == (409, 5)
    new, [space] = fresh("again"), world.namespace()
    body = {"new_table_name": new, "new_namespace_id": [space]}
    assert world.post(f"/tiltyard/v1/table/{name}/undrop", body)["id"] == [space, new]
    assert world.describe([f"{space}${new}"])["location"] == old["location"]
    assert world.count([f"{space}${new}"]) == 3


def test_undrop_table_takes_the_newest_or_the_one_that_is_named(world: World, fresh: Fresh) -> None:
    name = fresh("many")
    for _ in range(3):
        world.post(f"/v1/table/{name}/declare")
        world.post(f"/v1/table/{name}/drop")
    newest, _, oldest = dropped(world, name)
    body = {"dropped_id": oldest["dropped_id"], "new_table_name": f"{name}_oldest"}
    assert world.post(f"/tiltyard/v1/table/{name}/undrop", body)["location"] == oldest["location"]
    assert world.post(f"/tiltyard/v1/table/{name}/undrop")["location"] == newest["location"]


def test_register_where_a_dropped_table_lies_is_told_of_undrop(world: World, fresh: Fresh) -> None:
    [name] = world.table()
    location = world.post(f"/v1/table/{name}/drop")["location"]
    response = world.raw.post(f"/v1/table/{fresh('r')}/register", {"location": location})
    assert code(response) == (400, 13) and "undrop" in response.json()["error"]


def test_declare_around_or_inside_a_deregistered_table_is_told_of_undrop(world: World, fresh: Fresh) -> None:
    name, root = fresh("kept"), world.describe(world.table())["location"].rpartition("/")[0]
    folder = f"{root}/{name}"
    world.post(f"/v1/table/{name}/declare", {"location": f"{folder}/a"})
    world.post(f"/v1/table/{name}/deregister")
    for location in (folder, f"{folder}/a/b"):
        response = world.raw.post(f"/v1/table/{fresh('r')}/declare", {"location": location})
        assert code(response) == (400, 13) and "undrop" in response.json()["error"]
    assert world.post(f"/tiltyard/v1/table/{name}/undrop")["location"] == f"{folder}/a"


def test_undrop_table_after_deregister_or_replacement(world: World) -> None:
    [name] = world.table()
    old = world.post(f"/v1/table/{name}/deregister")["location"]
    assert dropped(world, name)[0]["kind"] == "deregistered"
    assert world.post(f"/tiltyard/v1/table/{name}/undrop")["location"] == old
    [second] = world.table()
    location = world.post(f"/v1/table/{second}/deregister")["location"]
    world.post(f"/v1/table/{name}/register", {"location": location, "mode": "Overwrite"})
    assert world.post(f"/tiltyard/v1/table/{name}/undrop", {"new_table_name": f"{name}_old"})["location"] == old
    assert world.count([f"{name}_old"]) == 3
    assert code(world.raw.post(f"/tiltyard/v1/table/{second}/undrop")) == (400, 13)  # registered again


def test_undrop_namespace_brings_back_all_that_was_in_it(world: World, fresh: Fresh) -> None:
    [space] = world.namespace()
    world.post(f"/v1/namespace/{space}$inner/create", {"properties": {"deep": "yes"}})
    rows = world.table()[0]
    world.post(f"/v1/table/{rows}/rename", {"new_table_name": "t", "new_namespace_id": [space, "inner"]})
    world.post(f"/v1/table/{space}$d/declare")
    [transaction] = world.post(f"/v1/namespace/{space}/drop", {"behavior": "Cascade"})["transaction_id"]
    assert world.post(f"/v1/transaction/{transaction}/describe")["status"] == "Succeeded"
    dropped_namespaces = world.post("/tiltyard/v1/namespace/dropped")["namespaces"]
    assert [space] in [entry["id"] for entry in dropped_namespaces]
    assert code(world.raw.post(f"/tiltyard/v1/namespace/{space}$inner/undrop")) == (404, 1)
    assert code(world.raw.post(f"/tiltyard/v1/table/{space}$d/undrop")) == (404, 1)
    world.post(f"/v1/namespace/{space}/create")
    assert code(world.raw.post(f"/tiltyard/v1/namespace/{space}/undrop")) == (409, 2)
    new = fresh("back")
    response = world.post(f"/tiltyard/v1/namespace/{space}/undrop", {"new_namespace_id": [new]})
    assert (response["id"], response["tables"], response["properties"]) == ([new], 2, {"k": "v"})
    assert world.post(f"/v1/namespace/{new}$inner/describe")["properties"] == {"deep": "yes"}
    assert world.count([f"{new}$inner$t"]) == 3
    world.post(f"/v1/namespace/{new}/create", {"mode": "Overwrite"})
    world.post(f"/v1/namespace/{new}/drop")
    assert world.post(f"/tiltyard/v1/namespace/{new}/undrop")["tables"] == 2


def test_a_namespace_undropped_below_a_newer_one_is_dropped_and_undropped_with_it(world: World, fresh: Fresh) -> None:
    [old] = world.namespace()
    world.post(f"/v1/table/{old}$d/declare")
    world.post(f"/v1/namespace/{old}/drop", {"behavior": "Cascade"})
    [home] = world.namespace()
    world.post(f"/tiltyard/v1/namespace/{old}/undrop", {"new_namespace_id": [home, old]})
    world.post(f"/v1/namespace/{home}/drop", {"behavior": "Cascade"})
    assert world.post(f"/tiltyard/v1/namespace/{home}/undrop")["tables"] == 1
    world.post(f"/v1/namespace/{home}/create", {"mode": "Overwrite"})
    new = fresh("back")
    assert world.post(f"/tiltyard/v1/namespace/{home}/undrop", {"new_namespace_id": [new]})["tables"] == 1
    assert world.post(f"/v1/table/{new}${old}$d/exists") == {}


def test_gc_and_repair_by_http(empty_server: ServerProcess) -> None:
    world = World(Raw(empty_server.url), empty_server.options)
    [name] = world.table()
    response = world.post(f"/tiltyard/v1/table/{name}/gc", {"dry_run": True})
    assert (response["num_files"], response["num_bytes"], response["files"]) == (0, 0, [])
    world.wait(world.post(f"/tiltyard/v1/table/{name}/gc")["transaction_id"])
    transaction = world.post("/tiltyard/v1/gc", {"dry_run": True})["transaction_id"]
    world.wait(transaction)
    assert int(world.post(f"/v1/transaction/{transaction}/describe")["properties"]["tables"]) >= 1
    assert world.post(f"/tiltyard/v1/table/{name}/repair", {"dry_run": True}) == {"findings": []}
    assert world.count([name]) == 3


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a retention time of three seconds."""
    running = ServerProcess(tmp_path_factory.mktemp("hasty"), "--retention-days", str(3 / 86400))
    yield running
    running.stop()


def test_a_dropped_table_whose_time_is_over_is_deleted_for_good(hasty: ServerProcess) -> None:
    world = World(Raw(hasty.url), {})
    [name] = world.table()
    folder = Path(world.post(f"/v1/table/{name}/drop")["location"])
    assert folder.exists()
    until = time.monotonic() + 90
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not folder.exists()
    assert code(world.raw.post(f"/tiltyard/v1/table/{name}/undrop")) == (404, 4)


def tiltyard(root: Path | str, *arguments: str, status: int = 0) -> str:
    """Run a command in this process (starting another costs seconds); return its output."""
    done = CliRunner().invoke(main, [*arguments, "--root", str(root)])
    assert done.exit_code == status, done.output
    return done.stdout + (done.stderr if status else "")


def test_commands_undrop_gc_and_repair_beside_a_running_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        world = World(Raw(server.url), {})
        [name], [space] = world.table(), world.namespace()
        location = Path(world.describe([name])["location"])
        world.post(f"/v1/table/{space}$d/declare")
        world.post(f"/v1/table/{name}/drop")
        world.post(f"/v1/namespace/{space}/drop", {"behavior": "Cascade"})
        result = tiltyard(tmp_path, "undrop")
        assert "dropped table" in result and name in result and f"{space}.d" in result and "namespace" in result
        assert f"{name} is back" in tiltyard(tmp_path, "undrop", name)
        assert f"{space} is back, with 1 tables" in tiltyard(tmp_path, "undrop", "--namespace", space)
        assert "No dropped table" in tiltyard(tmp_path, "undrop", name, status=4)
        assert world.count([name]) == 3
        stray = location / "_versions" / f"{2**64 - 9}.manifest-left"
        stray.write_bytes(b"x" * 2048)
        assert "Found 0 files" in tiltyard(tmp_path, "gc", name, "--dry-run")
        output = tiltyard(tmp_path, "gc", "--dry-run", "--gc-safety-days", "0")
        assert "2.0 KiB  staged manifest" in output and "Found 1 files, 2.0 KiB." in output and stray.exists()
        assert "Removed 1 files" in tiltyard(tmp_path, "gc", name, "--gc-safety-days", "0")
        assert not stray.exists()
        assert tiltyard(tmp_path, "repair") == "Nothing is wrong.\n"
        lance.dataset(location).delete("id = 1")
        assert "Versions 2 were committed bypassing the server. They were recorded." in tiltyard(
            tmp_path, "repair", name
        )
        (location / "data").rename(tmp_path / "away")
        assert f"{name}: missing files:" in tiltyard(tmp_path, "repair", name)
        assert json.loads(world.raw.post(f"/v1/table/{name}/exists").text) == {}
        for command in ("gc", "repair", "undrop"):  # a name that a script left empty is not for all
            tiltyard(tmp_path, command, "", status=2)
    finally:
        server.stop()


def test_gc_command_of_one_table_takes_no_unknown_folders(tmp_path: Path) -> None:
    open_services(Settings(root=str(tmp_path))).close()
    assert "leave out the table's name" in tiltyard(tmp_path, "gc", "films", "--unknown-folders", status=1)


def test_gc_command_counts_the_unknown_folders_that_it_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back, gone = (str(tmp_path / f"{name}.lance") for name in ("back", "gone"))
    for folder in (back, gone):
        lance.write_dataset(ROWS, folder)

    def look_and_let_register(ctx: Context) -> list[UnknownFolder]:
        folders = find_unknown_folders(ctx)
        ctx.store.insert_table(("back",), back, {}, registered=True)
        return folders

    open_services(Settings(root=str(tmp_path))).close()  # as a server has left it
    monkeypatch.setattr(garbage, "find_unknown_folders", look_and_let_register)
    output = tiltyard(tmp_path, "gc", "--unknown-folders", "--gc-safety-days", "0")
    assert back in output and gone in output and "Removed 1 unknown folders" in output
    assert lance.dataset(back).count_rows() == 3 and not Path(gone).exists()
