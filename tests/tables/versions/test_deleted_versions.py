"""BatchDeleteTableVersions: deleted versions are not listed, described or read, and their files are removed later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)
from msgspec import structs
from tests.tables.bodies import small
from tests.tables.commits.test_commit import commit_all, create, stage
from tests.tables.served import Server, ask

from tiltyard.catalog.tables import deregister_table, describe_table, register_table, table_exists
from tiltyard.catalog.undrop import undrop_table
from tiltyard.model.spec import models
from tiltyard.store.tables.versions import subtract
from tiltyard.tables.commits.commit import batch_delete_table_versions
from tiltyard.tables.query.query import count_table_rows
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.upkeep.garbage import CollectOptions, collect
from tiltyard.tables.upkeep.repair import repair
from tiltyard.tables.versions.branches import create_table_branch, delete_table_branch
from tiltyard.tables.versions.clone import clone_table
from tiltyard.tables.versions.tags import create_table_tag, delete_table_tag
from tiltyard.tables.versions.versions import describe_table_version, list_table_versions, restore_table

ROWS = pa.table({"id": [1, 2, 3]})
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=["true", "false"], ids=["managed", "straight"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A server whose table `t` has versions 1 to 5."""
    running = Server(tmp_path / "root", conflict_timeout=60.0, gc_safety_days=0.0)
    properties = {"tiltyard.managed_versioning": request.param}
    create_table(running.ctx, ask(models.CreateTableRequest, id="t", properties=properties), small(ROWS))
    for _ in range(4):
        insert_into_table(running.ctx, ask(models.InsertIntoTableRequest, id="t"), small(ROWS))
    yield running
    running.services.close()


def delete(server: Server, *ranges: tuple[int, int], **fields: Any) -> int:
    version_ranges = [{"start_version": start, "end_version": end} for start, end in ranges]
    request = ask(models.BatchDeleteTableVersionsRequest, id="t", ranges=version_ranges, **fields)
    return batch_delete_table_versions(server.ctx, request).deleted_count or 0


def listed(server: Server, **fields: Any) -> list[int]:
    """List versions page by page."""
    numbers: list[int] = []
    token = None
    while True:
        request = ask(models.ListTableVersionsRequest, id="t", page_token=token, **fields)
        page = list_table_versions(server.ctx, request)
        numbers += [version.version for version in page.versions]
        if (token := page.page_token) is None:
            return numbers


def reads(server: Server, version: int) -> dict[str, Callable[[], Any]]:
    """Call every operation that takes a version by its number."""
    ctx = server.ctx
    location = ctx.store.describe_table(("t",)).location
    request = {"id": "t", "version": version}
    return {
        "describe a version": lambda: describe_table_version(ctx, ask(models.DescribeTableVersionRequest, **request)),
        "describe": lambda: describe_table(ctx, ask(models.DescribeTableRequest, **request)),
        "exists": lambda: table_exists(ctx, ask(models.TableExistsRequest, **request)),
        "count": lambda: count_table_rows(ctx, ask(models.CountTableRowsRequest, **request)),
        "restore": lambda: restore_table(ctx, ask(models.RestoreTableRequest, **request)),
        "tag": lambda: create_table_tag(ctx, ask(models.CreateTableTagRequest, tag="new", **request)),
        "branch": lambda: create_table_branch(
            ctx, ask(models.CreateTableBranchRequest, id="t", name="new", from_version=version)
        ),
        "clone": lambda: clone_table(
            ctx, ask(models.CloneTableRequest, id="c", source_location=location, source_version=version)
        ),
    }


def told(read: Callable[[], Any]) -> type[Exception] | None:
    """Return the type of the error that a call raises."""
    try:
        read()
    except LanceNamespaceError as error:
        return type(error)
    return None


def test_deleted_versions_are_not_listed_described_or_read(server: Server) -> None:
    assert [reads(server, 3)["count"]() for _ in range(2)] == [9, 9]  # it is open for both
    assert delete(server, (2, 4)) == 2
    assert listed(server) == [1, 4, 5]
    assert listed(server, descending=True) == [5, 4, 1]
    assert listed(server, descending=True, limit=1) == [5, 4, 1]
    outcomes = {name: told(read) for name, read in reads(server, 3).items()}
    assert outcomes == dict.fromkeys(outcomes, TableVersionNotFoundError)
    for version in (1, 4, 5):
        reads(server, version)["describe a version"]()
        assert reads(server, version)["count"]() == 3 * version


def test_deleting_versions_again_or_all_of_them_leaves_the_latest_and_counts_what_was_there(server: Server) -> None:
    assert [delete(server, (2, 3), (2, 3)), delete(server, (2, 4)), delete(server, (4, 9))] == [1, 1, 1]
    assert [delete(server, (0, -1)), delete(server, (0, -1))] == [1, 0]
    assert listed(server) == [5]
    insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t"), small(ROWS))
    assert listed(server) == [5, 6]
    with pytest.raises(InvalidInputError):
        delete(server, (3, 1))


def test_versions_with_a_tag_stay(server: Server) -> None:
    create_table_tag(server.ctx, ask(models.CreateTableTagRequest, id="t", tag="kept", version=2))
    assert delete(server, (0, -1)) == 3
    assert listed(server) == [2, 5]
    delete_table_tag(server.ctx, ask(models.DeleteTableTagRequest, id="t", tag="kept"))
    assert delete(server, (0, -1)) == 1


