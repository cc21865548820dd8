"""A tag of a version with erased rows moves, with leave, to what the version has without them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pytest
from lance_namespace.errors import InvalidInputError
from tests.tables.erasure.test_erasure import (
    KilledError,
    add,
    erase,
    index,
    people,
    planted,
    report_of,
    request,
)
from tests.tables.served import Server, ask

from tiltyard.model.jobs import JOBS, Job
from tiltyard.model.spec import models
from tiltyard.store.tables.erasures import ERASE
from tiltyard.tables.versions import clone
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.snapshots import create_snapshot
from tiltyard.tables.versions.tags import create_table_tag, get_table_tag_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tiltyard.store import TableRecord


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "root", gc_safety_days=0.0)
    yield running
    running.services.close()


def tag(server: Server, name: str, version: int, table: str = "people", branch: str | None = None) -> None:
    fields = {"id": table, "tag": name, "version": version, "branch": branch}
    create_table_tag(server.ctx, ask(models.CreateTableTagRequest, **fields))


def tagged(server: Server) -> TableRecord:
    """Make a table with a tag of its second version, which has the rows and an index."""
    table = add(server, "people", people(0, 20))
    lance.dataset(table.location).create_scalar_index("mail", "BTREE", name="by_mail")
    tag(server, "release", 2)
    lance.dataset(table.location).insert(people(20, 40))
    index(table)
    return table


def version_of(server: Server, name: str) -> tuple[str | None, int]:
    found = get_table_tag_version(server.ctx, ask(models.GetTableTagVersionRequest, id="people", tag=name))
    return found.branch, found.version


def test_tags_move_to_what_their_versions_have_without_the_rows(catalog: Server) -> None:
    table = tagged(catalog)
    create_table_branch(catalog.ctx, ask(models.CreateTableBranchRequest, id="people", name="try"))
    tag(catalog, "tried", int(lance.dataset(table.location).checkout_version(("try", None)).version), branch="try")
    clone.clone_table(catalog.ctx, ask(models.CloneTableRequest, id="copy", source_location=table.location))
    tag(catalog, "copied", int(catalog.open("copy").version), table="copy")
    with pytest.raises(InvalidInputError, match=r"the tag 'release' of people .*--supersede-tags"):
        request(catalog)
    report = erase(catalog, supersede_tags=True)
    assert report["unresolved"] == [] and planted(catalog) == []
    moved = {each["name"]: each["tags_superseded"] for each in report["tables"]}
    name = f"superseded-release-{report['erasure'][:8]}"
    assert f"release: the branch {name}" in moved["people"] and len(moved["people"]) == 2 and len(moved["copy"]) == 1
    assert all(each["tags_ended"] == [] for each in report["tables"])
    assert version_of(catalog, "release")[0] == name
    release = lance.dataset(table.location).checkout_version("release")
    assert sorted(release.to_table()["user"].to_pylist()) == [user for user in range(20) if user != 7]
    assert release.count_rows("mail = 'user3@example.org'") == 1
    assert "ScalarIndexQuery" in release.scanner(filter="mail = 'user3@example.org'").explain_plan()
    assert lance.dataset(table.location).checkout_version("tried").count_rows() == 39
    assert catalog.open("copy").checkout_version("copied").count_rows() == 39 == catalog.open("people").count_rows()


def test_a_tag_that_moved_moves_again(catalog: Server) -> None:
    table = tagged(catalog)
    first = erase(catalog, supersede_tags=True)
    second = erase(catalog, supersede_tags=True, predicate="user = 9")
    assert first["outcome"] == second["outcome"] == "complete"
    assert version_of(catalog, "release")[0] == f"superseded-release-{second['erasure'][:8]}"
    assert lance.dataset(table.location).checkout_version("release").count_rows() == 18


def test_a_snapshot_stays_protected_where_tags_alone_move(catalog: Server) -> None:
    tagged(catalog)
    create_snapshot(catalog.ctx, ask(models.CreateSnapshotRequest, name="audit", tables=[["people"]]))
    with pytest.raises(InvalidInputError, match="the snapshot 'audit'") as refusal:
        request(catalog, supersede_tags=True)
    assert "release" not in str(refusal.value)
    report = erase(catalog, supersede_tags=True, end_protected=True)
    assert report["outcome"] == "complete" and planted(catalog) == []
    [figures] = report["tables"]
    assert figures["snapshots_ended"] == ["audit"] and len(figures["tags_superseded"]) == 1


@pytest.mark.parametrize(("stage", "times"), [("rows", 1), ("rows", 2), ("old versions", 1), ("garbage", 1)])
def test_a_job_that_is_killed_moves_each_tag_once(catalog: Server, stage: str, times: int) -> None:
    table = tagged(catalog)
    number = request(catalog, supersede_tags=True)
    store, seen = catalog.services.store, [0]
    record = store.claim_transaction("first", 60_000)
    assert record is not None

    def die(properties: Mapping[str, str]) -> bool:
        seen[0] += properties.get("stage") == stage
        if seen[0] == times:
            raise KilledError
        return True

    with pytest.raises(KilledError):
        JOBS[ERASE](catalog.ctx, Job(record.id, record.kind, record.table_id, record.payload, die))
    store.finish_transaction(record.id, "first", record.status.QUEUED)
    assert catalog.run_jobs() == ["Succeeded"]
    assert report_of(catalog, number)["outcome"] == "complete" and planted(catalog) == []
    assert lance.dataset(table.location).checkout_version("release").count_rows() == 19
    assert len(lance.dataset(table.location).branches.list()) == 1
