"""After a loss of power, a damaged or missing manifest is written again from the catalog, which stored it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from lance_namespace.errors import InvalidInputError
from msgspec import structs
from tests.tables.commits.test_commit import ROWS, create, location, stage
from tests.tables.served import Server, ask

from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.store import NewVersion, VersionRecord
from tiltyard.tables.commits import finalizing, validation
from tiltyard.tables.upkeep import repair
from tiltyard.tables.versions import versions

FINAL = f"{2**64 - 3}.manifest"
"""Of version 2."""


def finish(server: Server) -> int:
    """Finalize pending versions, as a reader of the tables does."""
    pending = server.services.store.tables_with_pending_versions(0, 100)
    return sum(finalizing.finalize_pending(server.ctx, table_id) for table_id in pending)


@pytest.fixture
def folder(server: Server) -> Path:
    """The folder of the table `t`, which has one version."""
    server.create("t", ROWS)
    return location(server, "t")


def recorded(server: Server, staged: str) -> VersionRecord:
    """Record version 2, as the catalog has it at the loss of power."""
    table = server.services.store.describe_table(("t",))
    request = ask(models.CreateTableVersionRequest, id="t", version=2, manifest_path=staged)
    record, _ = server.services.store.record_version(validation.validate_version(server.ctx, table, request))
    return record


def torn(staged: Path, final: Path) -> None:
    staged.rename(final)
    final.write_bytes(final.read_bytes()[:40])


def emptied(staged: Path, final: Path) -> None:
    staged.rename(final)
    final.write_bytes(b"")


def both_gone(staged: Path, final: Path) -> None:
    staged.unlink()


def staged_torn(staged: Path, final: Path) -> None:
    staged.write_bytes(staged.read_bytes()[:40])


def both_names(staged: Path, final: Path) -> None:
    final.hardlink_to(staged)


@pytest.mark.parametrize("lose", [torn, emptied, both_gone, staged_torn, both_names])
def test_version_whose_file_was_lost_is_written_again_from_the_catalog(
    server: Server, folder: Path, tmp_path: Path, lose: Callable[[Path, Path], None]
) -> None:
    staged, final = Path(stage(folder, 2, tmp_path)), folder / "_versions" / FINAL
    content = staged.read_bytes()
    record = recorded(server, str(staged))
    lose(staged, final)
    request = ask(models.DescribeTableVersionRequest, id="t", version=2)
    assert finish(server) == 1
    assert versions.describe_table_version(server.ctx, request).version.version == 2
    assert final.read_bytes() == content
    assert lance.dataset(folder).count_rows() == 6
    assert [path.name for path in (folder / "_versions").iterdir() if "-" in path.name or path.name[0] == "."] == []
    server.services.commit_log.flush()
    assert server.services.store.pending_versions() == []
    assert server.services.store.stored_manifest(record) is None


def deletions(copy: Path) -> None:
    lance.dataset(copy).delete("a = 1")


def an_index(copy: Path) -> None:
    lance.dataset(copy).create_scalar_index("a", "BTREE")


def rows(copy: Path) -> None:
    lance.dataset(copy).insert(ROWS)


@pytest.mark.parametrize("brings", [rows, deletions, an_index])
def test_version_that_was_cleaned_up_before_it_was_noted_does_not_come_back(
    server: Server, folder: Path, tmp_path: Path, brings: Callable[[Path], None]
) -> None:
    """As after a kill, or in another process: the files of this version alone are gone."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    brings(copy)
    shutil.copytree(copy, folder, dirs_exist_ok=True)
    staged = folder / "_versions" / f"{FINAL}-staged"
    (folder / "_versions" / FINAL).rename(staged)
    recorded(server, str(staged))
    staged.rename(folder / "_versions" / FINAL)
    dataset = lance.dataset(folder)
    if brings is rows:
        lance.write_dataset(ROWS, folder, mode="overwrite")
    elif brings is deletions:
        dataset.delete("a = 2")
    else:
        dataset.drop_index(dataset.describe_indices()[0].name)
    lance.dataset(folder).cleanup_old_versions(timedelta(0))
    assert finish(server) == 1
    assert server.services.store.pending_versions() == []
    assert [entry["version"] for entry in lance.dataset(folder).versions()] == [3]