def test_versions_of_a_branch_are_its_own(server: Server) -> None:
    create_table_branch(server.ctx, ask(models.CreateTableBranchRequest, id="t", name="b", from_version=2))
    for _ in range(2):
        insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t", branch="b"), small(ROWS))
    versions = listed(server, branch="b")
    assert delete(server, (0, -1), branch="b") == len(versions) - 1
    assert (listed(server, branch="b"), listed(server)) == (versions[-1:], [1, 2, 3, 4, 5])
    delete_table_branch(server.ctx, ask(models.DeleteTableBranchRequest, id="t", name="b"))
    create_table_branch(server.ctx, ask(models.CreateTableBranchRequest, id="t", name="b", from_version=2))
    insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t", branch="b"), small(ROWS))
    assert listed(server, branch="b") == versions[:2]


def test_deleted_versions_stay_deleted_by_repair_and_undrop(server: Server) -> None:
    delete(server, (2, 4))
    repair(server.ctx, server.ctx.store.describe_table(("t",)), dry_run=False)
    assert listed(server) == [1, 4, 5]
    location = deregister_table(server.ctx, ask(models.DeregisterTableRequest, id="t")).location
    undrop_table(server.ctx, ask(models.UndropTableRequest, id="t"))
    assert listed(server) == [1, 4, 5]
    deregister_table(server.ctx, ask(models.DeregisterTableRequest, id="t"))
    register_table(server.ctx, ask(models.RegisterTableRequest, id="t", location=location))
    assert listed(server) == [1, 2, 3, 4, 5]  # another entry, which knows nothing of the one before


def test_files_of_deleted_versions_stay_until_garbage_is_collected_a_retention_time_later(server: Server) -> None:
    ctx, record = server.ctx, server.ctx.store.describe_table(("t",))
    overwrite = ask(models.InsertIntoTableRequest, id="t", mode="overwrite")
    assert insert_into_table(ctx, overwrite, small(ROWS)).version == 6
    delete(server, (1, 3), (4, 5))

    def stored() -> list[int]:
        return sorted(reference["version"] for reference in lance.dataset(record.location).version_refs())

    collect(ctx, record, CollectOptions())
    assert stored() == [1, 2, 3, 4, 5, 6]
    now = ctx.clock()
    far = now + 20 * DAY_MS
    services = dataclasses.replace(ctx.services, clock=lambda: now + 8 * DAY_MS)
    later = structs.replace(ctx, services=services)
    assert [file.path for file in collect(later, record, CollectOptions(dry_run=True)).garbage] == [
        f"_versions/{2**64 - 1 - version}.manifest" for version in (1, 2)
    ]
    collection = collect(later, record, CollectOptions())
    assert (collection.versions, stored()) == (2, [3, 4, 5, 6])  # 4 is behind one that is still there
    assert {file.kind for file in collection.garbage} == {"old version", "transaction"}  # 3 still needs the first rows
    assert listed(server) == [3, 5, 6]
    delete(server, (0, -1))
    collection = collect(
        structs.replace(later, services=dataclasses.replace(services, clock=lambda: far)), record, CollectOptions()
    )
    assert (collection.versions, stored(), listed(server)) == (3, [6], [6])
    assert sum(file.kind == "data" for file in collection.garbage) == 5
    assert ctx.store.deleted_versions(record.id) == []
    assert count_table_rows(ctx, ask(models.CountTableRowsRequest, id="t")) == 3


def test_version_that_exists_is_told_before_anything_else_is_looked_at(server: Server, tmp_path: Path) -> None:
    folder = Path(server.ctx.store.describe_table(("t",)).location)
    delete(server, (2, 3))
    for version in (1, 2, 5):
        for path in ("/etc/passwd", "_versions/none.manifest", f"{folder}/_versions/{2**64 - 1 - version}.manifest-x"):
            with pytest.raises(ConcurrentModificationError, match=f"Version {version} exists"):
                create(server, "t", version, path)
            entry = {"create_table_version": {"id": ["t"], "version": version, "manifest_path": path}}
            with pytest.raises(ConcurrentModificationError, match=f"Version {version} exists"):
                commit_all(server, entry)
    for version in (0, 6, 7):
        with pytest.raises(InvalidInputError):
            create(server, "t", version, "/etc/passwd")
    assert create(server, "t", 6, stage(folder, 6, tmp_path, ROWS)).version == 6


def test_batch_deletes_versions_for_all_to_see(server: Server, tmp_path: Path) -> None:
    folder = Path(server.ctx.store.describe_table(("t",)).location)
    response = commit_all(
        server,
        {"create_table_version": {"id": ["t"], "version": 6, "manifest_path": stage(folder, 6, tmp_path, ROWS)}},
        {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 2, "end_version": -1}]}},
    )
    deleted = response.results[1].delete_table_versions
    assert (deleted and deleted.deleted_count, listed(server)) == (4, [1, 6])
    invalid: dict[str, Any] = {"deregister_table": {"id": ["nope"]}}
    with pytest.raises(LanceNamespaceError):
        commit_all(
            server,
            {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 0, "end_version": -1}]}},
            invalid,
        )
    assert listed(server) == [1, 6]


@pytest.mark.parametrize(
    ("ranges", "subtracted", "remaining"),
    [
        ([], [(1, 2)], []),
        ([(3, 3), (5, 2)], [], []),
        ([(1, 4), (3, 9), (9, 10)], [], [(1, 10)]),
        ([(1, 10)], [(0, 2), (4, 5), (9, 20)], [(2, 4), (5, 9)]),
        ([(1, 3), (5, 8)], [(2, 6)], [(1, 2), (6, 8)]),
        ([(1, 3), (5, 8), (20, 30)], [(0, 25), (29, 30)], [(25, 29)]),
        ([(1, 3)], [(3, 4)], [(1, 3)]),
    ],
)
def test_ranges_are_subtracted(
    ranges: list[tuple[int, int]], subtracted: list[tuple[int, int]], remaining: list[tuple[int, int]]
) -> None:
    assert list(subtract(ranges, subtracted)) == remaining
