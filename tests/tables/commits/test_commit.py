"""CreateTableVersion, batch-create and batch-commit: staged manifests become versions of a table."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from msgspec import structs
from tests.tables.served import Server, ask

from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.store import Store, VersionRecord
from tiltyard.store.tables.lookup import TableLookups
from tiltyard.tables.commits import batch_commit, commit, finalizing, recording, validation
from tiltyard.tables.versions import versions

ROWS = pa.table({"a": [1, 2, 3]})


def location(server: Server, name: str) -> Path:
    return Path(server.services.store.describe_table((name,)).location)


def stage(folder: Path, version: int, scratch: Path, rows: pa.Table = ROWS) -> str:
    """Write the data files and the staged manifest that a client writes before it commits; return the manifest."""
    copy = scratch / uuid4().hex
    if version > 1:
        shutil.copytree(folder, copy)
        lance.dataset(copy).insert(rows)
    else:
        lance.write_dataset(rows, copy)
    for part in ("data", "_transactions"):
        shutil.copytree(copy / part, folder / part, dirs_exist_ok=True)
    name = f"{2**64 - 1 - version}.manifest"
    staged = folder / "_versions" / f"{name}-{uuid4()}"
    staged.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(copy / "_versions" / name, staged)
    return str(staged)


def stage_after(folder: Path, copy: Path) -> str:
    """Stage version 2 on a copy of a table whose version 1 is only staged."""
    lance.dataset(copy).insert(ROWS)
    for part in ("data", "_transactions"):
        shutil.copytree(copy / part, folder / part, dirs_exist_ok=True)
    name = f"{2**64 - 3}.manifest"
    return str(shutil.copy(copy / "_versions" / name, folder / "_versions" / f"{name}-{uuid4()}"))


def stage_two(folder: Path, scratch: Path) -> list[str]:
    """Stage the first two versions of a table."""
    first, copy = stage(folder, 1, scratch), scratch / uuid4().hex
    shutil.copytree(folder, copy)
    (copy / "_versions" / Path(first).name).rename(copy / "_versions" / f"{2**64 - 2}.manifest")
    return [first, stage_after(folder, copy)]


def create(server: Server, name: str, version: int, path: str) -> models.TableVersion:
    request = ask(models.CreateTableVersionRequest, id=name, version=version, manifest_path=path, naming_scheme="V2")
    response = commit.create_table_version(server.ctx, request).version
    assert response is not None
    return response


def commit_all(server: Server, *operations: dict[str, Any]) -> models.BatchCommitTablesResponse:
    request = ask(models.BatchCommitTablesRequest, operations=list(operations))
    return batch_commit.batch_commit_tables(server.ctx, request)


def version_of(name: str, version: int, path: str) -> dict[str, Any]:
    return {"create_table_version": {"id": [name], "version": version, "manifest_path": path}}


@pytest.fixture
def folder(server: Server) -> Path:
    """The folder of the declared table `t`."""
    server.declare("t")
    return location(server, "t")


def test_version_alone_is_recorded_by_one_statement(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which PostgreSQL needs no transaction for, and is asked again where the connection is lost at its end."""
    server.create("t", ROWS)
    staged = stage(location(server, "t"), 2, tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("a transaction")

    monkeypatch.setattr(Store, "transact", refuse)
    assert create(server, "t", 2, staged).version == 2


def test_create_version_makes_a_declared_table_readable_without_the_server(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    response = create(server, "t", 1, stage(folder, 1, tmp_path).lstrip("/"))
    assert response.manifest_path == f"{folder}/_versions/{2**64 - 2}.manifest".lstrip("/")
    assert [path.name for path in (folder / "_versions").iterdir()] == [f"{2**64 - 2}.manifest"]
    assert lance.dataset(folder).count_rows() == 3
    assert not server.services.store.describe_table(("t",)).declared
    create(server, "t", 2, stage(folder, 2, tmp_path))
    assert lance.dataset(folder).count_rows() == 6


def test_create_version_sent_twice_is_one_commit(server: Server, folder: Path, tmp_path: Path) -> None:
    staged = stage(folder, 1, tmp_path)
    assert create(server, "t", 1, staged) == create(server, "t", 1, staged)


def test_create_version_of_another_manifest_is_a_conflict(server: Server, folder: Path, tmp_path: Path) -> None:
    first, second = stage(folder, 1, tmp_path), stage(folder, 1, tmp_path)
    create(server, "t", 1, first)
    with pytest.raises(ConcurrentModificationError):
        create(server, "t", 1, second)
    assert Path(second).exists()


def test_create_versions_that_wait_together_succeed_or_fail_alone(server: Server, folder: Path, tmp_path: Path) -> None:
    server.declare("u")
    winner, rival = stage(folder, 1, tmp_path), stage(folder, 1, tmp_path)
    other = stage(location(server, "u"), 1, tmp_path)
    commits = [("t", winner), ("t", rival), ("u", "/etc/passwd"), ("gone", winner), ("u", other), ("t", winner)]
    requests = [
        ask(models.CreateTableVersionRequest, id=name, version=1, manifest_path=path, naming_scheme="V2")
        for name, path in commits
    ]
    outcomes = commit.create_table_versions([(server.ctx, request) for request in requests])
    kinds = [type(outcome) for outcome in outcomes]
    response_type = models.CreateTableVersionResponse
    assert kinds == [
        response_type,
        ConcurrentModificationError,
        InvalidInputError,
        TableNotFoundError,
        response_type,
        response_type,
    ]
    assert outcomes[0] == outcomes[5]
    assert [lance.dataset(location(server, name)).count_rows() for name in ("t", "u")] == [3, 3]
    assert Path(rival).exists()


def together(server: Server, *commits: tuple[str, int, str]) -> list[Any]:
    """Run CreateTableVersion requests as one batch; return the version, or the type of the error, of each."""
    requests = [
        ask(models.CreateTableVersionRequest, id=name, version=version, manifest_path=path, naming_scheme="V2")
        for name, version, path in commits
    ]
    outcomes = commit.create_table_versions([(server.ctx, request) for request in requests])
    return [
        type(outcome) if isinstance(outcome, Exception) else outcome.version and outcome.version.version
        for outcome in outcomes
    ]


@pytest.fixture
def cached_table(server: Server, folder: Path, tmp_path: Path) -> Path:
    """The folder of `t`; the process has cached the tables `t` and `u` (`KnownTables`) by earlier commits."""
    server.declare("u")
    first = [(name, 1, stage(location(server, name), 1, tmp_path)) for name in ("t", "u")]
    assert together(server, *first) == [1, 1]
    second = [(name, 2, stage(location(server, name), 2, tmp_path)) for name in ("t", "u")]
    assert together(server, *second) == [2, 2]
    assert server.services.known_tables.get_all([("t",), ("u",)])
    return folder


def test_tables_that_are_known_are_not_looked_for(
    server: Server, cached_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = [(name, 3, stage(location(server, name), 3, tmp_path)) for name in ("t", "u")]
    for method in ("find_tables", "describe_table"):
        monkeypatch.setattr(TableLookups, method, None)
    assert together(server, *third) == [3, 3]


def test_known_table_that_is_gone_is_not_found_and_others_do_not_suffer(
    server: Server, cached_table: Path, tmp_path: Path
) -> None:
    third = [(name, 3, stage(location(server, name), 3, tmp_path)) for name in ("t", "u")]
    server.services.store.remove_table(("t",), delete_folder=False)
    assert together(server, *third) == [TableNotFoundError, 3]


def test_known_table_that_was_renamed_is_found_by_its_new_name_alone(
    server: Server, cached_table: Path, tmp_path: Path
) -> None:
    third = stage(cached_table, 3, tmp_path)
    server.services.store.rename_table(("t",), ("v",))
    assert together(server, ("t", 3, third)) == [TableNotFoundError]
    assert Path(third).exists()
    assert together(server, ("v", 3, third)) == [3]


def test_table_that_has_the_name_of_a_known_one_is_another(server: Server, cached_table: Path, tmp_path: Path) -> None:
    old = stage(cached_table, 3, tmp_path)
    server.services.store.rename_table(("t",), ("v",))
    server.declare("t")
    staged, other = stage(location(server, "t"), 1, tmp_path), stage(location(server, "u"), 3, tmp_path)
    assert together(server, ("t", 3, old), ("u", 3, other)) == [InvalidInputError, 3]
    assert together(server, ("t", 1, staged)) == [1]
    assert together(server, ("v", 3, old)) == [3]
    assert [lance.dataset(location(server, name)).count_rows() for name in ("t", "u", "v")] == [3, 9, 9]


def test_commit_to_a_known_table_that_was_lost_is_a_conflict(
    server: Server, cached_table: Path, tmp_path: Path
) -> None:
    staged, rival, other = (
        stage(cached_table, 3, tmp_path),
        stage(cached_table, 3, tmp_path),
        stage(location(server, "u"), 3, tmp_path),
    )
    commits = [("t", 3, rival), ("t", 3, staged), ("u", 3, other), ("t", 3, rival)]
    assert together(server, *commits) == [3, ConcurrentModificationError, 3, 3]
    assert together(server, ("t", 3, staged)) == [ConcurrentModificationError]
    assert Path(staged).exists()


def test_versions_recorded_together_do_not_suffer_from_one_that_the_catalog_refuses(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    table = server.services.store.describe_table(("t",))
    path = stage(folder, 1, tmp_path)
    request = ask(models.CreateTableVersionRequest, id="t", version=1, manifest_path=path, naming_scheme="V2")
    new = validation.validate_version(server.ctx, table, request)
    outcomes = recording.record_independently(server.ctx, [structs.replace(new, table_id=99), new])
    assert [type(outcome) for outcome in outcomes] == [TableNotFoundError, VersionRecord]


def test_create_version_is_noted_as_final_soon_and_never_taken_for_unfinished(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    create(server, "t", 1, stage(folder, 1, tmp_path))
    assert finalizing.sweep_pending(server.ctx) == 0
    server.services.commit_log.flush()
    assert server.services.store.pending_versions() == []
    assert (
        server.services.store.latest_version(1).manifest_size
        == (folder / "_versions" / f"{2**64 - 2}.manifest").stat().st_size
    )  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize("is_marked", [True, False], ids=["later", "right behind a commit of this server"])
def test_create_version_that_was_committed_round_the_server_is_a_conflict(
    server: Server, folder: Path, tmp_path: Path, is_marked: bool
) -> None:
    create(server, "t", 1, stage(folder, 1, tmp_path))
    staged = stage(folder, 2, tmp_path)
    lance.dataset(folder).insert(ROWS.slice(0, 1))
    if is_marked:
        server.services.commit_log.flush()
    assert server.services.commit_log.is_latest(1, "", 1, "V2") is not is_marked
    with pytest.raises(ConcurrentModificationError):
        create(server, "t", 2, staged)
    assert [record.version for record in server.services.store.list_versions(1)] == [1]
    assert lance.dataset(folder).count_rows() == 4
    assert create(server, "t", 3, stage(folder, 3, tmp_path)).version == 3


@pytest.mark.parametrize("is_marked", [True, False], ids=["later", "right behind a commit of this server"])
def test_create_version_behind_one_that_a_restore_of_files_has_taken_away_is_refused(
    server: Server, folder: Path, tmp_path: Path, is_marked: bool
) -> None:
    for version in (1, 2):
        create(server, "t", version, stage(folder, version, tmp_path))
    staged = stage(folder, 3, tmp_path)
    if is_marked:
        server.services.commit_log.flush()
    assert server.services.commit_log.is_latest(1, "", 2, "V2") is not is_marked
    (folder / "_versions" / f"{2**64 - 3}.manifest").unlink()
    with pytest.raises(InvalidInputError, match="next version is 2"):
        create(server, "t", 3, staged)
    assert [record.version for record in server.services.store.list_versions(1)] == [1, 2]


@pytest.mark.parametrize("is_marked", [True, False], ids=["later", "right behind a commit of this server"])
def test_create_version_by_names_other_than_the_tables_is_refused(
    server: Server, folder: Path, tmp_path: Path, is_marked: bool
) -> None:
    """Lance opens no folder with both kinds of names."""
    create(server, "t", 1, stage(folder, 1, tmp_path))
    if is_marked:
        server.services.commit_log.flush()
    staged = stage(folder, 2, tmp_path)
    request = ask(models.CreateTableVersionRequest, id="t", version=2, manifest_path=staged, naming_scheme="V1")
    with pytest.raises(InvalidInputError, match="V2"):
        commit.create_table_version(server.ctx, request)
    assert lance.dataset(folder).version == 1
    assert create(server, "t", 2, staged).version == 2


def test_create_version_without_a_naming_scheme_takes_that_of_the_staged_name(server: Server, tmp_path: Path) -> None:
    folder = Path(server.services.storage.new_location(Id(("old",))))
    lance.write_dataset(ROWS, folder, enable_v2_manifest_paths=False)
    server.services.store.insert_table(("old",), str(folder), {}, managed=True, registered=True)
    shutil.copytree(folder, tmp_path / "copy")
    lance.dataset(tmp_path / "copy").insert(ROWS)
    for part in ("data", "_transactions"):
        shutil.copytree(tmp_path / "copy" / part, folder / part, dirs_exist_ok=True)
    for name, refused in ((f"{2**64 - 3}.manifest-a", True), ("2.manifest-b", False)):
        staged = shutil.copy(tmp_path / "copy" / "_versions" / "2.manifest", folder / "_versions" / name)
        request = ask(models.CreateTableVersionRequest, id="old", version=2, manifest_path=str(staged))
        with pytest.raises(InvalidInputError, match="V1") if refused else nullcontext():
            commit.create_table_version(server.ctx, request)
    assert lance.dataset(folder).count_rows() == 6


def test_create_version_from_a_file_whose_name_no_disk_has_is_refused(server: Server, folder: Path) -> None:
    path = f"{folder}/_versions/{2**64 - 2}.manifest-{'x' * 300}"
    for call in (lambda: create(server, "t", 1, path), lambda: commit_all(server, version_of("t", 1, path))):
        with pytest.raises(InvalidInputError, match="too long"):
            call()


def test_commits_round_the_server_behind_a_gap_are_found(server: Server, folder: Path, tmp_path: Path) -> None:
    """Versions 1 and 2 are kept by a tag, 3 was cleaned up, 4 is the latest."""
    for version in (1, 2):
        create(server, "t", version, stage(folder, version, tmp_path))
    dataset = lance.dataset(folder)
    dataset.tags.create("a", 1)
    dataset.tags.create("b", 2)
    server.services.commit_log.flush()
    staged = stage(folder, 3, tmp_path)
    for _ in range(2):
        lance.dataset(folder).insert(ROWS)
    lance.dataset(folder).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    newest = ask(models.ListTableVersionsRequest, id="t", descending=True, limit=1)
    assert [version.version for version in versions.list_table_versions(server.ctx, newest).versions] == [4]
    with pytest.raises(ConcurrentModificationError):
        create(server, "t", 3, staged)
    assert create(server, "t", 5, stage(folder, 5, tmp_path)).version == 5
    assert lance.dataset(folder).count_rows() == 15


def test_versions_are_told_with_the_size_and_tag_that_their_files_have_in_the_end(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    for version in (1, 2, 3):
        response = create(server, "t", version, stage(folder, version, tmp_path))
        manifest = (folder / "_versions" / f"{2**64 - 1 - version}.manifest").stat()
        tag = f"{manifest.st_ino:x}-{manifest.st_mtime_ns // 1000:x}-{manifest.st_size:x}"
        assert (response.manifest_size, response.e_tag) == (manifest.st_size, tag)
        recorded = server.services.store.describe_version(1, version)
        assert (recorded.manifest_size, recorded.e_tag, recorded.finalized) == (manifest.st_size, tag, False)
    server.services.commit_log.flush()
    assert server.services.store.pending_versions() == []


def test_create_version_of_what_is_no_manifest_of_this_table_is_refused(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    staged = stage(folder, 1, tmp_path)
    garbage = folder / "_versions" / f"{2**64 - 2}.manifest-garbage"
    garbage.write_bytes(b"garbage" * 20)
    outside = tmp_path / f"{2**64 - 2}.manifest-x"
    shutil.copy(staged, outside)
    server.declare("other")
    elsewhere = stage(location(server, "other"), 1, tmp_path)
    invalid = [
        str(garbage),
        str(outside),
        elsewhere,
        "/etc/passwd",
        f"{folder}/_versions/../data/x.manifest",
        f"{staged}x",
    ]
    for path in invalid:
        with pytest.raises(InvalidInputError):
            create(server, "t", 1, path)
    with pytest.raises(InvalidInputError, match="of version 1, not 2"):
        create(server, "t", 2, staged)
    assert not any(path.name.endswith(".manifest") for path in (folder / "_versions").iterdir())


def test_a_record_without_its_manifest_is_finished_by_the_next_reader(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    create(server, "t", 1, stage(folder, 1, tmp_path))
    staged = stage(folder, 2, tmp_path)
    request = ask(models.CreateTableVersionRequest, id="t", version=2, manifest_path=staged)
    new = validation.validate_version(server.ctx, server.services.store.describe_table(("t",)), request)
    server.services.store.record_version(new)  # and here the server dies
    request = ask(models.DescribeTableVersionRequest, id="t", version=2)
    assert versions.describe_table_version(server.ctx, request).version.version == 2
    assert lance.dataset(folder).version == 2


@pytest.fixture
def managed(server: Server) -> Path:
    """The folder of the managed, declared table `m`."""
    server.declare("m", managed=True)
    return location(server, "m")


def latest(server: Server) -> tuple[models.TableVersion, str | None]:
    """Request the latest version of the table `m` as committers do."""
    request = ask(models.ListTableVersionsRequest, id="m", limit=1, descending=True)
    page = versions.list_table_versions(server.ctx, request)
    (version,) = page.versions
    return version, page.page_token


def test_latest_version_is_told_by_its_record_alone(
    server: Server, managed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(server, "m", 1, stage(managed, 1, tmp_path))
    committed = create(server, "m", 2, stage(managed, 2, tmp_path))

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("the table was opened")

    with monkeypatch.context() as patch:
        patch.setattr(server.services.storage.datasets, "open_for_writing", opened)
        patch.setattr(server.services.storage.datasets, "open_for_reading", opened)
        version, token = latest(server)
    assert (version, bool(token)) == (committed, True)
    request = ask(models.ListTableVersionsRequest, id="m", limit=1, descending=True, page_token=token)
    assert [version.version for version in versions.list_table_versions(server.ctx, request).versions] == [1]


def test_latest_version_that_was_committed_round_the_server_is_told(
    server: Server, managed: Path, tmp_path: Path
) -> None:
    create(server, "m", 1, stage(managed, 1, tmp_path))
    create(server, "m", 2, stage(managed, 2, tmp_path))
    lance.dataset(managed).insert(ROWS)
    assert latest(server)[0].version == 3


def test_latest_version_of_a_table_whose_files_were_put_back_is_what_storage_has(
    server: Server, managed: Path, tmp_path: Path
) -> None:
    create(server, "m", 1, stage(managed, 1, tmp_path))
    create(server, "m", 2, stage(managed, 2, tmp_path))
    server.services.commit_log.flush()
    (managed / "_versions" / f"{2**64 - 3}.manifest").unlink()
    assert latest(server)[0].version == 1


def test_batch_create_versions_is_all_or_none(server: Server, folder: Path, tmp_path: Path) -> None:
    server.declare("u")
    paths = {"t": stage(folder, 1, tmp_path), "u": stage(location(server, "u"), 1, tmp_path)}
    create(server, "u", 1, stage(location(server, "u"), 1, tmp_path))
    entries = [{"id": [name], "version": 1, "manifest_path": path} for name, path in paths.items()]
    request = ask(models.BatchCreateTableVersionsRequest, entries=entries)
    with pytest.raises(ConcurrentModificationError):
        commit.batch_create_table_versions(server.ctx, request)
    assert server.services.store.latest_version(server.services.store.describe_table(("t",)).id) is None
    entries = [entries[0], {"id": ["u"], "version": 2, "manifest_path": stage(location(server, "u"), 2, tmp_path)}]
    request = ask(models.BatchCreateTableVersionsRequest, entries=entries)
    response = commit.batch_create_table_versions(server.ctx, request)
    assert [version.version for version in response.versions] == [1, 2]
    assert (lance.dataset(folder).version, server.open("u").version) == (1, 2)


def test_batch_delete_versions_forgets_records_but_never_the_latest(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    for version in (1, 2, 3):
        create(server, "t", version, stage(folder, version, tmp_path))

    def delete(start: int, end: int) -> int | None:
        ranges = [{"start_version": start, "end_version": end}]
        request = ask(models.BatchDeleteTableVersionsRequest, id="t", ranges=ranges)
        return commit.batch_delete_table_versions(server.ctx, request).deleted_count

    assert [delete(1, 2), delete(0, -1), delete(0, -1)] == [1, 1, 0]
    assert lance.dataset(folder).count_rows() == 9
    with pytest.raises(InvalidInputError):
        delete(3, 1)


def test_batch_commit_does_all_in_order_under_one_transaction(server: Server, folder: Path, tmp_path: Path) -> None:
    server.create("old", ROWS)
    server.services.quotas.start()
    new = location(server, "t").parent / "mine.lance"
    response = commit_all(
        server,
        {"declare_table": {"id": ["new"], "location": str(new)}},
        version_of("new", 1, stage(new, 1, tmp_path)),
        version_of("t", 1, stage(folder, 1, tmp_path)),
        {"deregister_table": {"id": ["old"]}},
        {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 0, "end_version": -1}]}},
    )
    kinds = [
        next(name for name in result.__struct_fields__ if getattr(result, name) is not None)
        for result in response.results
    ]
    assert kinds == [
        "declare_table",
        "create_table_version",
        "create_table_version",
        "deregister_table",
        "delete_table_versions",
    ]
    assert response.transaction_id is not None
    assert server.services.store.describe_transaction(response.transaction_id).status == "Succeeded"
    tables = [server.services.store.describe_table((name,)) for name in ("new", "t")]
    versions = [server.services.store.describe_version(table.id, 1) for table in tables]
    assert [version.transaction_id for version in versions] == [response.transaction_id] * 2
    assert (server.open("new").count_rows(), server.open("t").count_rows()) == (3, 3)
    with pytest.raises(TableNotFoundError):
        location(server, "old")
    server.services.quotas.flush()
    assert sum(each.rows_written for each in server.services.store.list_usage(0)) == 6  # of the declared table, too


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ({"deregister_table": {"id": ["nope"]}}, TableNotFoundError),
        ({"declare_table": {"id": ["t"]}}, TableAlreadyExistsError),
        ({"create_table_version": {"id": ["t"], "version": 2, "manifest_path": "/etc/passwd"}}, InvalidInputError),
        ({}, InvalidInputError),
        ({"declare_table": {"id": ["x"]}, "deregister_table": {"id": ["x"]}}, InvalidInputError),
    ],
)
def test_batch_commit_with_one_that_fails_changes_nothing(
    server: Server, folder: Path, tmp_path: Path, last: dict[str, Any], error: type[LanceNamespaceError]
) -> None:
    first = {"declare_table": {"id": ["first"]}}
    with pytest.raises(error):
        commit_all(server, first, version_of("t", 1, stage(folder, 1, tmp_path)), last)
    with pytest.raises(TableNotFoundError):
        location(server, "first")
    assert server.services.store.latest_version(server.services.store.describe_table(("t",)).id) is None
    assert not any(path.name.endswith(".manifest") for path in (folder / "_versions").iterdir())


def test_batch_commit_repeated_is_the_same_commit(server: Server, folder: Path, tmp_path: Path) -> None:
    operation = version_of("t", 1, stage(folder, 1, tmp_path))
    first, second = commit_all(server, operation), commit_all(server, operation)
    versions_made = [response.results[0].create_table_version for response in (first, second)]
    assert versions_made[0] is not None
    assert versions_made[1] is not None
    assert versions_made[0].version == versions_made[1].version


def test_batch_commit_of_many_tables_answers_in_order_with_all_final(server: Server, tmp_path: Path) -> None:
    names = [f"many{number}" for number in range(12)]
    operations, folders = [], {}
    for name in names:
        server.declare(name)
        folders[name] = location(server, name)
        staged = stage_two(folders[name], tmp_path)
        operations += [version_of(name, number, path) for number, path in enumerate(staged, 1)]
    responses = [result.create_table_version for result in commit_all(server, *operations).results]
    versions = [response.version for response in responses if response is not None and response.version is not None]
    assert [version.version for version in versions] == [1, 2] * len(names)
    assert [version.manifest_size for version in versions] == [
        (folders[name] / "_versions" / f"{2**64 - 1 - number}.manifest").stat().st_size
        for name in names
        for number in (1, 2)
    ]
    server.services.commit_log.flush()
    assert server.services.store.pending_versions() == []
    assert all(lance.dataset(folder).count_rows() == 6 for folder in folders.values())
    assert not any(server.services.store.describe_table((name,)).declared for name in names)


def test_batch_commit_holds_a_thousand_operations(server: Server) -> None:
    operations = [{"declare_table": {"id": [f"t{number}"]}} for number in range(1001)]
    with pytest.raises(InvalidInputError, match="1000"):
        commit_all(server, *operations)
    with pytest.raises(InvalidInputError):
        commit_all(server)
    assert len(commit_all(server, *operations[:1000]).results) == 1000


def test_batch_commit_writes_and_deregisters_a_table_which_comes_back_written(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    """Work after the record cannot fail for a table that is gone by then."""
    location_of_table = folder.parent / "mine.lance"
    response = commit_all(
        server,
        version_of("t", 1, stage(folder, 1, tmp_path)),
        {"declare_table": {"id": ["n"], "location": str(location_of_table)}},
        version_of("n", 1, stage(location_of_table, 1, tmp_path)),
        {"deregister_table": {"id": ["n"]}},
    )
    assert len(response.results) == 4
    assert (lance.dataset(folder).count_rows(), lance.dataset(location_of_table).count_rows()) == (3, 3)
    back = server.services.store.restore_table(("n",))
    assert (back.location, back.declared) == (str(location_of_table), False)
    assert server.services.store.describe_table(("t",)).declared is False


def test_batch_commit_declares_again_what_it_deregistered(server: Server, folder: Path, tmp_path: Path) -> None:
    one, two = (folder.parent / f"{name}.lance" for name in ("one", "two"))
    operations: list[dict[str, Any]] = []
    for place in (one, two):
        operations.append({"declare_table": {"id": ["n"], "location": str(place)}})
        operations.append(version_of("n", 1, stage(place, 1, tmp_path)))
    operations.insert(2, {"deregister_table": {"id": ["n"]}})
    commit_all(server, *operations)
    assert location(server, "n") == two
    assert lance.dataset(two).count_rows() == 3


def test_batch_commit_deletes_versions_as_they_are_at_that_point(server: Server, folder: Path, tmp_path: Path) -> None:
    def delete(start: int, end: int) -> dict[str, Any]:
        return {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": start, "end_version": end}]}}

    first, second = stage_two(folder, tmp_path)
    declared = {"declare_table": {"id": ["n"]}}
    invalid = {"delete_table_versions": {"id": ["n"], "ranges": [{"start_version": 5, "end_version": 2}]}}
    with pytest.raises(InvalidInputError, match="none"):
        commit_all(server, declared, invalid)
    response = commit_all(server, delete(0, -1), version_of("t", 1, first), version_of("t", 2, second), delete(0, -1))
    deleted = [
        result.delete_table_versions.deleted_count for result in response.results if result.delete_table_versions
    ]
    assert deleted == [0, 1]
    assert [result.version for result in server.services.store.list_versions(1)] == [2]


def test_batch_create_versions_takes_several_of_one_table_in_order(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    entries = [
        {"id": ["t"], "version": version, "manifest_path": path}
        for version, path in enumerate(stage_two(folder, tmp_path), 1)
    ]
    with pytest.raises(InvalidInputError, match="next version"):
        commit.batch_create_table_versions(
            server.ctx, ask(models.BatchCreateTableVersionsRequest, entries=entries[::-1])
        )
    response = commit.batch_create_table_versions(
        server.ctx, ask(models.BatchCreateTableVersionsRequest, entries=entries)
    )
    assert [version.version for version in response.versions] == [1, 2]
    assert lance.dataset(folder).count_rows() == 6


def test_batch_commit_with_a_version_that_was_committed_round_the_server_changes_nothing(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    """Right after a commit of this server, storage is not read for a single version before it is recorded."""
    server.declare("u")
    first = version_of("u", 1, stage(location(server, "u"), 1, tmp_path))
    create(server, "t", 1, stage(folder, 1, tmp_path))
    staged = stage(folder, 2, tmp_path)
    lance.dataset(folder).insert(ROWS)
    assert server.services.commit_log.is_latest(1, "", 1, "V2")
    with pytest.raises(ConcurrentModificationError):
        commit_all(server, first, version_of("t", 2, staged))
    assert server.services.store.list_versions(server.services.store.describe_table(("u",)).id) == []


def test_batch_commit_by_two_naming_schemes_changes_nothing(server: Server, folder: Path, tmp_path: Path) -> None:
    first, second = stage_two(folder, tmp_path)
    other = version_of("t", 2, second)
    other["create_table_version"]["naming_scheme"] = "V1"
    with pytest.raises(InvalidInputError, match="V2"):
        commit_all(server, version_of("t", 1, first), other)
    assert server.services.store.list_versions(1) == []
