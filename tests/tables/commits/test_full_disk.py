"""A full disk cuts files short, and pylance gives them their names all the same: no version names such a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from tests.tables.bodies import Streamed, rows, small
from tests.tables.commits.test_commit import commit_all, create, location, stage, version_of
from tests.tables.rows import calls
from tests.tables.rows.calls import begin_upload, complete_upload
from tests.tables.served import Server, ask

from tiltyard.model.spec.models import (
    AlterTableAddColumnsRequest,
    CreateTableBranchRequest,
    CreateTableRequest,
    CreateTableTagRequest,
    DeleteFromTableRequest,
    InsertIntoTableRequest,
    ListTableTagsRequest,
    MergeInsertIntoTableRequest,
    RestoreTableRequest,
    UpdateTableRequest,
    UpdateTableTagRequest,
)
from tiltyard.storage import writing
from tiltyard.storage.storage import Storage
from tiltyard.tables.commits.commit_handler import CommitNamespace
from tiltyard.tables.rows import create as creation
from tiltyard.tables.rows import update_delete
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.merge import merge_insert_into_table
from tiltyard.tables.schema import column_additions
from tiltyard.tables.versions import branches, tags
from tiltyard.tables.versions.versions import restore_table

Change = Callable[[Server], object]


@pytest.fixture
def folder(server: Server) -> Path:
    """The folder of a table with six rows."""
    creation.create_table(server.ctx, CreateTableRequest(id=["t"]), small(rows(6)))
    return location(server, "t")


def files_of(folder: Path) -> set[Path]:
    """Return what a table has, but for staged manifests and transactions, which versions can do without."""
    return {path for part in ("data", "_deletions", "_indices") for path in (folder / part).rglob("*")}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def insert(server: Server) -> None:
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"]), small(rows(3, 6)))


def insert_stream(server: Server) -> None:
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"]), Streamed(rows(3, 6)))


def overwrite(server: Server) -> None:
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], mode="overwrite"), small(rows(3, 6)))


def merge(server: Server) -> None:
    request = MergeInsertIntoTableRequest(
        id=["t"], on="id", when_matched_update_all=True, when_not_matched_insert_all=True
    )
    merge_insert_into_table(server.ctx, request, small(rows(4, 4)))


def update(server: Server) -> None:
    request = ask(UpdateTableRequest, id="t", updates=[["name", "'x'"]], predicate="id < 2")
    update_delete.update_table(server.ctx, request)


def delete(server: Server) -> None:
    update_delete.delete_from_table(server.ctx, DeleteFromTableRequest(id=["t"], predicate="id = 3"))


def add_column(server: Server) -> None:
    added = [{"name": "twice", "expression": "id * 2"}]
    column_additions.alter_table_add_columns(server.ctx, ask(AlterTableAddColumnsRequest, id="t", new_columns=added))


def upload(server: Server) -> None:
    number = begin_upload(server)
    for key in "ab":
        calls.insert(server, small(rows(3, 6)), upload_id=number, upload_part_id=key)
    complete_upload(server, number)


def outcome_of(change: Change, server: Server) -> Exception | None:
    try:
        change(server)
    except LanceNamespaceError as error:
        return error
    return None


@pytest.mark.parametrize("change", [insert, insert_stream, overwrite])
def test_rows_whose_file_is_cut_short_are_unavailable_and_leave_nothing(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    before, write = files_of(folder), writing.write_fragments

    def fail(*arguments: Any, **named: Any) -> Any:
        written = write(*arguments, **named)
        for path in files_of(folder) - before:
            cut(path)
        return written

    with monkeypatch.context() as full:
        full.setattr(writing, "write_fragments", fail)
        with pytest.raises(ServiceUnavailableError, match="no room"):
            change(server)
    assert files_of(folder) == before
    assert lance.dataset(folder).version == 1
    change(server)
    assert lance.dataset(folder).version == 2


@pytest.mark.parametrize(
    ("change", "kind", "damage"),
    [
        *((change, kind, cut) for change in (merge, update) for kind in ("data", "_deletions")),
        *((delete, "_deletions", damage) for damage in (cut, Path.unlink)),
        (add_column, "data", cut),
    ],
)
def test_changes_whose_files_are_cut_short_are_unavailable_and_leave_nothing(
    server: Server,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    kind: str,
    damage: Callable[[Path], None],
) -> None:
    before, commit, damaged = files_of(folder), CommitNamespace.create_table_version, list[Path]()

    def fail(self: CommitNamespace, request: Any) -> Any:
        for path in files_of(folder) - before:
            if kind in path.parts and path.is_file() and not damaged:
                damage(path)
                damaged.append(path)
        return commit(self, request)

    with monkeypatch.context() as full:
        full.setattr(CommitNamespace, "create_table_version", fail)
        outcome = outcome_of(change, server)
    assert damaged
    assert isinstance(outcome, ServiceUnavailableError) and "no room" in str(outcome)
    assert {path for path in files_of(folder) - before if path.is_file()} == set()
    assert lance.dataset(folder).version == 1
    assert lance.dataset(folder).count_rows() == 6
    change(server)
    assert lance.dataset(folder).version == 2


def test_refused_restore_leaves_the_files_of_the_version_that_was_to_be_restored(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], mode="overwrite"), small(rows(3)))
    before, known = files_of(folder), {*(folder / "_transactions").iterdir()}
    commit = CommitNamespace.create_table_version

    def fail(self: CommitNamespace, request: Any) -> Any:
        for path in {*(folder / "_transactions").iterdir()} - known:
            path.write_bytes(b"")
        return commit(self, request)

    with monkeypatch.context() as full:
        full.setattr(CommitNamespace, "create_table_version", fail)
        with pytest.raises(ServiceUnavailableError, match="no room"):
            restore_table(server.ctx, RestoreTableRequest(id=["t"], version=1))
    assert files_of(folder) == before
    assert lance.dataset(folder, version=1).to_table().num_rows == 6


def test_refused_change_leaves_the_files_of_versions_before_it_that_are_not_final_yet(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, commit, manifest = files_of(folder), CommitNamespace.create_table_version, manifest_of(folder)
    hidden = manifest.with_name("hidden")
    others = [path for path in before if path.is_file()]

    def fail(self: CommitNamespace, request: Any) -> Any:
        for path in files_of(folder) - before:
            if path.is_file():
                cut(path)
        for path in others:
            os.utime(path)  # as of another commit of this moment
        manifest.rename(hidden)
        try:
            return commit(self, request)
        finally:
            hidden.rename(manifest)

    with monkeypatch.context() as full:
        full.setattr(CommitNamespace, "create_table_version", fail)
        outcome = outcome_of(add_column, server)
    assert isinstance(outcome, ServiceUnavailableError) and "no room" in str(outcome)
    assert before <= files_of(folder)
    assert lance.dataset(folder).to_table().num_rows == 6


@pytest.mark.parametrize("change", [insert, insert_stream, overwrite, merge, update, delete, add_column, upload])
def test_version_that_was_committed_to_storage_and_is_not_whole_keeps_its_files(
    server: Server, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    properties = {"tiltyard.managed_versioning": "false"}
    creation.create_table(server.ctx, CreateTableRequest(id=["t"], properties=properties), small(rows(6)))
    folder, finish = location(server, "t"), Storage.make_version_durable

    def fail(self: Storage, *arguments: Any) -> None:
        max((folder / "_transactions").iterdir(), key=lambda path: path.stat().st_mtime_ns).write_bytes(b"")
        finish(self, *arguments)

    with monkeypatch.context() as full:
        full.setattr(Storage, "make_version_durable", fail)
        outcome = outcome_of(change, server)
    assert isinstance(outcome, ServiceUnavailableError) and "was committed, and is not whole" in str(outcome)
    assert lance.dataset(folder).version == 2
    assert lance.dataset(folder).to_table().num_rows > 0


def manifest_of(folder: Path) -> Path:
    return next((folder / "_versions").glob("*.manifest"))


@pytest.mark.parametrize("damage", [cut, Path.unlink, lambda path: path.write_bytes(b"")])
def test_version_of_a_client_with_a_broken_file_is_refused(
    server: Server, folder: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    before = files_of(folder)
    staged = stage(folder, 2, tmp_path, rows(3, 6))
    [written] = files_of(folder) - before
    content = written.read_bytes()
    damage(written)
    with pytest.raises(InvalidInputError, match=rf"{written.name}, which is missing or not whole"):
        create(server, "t", 2, staged)
    with pytest.raises(InvalidInputError, match="missing or not whole"):
        commit_all(server, version_of("t", 2, staged))
    assert lance.dataset(folder).version == 1
    written.write_bytes(content)
    assert create(server, "t", 2, staged).version == 2
    assert lance.dataset(folder).to_table().num_rows == 9


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_tag_that_a_full_disk_leaves_empty_is_as_it_was(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(server)
    tags.create_table_tag(server.ctx, ask(CreateTableTagRequest, id="t", tag="one", version=1))

    def listed() -> dict[str, int]:
        response = tags.list_table_tags(server.ctx, ListTableTagsRequest(id=["t"]))
        return {name: tag.version for name, tag in response.tags.items()}

    def empty(*arguments: Any) -> None:
        path = folder / "_refs" / "tags" / f"{arguments[1]}.json"
        path.unlink(missing_ok=True)
        path.write_bytes(b"")

    with monkeypatch.context() as full:
        for method in ("create", "update"):
            full.setattr(type(lance.dataset(folder).tags), method, empty)
        with pytest.raises(ServiceUnavailableError, match="no room"):
            tags.update_table_tag(server.ctx, ask(UpdateTableTagRequest, id="t", tag="one", version=2))
        with pytest.raises(ServiceUnavailableError, match="no room"):
            tags.create_table_tag(server.ctx, ask(CreateTableTagRequest, id="t", tag="two", version=2))
    with monkeypatch.context() as full:
        full.setattr("os.link", no_room)
        with pytest.raises(ServiceUnavailableError):
            tags.update_table_tag(server.ctx, ask(UpdateTableTagRequest, id="t", tag="one", version=2))
    assert listed() == {"one": 1}
    assert [path for path in (folder / "_refs").rglob("*") if path.is_file()] == [folder / "_refs/tags/one.json"]


def test_branch_whose_file_is_empty_is_none(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = lance.LanceDataset.create_branch

    def empty(self: lance.LanceDataset, name: str, *arguments: Any) -> None:
        make(self, name, *arguments)
        (folder / "_refs" / "branches" / f"{name}.json").write_bytes(b"")

    with monkeypatch.context() as full:
        full.setattr(lance.LanceDataset, "create_branch", empty)
        with pytest.raises(ServiceUnavailableError, match="no room"):
            branches.create_table_branch(server.ctx, CreateTableBranchRequest(id=["t"], name="dev"))
    assert lance.dataset(folder).branches.list() == {}
    branches.create_table_branch(server.ctx, CreateTableBranchRequest(id=["t"], name="dev"))


def test_files_outside_the_table_are_refused_unread(server: Server, folder: Path, tmp_path: Path) -> None:
    staged = Path(stage(folder, 2, tmp_path, rows(3, 6)))
    content = staged.read_bytes()
    name = next(path for path in files_of(folder) if path.name.encode() in content).name
    outside = b"../" * 8 + b"x" * (len(name) - 24 - 6) + b".lance"
    staged.write_bytes(content.replace(name.encode(), outside))
    with pytest.raises(LanceNamespaceError, match="outside"):
        create(server, "t", 2, str(staged))