def test_version_that_was_cleaned_up_before_it_was_noted_stays_so_where_all_its_files_are_needed_still(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    staged = Path(stage(folder, 2, tmp_path))
    record = recorded(server, str(staged))
    staged.rename(folder / "_versions" / FINAL)
    lance.dataset(folder).insert(ROWS)
    path = f"_versions/{2**64 - 4}.manifest"
    server.services.store.record_version(NewVersion(record.table_id, 3, f"{folder}/{path}", path, finalized=True))
    lance.dataset(folder).cleanup_old_versions(timedelta(0))
    assert finish(server) == 1
    assert server.services.store.pending_versions() == []
    assert [entry["version"] for entry in lance.dataset(folder).versions()] == [3]


def test_version_with_a_tag_that_a_loss_of_power_took_before_a_later_one_comes_back(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    """File systems need not keep names of a folder in their order; cleanups keep versions that have a tag."""
    staged = Path(stage(folder, 2, tmp_path))
    record = recorded(server, str(staged))
    staged.rename(folder / "_versions" / FINAL)
    lance.dataset(folder).insert(ROWS)
    path = f"_versions/{2**64 - 4}.manifest"
    server.services.store.record_version(NewVersion(record.table_id, 3, f"{folder}/{path}", path, finalized=True))
    lance.dataset(folder).tags.create("two", 2)
    (folder / "_refs" / "tags" / "torn.json").write_bytes(b"")
    (folder / "_versions" / FINAL).unlink()
    assert finish(server) == 1
    (folder / "_refs" / "tags" / "torn.json").unlink(missing_ok=True)
    assert lance.dataset(folder, version="two").version == 2


def test_version_whose_manifest_was_renamed_before_it_was_noted_gets_no_second_one(server: Server) -> None:
    folder = Path(server.services.storage.new_location(Id(("old",))))
    lance.write_dataset(ROWS, folder, enable_v2_manifest_paths=False)
    table = server.services.store.insert_table(("old",), str(folder), {}, managed=True, registered=True)
    path = "_versions/1.manifest"
    new = NewVersion(table.id, 1, f"{folder}/{path}-staged", path, manifest=(folder / path).read_bytes())
    server.services.store.record_version(structs.replace(new, naming_scheme="V1"))
    lance.dataset(folder).migrate_manifest_paths_v2()
    assert finish(server) == 1
    assert not (folder / path).exists()
    assert lance.dataset(folder).count_rows() == 3


def test_version_of_a_branch_that_was_deleted_before_it_was_noted_does_not_come_back(
    server: Server, folder: Path
) -> None:
    dataset, store = lance.dataset(folder), server.services.store
    dataset.create_branch("dev", (None, None))
    path = f"tree/dev/_versions/{2**64 - 2}.manifest"
    table, content = store.describe_table(("t",)), (folder / path).read_bytes()
    store.record_version(NewVersion(table.id, 1, f"{folder}/{path}-staged", path, branch="dev", manifest=content))
    dataset.branches.delete("dev")
    assert finish(server) == 1
    assert store.list_versions(table.id, "dev") == []
    assert not (folder / path).exists()


def test_version_whose_place_somebody_took_round_the_server_is_taken_back(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    staged = Path(stage(folder, 2, tmp_path))
    record = recorded(server, str(staged))
    lance.dataset(folder).insert(ROWS.slice(0, 1))
    manifest = (folder / "_versions" / FINAL).read_bytes()
    assert finish(server) == 0
    assert (folder / "_versions" / FINAL).read_bytes() == manifest
    assert server.services.store.list_versions(record.table_id, after=1) == []


def test_repair_keeps_a_version_of_which_only_the_catalog_has_the_manifest(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    staged = Path(stage(folder, 2, tmp_path))
    recorded(server, str(staged))
    staged.unlink()
    findings = repair.repair(server.ctx, server.services.store.describe_table(("t",)), dry_run=False)
    assert [finding.kind for finding in findings] == ["pending version"]
    assert lance.dataset(folder).count_rows() == 6


def test_commit_keeps_its_manifest_until_the_file_is_durable(server: Server, folder: Path, tmp_path: Path) -> None:
    staged = stage(folder, 2, tmp_path)
    content = Path(staged).read_bytes()
    create(server, "t", 2, staged)
    store = server.services.store
    record = store.describe_version(store.describe_table(("t",)).id, 2)
    stored = store.stored_manifest(record)
    assert record.finalized or stored == content
    server.services.commit_log.flush()
    assert store.stored_manifest(record) is None
    assert store.describe_version(record.table_id, 2).finalized


def test_commit_whose_staged_file_is_a_link_is_refused(server: Server, folder: Path, tmp_path: Path) -> None:
    staged = Path(stage(folder, 2, tmp_path))
    elsewhere = tmp_path / "elsewhere"
    shutil.move(staged, elsewhere)
    staged.symlink_to(elsewhere)
    with pytest.raises(InvalidInputError, match="link"):
        create(server, "t", 2, str(staged))
    assert lance.dataset(folder).version == 1
