"""Repair of a table: finds what bypassed the server or was left unfinished, and corrects it where that is safe."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from msgspec import structs
from tests.tables.served import Server, ask

from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.storage.files import LocalFiles
from tiltyard.store import NewRequest, NewVersion
from tiltyard.tables.commits import commit
from tiltyard.tables.upkeep import repair
from tiltyard.tables.upkeep.repair import SETTLED_MS
from tiltyard.tables.versions import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.storage.files import FileEntry
    from tiltyard.store import TableRecord

ROWS = pa.table({"id": range(10)})


def manifest(version: int) -> str:
    return f"_versions/{2**64 - 1 - version}.manifest"


def managed(server: Server, name: str = "t", rows: int = 1) -> TableRecord:
    """Create a managed table with so many versions, all recorded and final."""
    store = server.services.store
    location = server.services.storage.new_location(Id((name,)))
    for _ in range(rows):
        lance.write_dataset(ROWS, location, mode="append")
    record = store.insert_table((name,), location, {}, managed=True)
    for version in range(1, rows + 1):
        store.record_version(NewVersion(record.id, version, "", manifest(version), finalized=True))
    return record


def repaired(server: Server, name: str = "t", *, dry_run: bool = False) -> list[tuple[str, bool]]:
    """Repair; return the kind of each finding, and whether it was corrected."""
    request = ask(models.RepairTableRequest, id=name, dry_run=dry_run)
    response = repair.repair_table(server.ctx, request)
    assert all(finding.found.endswith(".") for finding in response.findings)
    return [(finding.kind, finding.done is not None) for finding in response.findings]


def fully(server: Server, *kinds: str) -> None:
    """Check that a dry run reports these findings, a repair corrects them, and then nothing is wrong."""
    assert repaired(server, dry_run=True) == [(kind, False) for kind in kinds]
    assert repaired(server) == [(kind, True) for kind in kinds]
    assert repaired(server) == []


def recorded(server: Server, record: TableRecord, branch: str = "") -> list[int]:
    return [version.version for version in server.services.store.list_versions(record.id, branch)]


def test_repair_of_a_sound_table_finds_nothing(server: Server) -> None:
    managed(server, rows=3)
    server.create("plain", ROWS)
    server.declare("declared")
    assert repaired(server) == repaired(server, "plain") == repaired(server, "declared") == []


def test_repair_records_versions_that_were_committed_round_the_server(server: Server) -> None:
    record = managed(server)
    dataset = lance.dataset(record.location)
    dataset.insert(ROWS)
    dataset.create_branch("try", (None, 2)).insert(ROWS)
    fully(server, "unrecorded versions", "unrecorded versions")
    assert recorded(server, record) == [1, 2]
    assert recorded(server, record, "try") == [3]
    version = server.services.store.describe_version(record.id, 2)
    assert (version.manifest_path, version.finalized) == (manifest(2), True)
    assert version.manifest_size == (Path(record.location) / manifest(2)).stat().st_size


def test_repair_leaves_versions_of_unmanaged_tables_without_records(server: Server) -> None:
    server.create("t", ROWS).insert(ROWS)
    assert repaired(server) == []


def test_repair_deletes_records_of_versions_that_were_cleaned_up(server: Server) -> None:
    record = managed(server, rows=3)
    lance.dataset(record.location).cleanup_old_versions(retain_versions=1)
    fully(server, "cleaned versions")
    assert recorded(server, record) == [3]


def test_repair_follows_a_table_that_was_restored_from_a_copy(server: Server, tmp_path: Path) -> None:
    record = managed(server)
    shutil.copytree(record.location, tmp_path / "copy")
    lance.dataset(record.location).insert(ROWS)
    server.services.store.record_version(NewVersion(record.id, 2, "", manifest(2), finalized=True))
    shutil.rmtree(record.location)
    shutil.copytree(tmp_path / "copy", record.location)
    fully(server, "cleaned versions")
    lance.dataset(record.location).insert(ROWS)
    staged = Path(record.location) / f"{manifest(2)}-staged"
    (Path(record.location) / manifest(2)).rename(staged)
    request = ask(models.CreateTableVersionRequest, id="t", version=2, manifest_path=str(staged))
    commit.create_table_version(server.ctx, request)
    assert recorded(server, record) == [1, 2]


def test_repair_finishes_a_recorded_commit_and_takes_back_a_lost_one(server: Server) -> None:
    record = managed(server)
    store, final = server.services.store, Path(record.location) / manifest(2)
    lance.dataset(record.location).insert(ROWS)
    staged = final.with_name(f"{final.name}-staged")
    final.rename(staged)
    store.record_version(NewVersion(record.id, 2, str(staged), manifest(2)))
    store.record_version(NewVersion(record.id, 3, f"{final}-nowhere", manifest(3)))
    for version in (2, 3):
        claimed, _ = store.begin_request(NewRequest(f"of {version}", "POST", None, "me", 60_000, 60_000))
        store.mark_requests_committed([claimed.claim], record.id, "", version)
    fully(server, "pending version", "lost version")
    fulfilled = [store.describe_request(f"of {version}") for version in (2, 3)]
    assert [request and request.version for request in fulfilled] == [2, None]
    assert recorded(server, record) == [1, 2]
    assert lance.dataset(record.location).count_rows() == 20


def test_repair_corrects_the_flag_of_a_declared_table(server: Server) -> None:
    server.declare("t")
    record = server.services.store.describe_table(("t",))
    lance.write_dataset(ROWS, record.location)
    fully(server, "declared")
    assert not server.services.store.describe_table(("t",)).declared


def test_repair_only_tells_what_it_cannot_know(server: Server) -> None:
    location = Path(server.create("t", ROWS).uri)
    shutil.rmtree(location / "data")
    assert repaired(server) == [("missing files", False)]
    shutil.rmtree(location / "_versions")
    assert repaired(server) == [("no versions", False)]
    shutil.rmtree(location)
    assert repaired(server) == [("missing folder", False)]
    assert not server.services.store.describe_table(("t",)).declared


def test_repair_keeps_the_records_while_storage_has_no_version_at_all(server: Server, tmp_path: Path) -> None:
    """As while a disk is not mounted, or a copy is not complete."""
    record = managed(server, rows=2)
    lance.dataset(record.location).create_branch("try", (None, 2)).insert(ROWS)
    fully(server, "unrecorded versions")
    for gone, kind in (("_versions", "no versions"), ("", "missing folder")):
        place = Path(record.location) / gone
        place.rename(tmp_path / "away")
        assert repaired(server) == [(kind, False)]
        (tmp_path / "away").rename(place)
        assert (recorded(server, record), recorded(server, record, "try")) == ([1, 2], [3])
    assert repaired(server) == []


def test_repair_tells_of_a_table_that_cannot_be_opened(server: Server) -> None:
    location = Path(server.create("t", ROWS).uri)
    (location / manifest(1)).write_bytes(b"torn")
    assert repaired(server) == [("broken manifests", False), ("unreadable", False)]


def test_repair_deletes_staged_leftovers_once_they_are_old(tmp_path: Path) -> None:
    server = Server(tmp_path / "root", gc_safety_days=0.0)
    record = managed(server)
    leftover = Path(record.location) / f"{manifest(9)}-left"
    leftover.write_bytes(b"x")
    fully(server, "staged leftovers")
    assert not leftover.exists()
    server.services.close()


def test_repair_leaves_staged_manifests_that_are_recorded_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path / "root", gc_safety_days=0.0)
    record, walk = managed(server), LocalFiles.walk
    late = [Path(record.location) / f"{manifest(version)}-late" for version in range(2, 6)]
    for staged in late:
        staged.write_bytes(b"x")
    recorded: list[Path] = []

    def recording(files: LocalFiles, folder: str) -> Iterator[FileEntry]:
        """Record the next staged manifest at the end of each walk."""
        yield from walk(files, folder)
        version = len(recorded) + 2
        server.services.store.record_version(NewVersion(record.id, version, str(late[version - 2]), manifest(version)))
        recorded.append(late[version - 2])

    monkeypatch.setattr(LocalFiles, "walk", recording)
    assert repaired(server) == [("staged leftovers", True)]
    assert recorded
    assert all(staged.exists() for staged in recorded)
    server.services.close()


def test_repair_deletes_records_of_a_branch_that_is_gone_but_of_none_in_the_making(server: Server) -> None:
    record, store = managed(server), server.services.store
    store.record_version(NewVersion(record.id, 2, "", "tree/gone/_versions/x", branch="gone", finalized=True))
    assert repaired(server) == []
    services = server.services
    server.ctx = structs.replace(
        server.ctx, services=replace(services, clock=lambda: services.clock() + 2 * SETTLED_MS)
    )
    fully(server, "gone branch")
    assert recorded(server, record, "gone") == []


def test_repaired_versions_are_listed(server: Server) -> None:
    record = managed(server)
    lance.dataset(record.location).insert(ROWS)
    repaired(server)
    listed = versions.list_table_versions(server.ctx, ask(models.ListTableVersionsRequest, id="t"))
    assert [entry.version for entry in listed.versions] == [1, 2]
