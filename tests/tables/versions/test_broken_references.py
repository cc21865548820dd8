"""Files of tags and branches that a loss of power has left empty or torn: they were never acknowledged."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import lance
import pytest
from lance_namespace.errors import TableBranchAlreadyExistsError, TableTagNotFoundError
from tests.tables.bodies import rows, small
from tests.tables.served import Server, ask

from tiltyard.backup.selection import TableState, select_files
from tiltyard.model.spec.models import (
    CountTableRowsRequest,
    CreateSnapshotRequest,
    CreateTableBranchRequest,
    CreateTableRequest,
    CreateTableTagRequest,
    DropSnapshotRequest,
    GetTableTagVersionRequest,
    InsertIntoTableRequest,
    ListTableBranchesRequest,
    ListTableTagsRequest,
    RepairTableRequest,
)
from tiltyard.storage.locks import TooBusyError
from tiltyard.tables.query.query import count_table_rows
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.upkeep.repair import repair_table
from tiltyard.tables.versions import branches, snapshots, tags

LEFT = [b"", bytes(80), b'{"branch":null,"ver']
"""What a loss of power may leave of a file."""


@pytest.fixture
def folder(server: Server) -> Path:
    """The folder of a table with a tag and a branch."""
    create_table(server.ctx, CreateTableRequest(id=["t"]), small(rows(6)))
    create_tag(server, "kept")
    create_branch(server, "kept")
    return Path(server.services.store.describe_table(("t",)).location)


def create_tag(server: Server, name: str) -> None:
    tags.create_table_tag(server.ctx, ask(CreateTableTagRequest, id="t", tag=name, version=1))


def create_branch(server: Server, name: str) -> None:
    branches.create_table_branch(server.ctx, CreateTableBranchRequest(id=["t"], name=name))


def tear(folder: Path, kind: str, name: str, left: bytes = b"") -> Path:
    """Leave a part of the file of a tag or branch, as before the start of the machine."""
    file = folder / "_refs" / kind / f"{name}.json"
    file.write_bytes(left)
    for path in (file, *(folder / "tree").rglob("*.manifest")):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return file


def listed_tags(server: Server) -> list[str]:
    return list(tags.list_table_tags(server.ctx, ListTableTagsRequest(id=["t"])).tags)


def listed_branches(server: Server) -> list[str]:
    return list(branches.list_table_branches(server.ctx, ListTableBranchesRequest(id=["t"])).branches)


@pytest.mark.parametrize("left", LEFT)
def test_list_of_tags_with_a_torn_one_has_the_others(
    server: Server, folder: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tear(folder, "tags", "torn", left)
    with caplog.at_level(logging.WARNING, "tiltyard.storage"):
        assert listed_tags(server) == ["kept"]
        assert listed_tags(server) == ["kept"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} was not whole, as after a loss of power: it is deleted"
    ]
    create_tag(server, "torn")
    assert listed_tags(server) == ["kept", "torn"]


@pytest.mark.parametrize("left", LEFT)
def test_list_of_branches_with_a_torn_one_has_the_others(server: Server, folder: Path, left: bytes) -> None:
    create_branch(server, "torn")
    tear(folder, "branches", "torn", left)
    assert listed_branches(server) == ["kept"]
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], branch="kept"), small(rows(3, 6)))
    assert count_table_rows(server.ctx, CountTableRowsRequest(id=["t"], branch="kept")) == 9
    create_branch(server, "torn")
    assert listed_branches(server) == ["kept", "torn"]
    assert count_table_rows(server.ctx, CountTableRowsRequest(id=["t"], branch="torn")) == 6


def test_branch_that_lost_its_file_after_a_write_keeps_its_folder(server: Server, folder: Path) -> None:
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], branch="kept"), small(rows(3, 6)))
    before = set((folder / "tree").rglob("*"))
    tear(folder, "branches", "kept")
    with pytest.raises(TableBranchAlreadyExistsError):
        create_branch(server, "kept")
    assert before <= set((folder / "tree").rglob("*"))


def test_tag_of_which_a_loss_of_power_left_a_part_is_created_by_its_repeat(server: Server, folder: Path) -> None:
    tear(folder, "tags", "torn")
    with pytest.raises(TableTagNotFoundError):
        tags.get_table_tag_version(server.ctx, ask(GetTableTagVersionRequest, id="t", tag="torn"))
    tear(folder, "tags", "torn")
    create_tag(server, "torn")
    tear(folder, "tags", "snapshot")
    snapshots.create_snapshot(server.ctx, CreateSnapshotRequest(name="snapshot", tables=[["t"]]))
    tear(folder, "tags", "other")
    snapshots.drop_snapshot(server.ctx, DropSnapshotRequest(name="snapshot"))
    assert listed_tags(server) == ["kept", "torn"]


def test_backup_of_a_table_with_torn_references_has_all_that_exists(server: Server, folder: Path) -> None:
    create_branch(server, "torn")
    tear(folder, "branches", "torn")
    tear(folder, "tags", "torn")
    record = server.services.store.describe_table(("t",))
    state = TableState(record.id, "t", record.location, latest={"": 1, "kept": 1, "torn": 1})
    paths = {file.entry.path for file in select_files(server.ctx, state).files}
    assert {path for path in paths if path.startswith("_refs/")} == {"_refs/tags/kept.json", "_refs/branches/kept.json"}


def test_repair_of_a_table_with_torn_references_goes_on(server: Server, folder: Path) -> None:
    tear(folder, "branches", "torn")
    repair_table(server.ctx, ask(RepairTableRequest, id="t"))
    assert lance.dataset(folder).branches.list().keys() == {"kept"}


def test_file_that_is_being_written_stays(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tear(folder, "tags", "new")
    os.utime(file)
    waited = list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        file.write_bytes(b'{"branch":null,"version":1,"manifestSize":300}')

    monkeypatch.setattr("tiltyard.storage.reference_files.time.sleep", sleep)
    assert listed_tags(server) == ["kept", "new"]
    assert [0 < seconds <= 0.5 for seconds in waited] == [True]


@pytest.mark.parametrize(
    ("name", "content"),
    [("tags/notes.txt", b""), ("tags/whole.json", b'{"version": 1}'), ("tags/large.json", b"x" * (1 << 20) + b"x")],
)
def test_files_that_may_be_of_use_stay(server: Server, folder: Path, name: str, content: bytes) -> None:
    file = folder / "_refs" / name
    file.write_bytes(content)
    os.utime(file, (1_700_000_000, 1_700_000_000))
    server.services.storage.manifests.check_references(str(folder))
    assert file.read_bytes() == content


def test_file_that_is_being_changed_is_not_set_aside(server: Server, folder: Path) -> None:
    """The tag that a full disk has cut in an update is put back by the update itself."""
    storage = server.services.storage
    with storage.changing_reference(str(folder), "_refs/tags/kept.json"):
        file = tear(folder, "tags", "torn")
        storage._references._timeout = 0  # as if all of it had passed
        with pytest.raises(TooBusyError):
            storage.manifests.check_references(str(folder))
        assert file.exists()


def test_files_that_do_not_change_are_read_once(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (folder / "_refs").rglob("*.json"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    read = list[str]()

    def describe(file: str) -> None:
        read.append(file.removeprefix(f"{folder}/_refs/"))

    monkeypatch.setattr("tiltyard.storage.reference_files.describe_fault", describe)
    for _ in range(3):
        server.services.storage.manifests.check_references(str(folder))
    assert sorted(read) == ["branches/kept.json", "tags/kept.json"]
    os.utime(folder / "_refs/tags/kept.json", (1_600_000_000, 1_600_000_000))
    server.services.storage.manifests.check_references(str(folder))
    assert len(read) == 4
