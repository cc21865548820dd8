"""Repair of tables that a full disk has broken before commits were checked: it says what is lost, and goes on."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest
from tests.tables.served import Server, ask
from tests.tables.upkeep.test_repair import ROWS, managed, manifest, repaired

from tiltyard.model.spec import models
from tiltyard.store import NewVersion
from tiltyard.tables.upkeep import repair
from tiltyard.tables.versions import branches, tags


def restored(server: Server) -> list[models.RepairFinding]:
    return repair.repair_table(server.ctx, ask(models.RepairTableRequest, id="t", restore=True)).findings


def broken(server: Server, pattern: str) -> Path:
    """Make a table of four versions: rows, rows, deleted rows, rows; the newest file of a pattern is empty."""
    table = managed(server, rows=2)
    lance.dataset(table.location).delete("id < 3")
    lance.write_dataset(ROWS, table.location, mode="append")
    for version in (3, 4):
        server.services.store.record_version(NewVersion(table.id, version, "", manifest(version), finalized=True))
    folder = Path(table.location)
    max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("pattern", "versions", "whole"), [("_deletions/*", "Versions 3, 4", 2), ("data/*", "Versions 4", 3)]
)
def test_repair_goes_on_from_the_last_version_without_broken_files(
    server: Server, pattern: str, versions: str, whole: int
) -> None:
    folder = broken(server, pattern)
    rows = lance.dataset(folder, version=whole).to_table()
    assert repaired(server, dry_run=True) == [("broken files", False)]
    assert repaired(server) == [("broken files", False)]
    assert lance.dataset(folder).version == 4
    [finding] = restored(server)
    assert finding.found.startswith(f"{versions} name files that are not whole: ")
    assert "(0 " in finding.found
    assert finding.found.endswith(f"). The last whole version is {whole}.")
    assert finding.done == f"Version 5 is as version {whole} was: what came after it is in the old versions."
    assert lance.dataset(folder).to_table() == rows
    assert server.services.store.latest_version(server.services.store.describe_table(("t",)).id, "").version == 5
    assert [finding.done for finding in restored(server)] == [None], "the latest version is whole"
    lance.dataset(folder).delete("id = 5")


def test_repair_removes_manifests_that_are_not_whole(server: Server) -> None:
    folder = broken(server, manifest(4))
    with pytest.raises((OSError, ValueError)):
        lance.dataset(folder)
    assert repaired(server)[:1] == [("broken manifests", False)]
    kinds = [finding.kind for finding in restored(server)]
    assert kinds == ["broken manifests", "cleaned versions"]
    assert lance.dataset(folder).version == 3


def test_repair_removes_tags_that_are_not_whole(server: Server) -> None:
    folder = Path(managed(server, rows=2).location)
    for name in ("one", "two"):
        tags.create_table_tag(server.ctx, ask(models.CreateTableTagRequest, id="t", tag=name, version=1))
    branches.create_table_branch(server.ctx, models.CreateTableBranchRequest(id=["t"], name="dev"))
    torn = folder / "_refs" / "tags" / "one.json"
    torn.write_bytes(b"")
    assert repaired(server, dry_run=True) == [("broken tag", False)]
    torn.write_bytes(b"")
    [finding] = restored(server)
    assert finding.found == "The file of the tag one is not whole: it was never acknowledged."
    assert finding.done == "The tag was removed."
    assert list(tags.list_table_tags(server.ctx, models.ListTableTagsRequest(id=["t"])).tags) == ["two"]
    assert restored(server) == []
