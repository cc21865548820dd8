"""The storage on an object store: an S3 that runs in this process."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import lance
import pytest
from bench.s3_proxy import S3Proxy, sequential_round_trips
from lance_namespace import errors
from msgspec import structs
from tests.tables.bodies import Streamed, rows, small
from tests.tables.objects.calls import (
    count,
    count_served,
    create,
    insert,
    names_of_versions,
    requests_of,
)
from tests.tables.served import run_concurrently

from tiltyard.bootstrap import open_services
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.runtime.cache import lasting_facts
from tiltyard.storage import Storage, StorageError, writing
from tiltyard.storage.caches import shared_snapshots
from tiltyard.storage.manifests.next_manifest import NextManifest
from tiltyard.tables.commits.batch_commit import batch_commit_tables
from tiltyard.tables.commits.commit import create_table_version
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table
from tiltyard.tables.upkeep.repair import repair_table
from tiltyard.tables.versions.tags import (
    create_table_tag,
    delete_table_tag,
    get_table_tag_version,
    update_table_tag,
)
from tiltyard.tables.versions.versions import describe_table_version, list_table_versions


def test_objects_tables_are_written_read_and_deleted(ctx: Context) -> None:
    location = create(ctx)
    insert_into_table(ctx, models.InsertIntoTableRequest(id=["t"]), Streamed(rows(2000)))
    assert count(ctx, location) == 2003
    assert ctx.storage.has_table(location)
    assert ctx.storage.table_uri(location) == location == ctx.storage.check_location(location + "/")
    for _ in range(2):
        ctx.storage.delete_folder(location)
    assert not ctx.storage.has_table(location)
    assert ctx.storage.is_empty(location)


def test_objects_credentials_are_never_public(ctx: Context, options: dict[str, str]) -> None:
    assert ctx.storage.options(ctx.storage.root) == {"client_retry_timeout": "20", **options}
    assert set(ctx.storage.roots.public_options(ctx.storage.root)) == {"aws_endpoint", "allow_http", "region"}


def test_objects_declared_table_loses_no_insert(ctx: Context) -> None:
    location = ctx.storage.new_location(Id(("t",)))
    ctx.store.insert_table(("t",), location, {}, declared=True)
    request = models.InsertIntoTableRequest(id=["t"])
    results = run_concurrently(
        [lambda key=key: insert_into_table(ctx, request, small(rows(1, key))) for key in range(8)]
    )
    assert {type(result) for result in results} == {models.InsertIntoTableResponse}
    assert count(ctx, location) == 8
    assert ctx.storage.files(location).list_names(location) == ["_transactions", "_versions", "data"]


def test_objects_finalize_manifest_happens_once(ctx: Context) -> None:
    location = create(ctx)
    files = ctx.storage.files(location)
    final = "_versions/18446744073709551613.manifest"
    for staged in ("a", "b"):
        files.write_if_not_exists(f"{location}/{final}-{staged}", staged.encode())
    plain = location.removeprefix("s3://bucket/")
    results: list[Any] = []

    def finalize(staged: str) -> None:
        try:
            results.append(ctx.storage.manifests.finalize(location, f"{plain}/{final}-{staged}", f"{plain}/{final}"))
        except errors.ConcurrentModificationError as error:
            results.append(error)

    threads = [threading.Thread(target=finalize, args=(staged,)) for staged in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["ConcurrentModificationError", "FileStat"]
    winner = ctx.storage.files(location).read(f"{location}/{final}").decode()
    repeated = ctx.storage.manifests.finalize(location, f"{final}-{winner}", final)
    assert (repeated.size, repeated.e_tag) == (1, ctx.storage.stat(location, final).e_tag)


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket",
        "s3://other/root/t",
        "s3://bucket/{base}/root",
        "s3://bucket/{base}/root-evil/t",
        "s3://bucket/{base}/root/../x",
        "s3://bucket/{base}/root/%2e%2e/x",
        "s3://bucket/{base}/root//t",
        "s3://bucket/{base}/root/t?versionId=1",
        "s3://bucket/{base}/root/t.lance/data",
        "S4://bucket/{base}/root/t",
        "/{base}/root/t",
    ],
)
def test_objects_location_outside_is_refused(ctx: Context, location: str) -> None:
    base = ctx.storage.root.split("/")[3]
    with pytest.raises(errors.InvalidInputError):
        ctx.storage.check_location(location.format(base=base))


def test_objects_probe_asks_for_real(ctx: Context, options: dict[str, str]) -> None:
    ctx.storage.probe()
    elsewhere = options | {"aws_endpoint": "http://127.0.0.1:9"}
    unreachable = Storage(Settings(root="s3://bucket/x", db="sqlite:///x", storage_options=elsewhere))
    with pytest.raises(errors.ServiceUnavailableError):
        unreachable.probe()
    missing = Storage(Settings(root="s3://missing/x", db="sqlite:///x", storage_options=options))
    with pytest.raises(StorageError, match="not writable"):
        missing.prepare()


def test_objects_larger_than_the_bound_are_not_read_whole(ctx: Context) -> None:
    location = create(ctx)
    files, staged = ctx.storage.files(location), f"{location}/_versions/{2**64 - 3}.manifest-staged"
    files.write_if_not_exists(staged, bytes(65 << 20))
    request = models.CreateTableVersionRequest(id=["t"], version=2, manifest_path=staged, naming_scheme="V2")
    reads = (
        lambda: create_table_version(ctx, request),
        lambda: files.read(staged),
        lambda: files.rename_if_not_exists(staged, f"{location}/_versions/other"),  # as if swapped after the check
    )
    for read in reads:
        with pytest.raises(errors.InvalidInputError, match=rf"has {65 << 20} bytes, and at most {64 << 20} are read"):
            read()
    assert files.stat(staged) is not None


def stage(ctx: Context, location: str, version: int, name: str = "t") -> models.CreateTableVersionRequest:
    """Stage an append as a client does; return the request that commits it."""
    lance.write_dataset(rows(1), location, mode="append", storage_options=ctx.storage.options(location))
    files, final = ctx.storage.files(location), f"{location}/_versions/{2**64 - 1 - version}.manifest"
    assert files.write_if_not_exists(f"{final}-staged", files.read(final))
    files.delete([final])
    ctx.storage.datasets.evict(location)
    request = models.CreateTableVersionRequest(id=[name], version=version, manifest_path=f"{final}-staged")
    return structs.replace(request, naming_scheme="V2")


def test_objects_staged_manifest_is_read_once_and_deleted_before_its_version_is_marked(
    counted: Context, proxy: S3Proxy
) -> None:
    location = create(counted)
    request, table = stage(counted, location, 2), counted.store.describe_table(("t",))
    responses: list[models.TableVersion | None] = []
    requests = requests_of(counted, proxy, lambda: responses.append(create_table_version(counted, request).version))
    assert {kind: requests[kind] for kind in ("GET staged manifest", "PUT manifest", "POST other")} == {
        "GET staged manifest": 1,
        "PUT manifest": 1,
        "POST other": 0,
    }
    final = f"{2**64 - 3}.manifest"
    stat = counted.storage.stat(location, f"_versions/{final}")
    assert responses[0] is not None and stat is not None
    assert (responses[0].manifest_size, responses[0].e_tag) == (stat.size, stat.e_tag)
    assert f"{final}-staged" in names_of_versions(counted, location)
    asked: list[str] = []
    counted.storage.vended_credentials = asked.append
    assert counted.store.has_pending_versions(table.id)
    assert requests_of(counted, proxy, lambda: None) == {}
    assert asked == [location]  # with the credentials of its table
    assert names_of_versions(counted, location) == [final, f"{2**64 - 2}.manifest"]
    assert not counted.store.has_pending_versions(table.id)


def test_objects_version_of_a_server_that_died_before_marking_it_is_complete(counted: Context) -> None:
    location = create(counted)
    create_table_version(counted, stage(counted, location, 2))
    other = Context(open_services(counted.settings))
    report = repair_table(other, models.RepairTableRequest(id=["t"]))
    assert not report.findings
    table = other.store.describe_table(("t",))
    assert finalize_pending(other, table.id) == 1
    other.services.commit_log.flush()
    assert not other.store.has_pending_versions(table.id)
    assert names_of_versions(other, location) == [f"{2**64 - 3}.manifest", f"{2**64 - 2}.manifest"]
    other.store.close()


def listed(ctx: Context, **fields: Any) -> list[int]:
    response = list_table_versions(ctx, models.ListTableVersionsRequest(id=["t"], **fields))
    return [version.version for version in response.versions]


def test_objects_versions_are_listed_by_one_list_and_each_is_read_once(counted: Context, proxy: S3Proxy) -> None:
    location = create(counted)
    for key in range(3):
        insert_into_table(counted, models.InsertIntoTableRequest(id=["t"]), small(rows(1, key)))
    request = models.ListTableVersionsRequest(id=["t"])
    assert requests_of(counted, proxy, lambda: listed(counted)) == {"LIST versions": 1, "GET manifest": 4}
    assert requests_of(counted, proxy, lambda: listed(counted)) == {"LIST versions": 1}
    versions = {version.version: version for version in list_table_versions(counted, request).versions}
    assert sorted(versions) == [1, 2, 3, 4]
    for number, version in versions.items():
        described = describe_table_version(counted, models.DescribeTableVersionRequest(id=["t"], version=number))
        assert described.version == version
        assert version.metadata and version.metadata["total_rows"] == str(2 + number)
        stat = counted.storage.stat(location, version.manifest_path)
        assert stat is not None and (version.manifest_size, version.e_tag) == (stat.size, stat.e_tag)
    counted.storage.files(location).delete([f"{location}/_versions/{2**64 - 2}.manifest"])
    assert listed(counted) == [2, 3, 4]
    first = list_table_versions(counted, models.ListTableVersionsRequest(id=["t"], limit=2, descending=True))
    assert [version.version for version in first.versions] == [4, 3]
    assert listed(counted, page_token=first.page_token, descending=True) == [2]


def test_objects_latest_version_is_looked_up_in_the_catalog(counted: Context, proxy: S3Proxy) -> None:
    """And a version of another server is seen at once."""
    create(counted)
    assert insert(counted, 10) == 2
    assert requests_of(counted, proxy, lambda: count_served(counted)) == {}
    assert requests_of(counted, proxy, lambda: insert(counted, 11))["LIST versions"] <= 1  # Lance's own, at its commit
    other = Context(open_services(counted.settings))
    assert count_served(other) == 5
    assert insert(other, 12) == 4
    assert count_served(counted) == 6  # not marked as final yet
    other.services.commit_log.flush()
    assert count_served(counted) == 6
    assert requests_of(counted, proxy, lambda: count_served(counted)) == {}
    other.services.close()


def test_objects_commit_that_bypassed_the_catalog_is_met_by_a_commit_and_seen_by_readers_soon(
    counted: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = create(counted)
    assert insert(counted, 10) == 2
    assert count_served(counted) == 4
    options = counted.storage.options(location)
    lance.write_dataset(rows(1, 20), location, mode="append", storage_options=options)
    assert insert(counted, 11) == 4
    assert count_served(counted) == 6
    lance.write_dataset(rows(1, 21), location, mode="append", storage_options=options)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + shared_snapshots._CONFIRMED_SECONDS)
    assert count_served(counted) == 7


def test_objects_insert_goes_on_from_the_version_that_a_restored_folder_has(counted: Context, proxy: S3Proxy) -> None:
    location = create(counted)
    assert insert(counted, 10) == 2
    before = {file.path: file for file in counted.storage.files(location).walk(location)}
    assert insert(counted, 11) == 3
    counted.services.commit_log.flush()
    added = [file.path for file in counted.storage.files(location).walk(location) if file.path not in before]
    counted.storage.files(location).delete([f"{location}/{path}" for path in added])
    assert insert(counted, 12) == 3
    ids = lance.dataset(location, storage_options=counted.storage.options(location)).to_table().column("id").to_pylist()
    assert sorted(ids) == [0, 1, 2, 10, 12]


def test_objects_batch_checks_its_tables_at_once(counted: Context, proxy: S3Proxy) -> None:
    """As many requests in sequence for two tables as for one, and the first entry's refusal is the batch's."""
    locations = {name: create(counted, name) for name in ("t", "u")}
    staged = [stage(counted, location, 2, name) for name, location in locations.items()]

    def commit(*requests: models.CreateTableVersionRequest) -> models.BatchCommitTablesResponse:
        operations = [models.CommitTableOperation(create_table_version=request) for request in requests]
        return batch_commit_tables(counted, models.BatchCommitTablesRequest(operations=operations))

    bad = [structs.replace(request, version=7 + index) for index, request in enumerate(staged)]
    with pytest.raises(errors.InvalidInputError, match="is of version 2, not 7"):
        commit(*bad)
    requests_of(counted, proxy, lambda: None)
    proxy.delay = 0.2
    try:
        commit(*staged)
    finally:
        proxy.delay = 0.0
    assert sequential_round_trips(proxy.drain()) in (3, 4)  # 5 where the second table is checked after the first
    assert [count(counted, location) for location in locations.values()] == [4, 4]


def test_objects_tag_is_created_without_reading_the_others(counted: Context, proxy: S3Proxy) -> None:
    create(counted)
    insert(counted, 10)

    def tag(name: str, version: int = 1) -> models.CreateTableTagResponse:
        return create_table_tag(counted, models.CreateTableTagRequest(id=["t"], tag=name, version=version))

    tag("a")
    tag("b")
    requests = requests_of(counted, proxy, lambda: tag("c"))
    assert requests == {"HEAD manifest": 3, "HEAD reference": 1, "PUT reference": 1}, "the last one confirms the tag"
    with pytest.raises(errors.TableTagAlreadyExistsError, match="'c' exists already: update it"):
        tag("c")
    with pytest.raises(errors.TableVersionNotFoundError):
        tag("d", 9)


@pytest.mark.parametrize("others", ["delete", "move"])
def test_objects_tag_that_several_change_at_once_is_deleted_once(
    counted: Context, other_machine: Context, others: str
) -> None:
    """Whoever is told that it deleted the tag, has; whoever moved it, has done so before."""
    create(counted)
    insert(counted, 10)
    tag = {"id": ["t"], "tag": "a"}

    def delete(ctx: Context) -> str:
        delete_table_tag(ctx, models.DeleteTableTagRequest(**tag))
        return "deleted"

    def change(ctx: Context) -> str:
        if others == "delete":
            return delete(ctx)
        update_table_tag(ctx, models.UpdateTableTagRequest(**tag, version=2))
        return "moved"

    for _ in range(12):
        create_table_tag(counted, models.CreateTableTagRequest(**tag, version=1))
        done = run_concurrently(partial(work, ctx) for work in (delete, change) for ctx in (counted, other_machine))
        assert done.count("deleted") == 1, done
        with pytest.raises(errors.TableTagNotFoundError):
            get_table_tag_version(counted, models.GetTableTagVersionRequest(**tag))


ONE_INSERT = {
    "LIST versions": 1,
    "GET manifest": 1,
    "PUT data": 1,
    "PUT transaction": 1,
    "PUT staged manifest": 1,
    "PUT manifest": 1,
    "HEAD manifest": 1,
}


AT_ONCE = {name: count for name, count in ONE_INSERT.items() if name != "GET manifest"}
"""Of one after another insert of this process, which has the manifest; all puts but the last are sent together."""


@pytest.mark.parametrize("is_manifest_known", [False, True])
def test_objects_insert_makes_its_manifest_here(counted: Context, proxy: S3Proxy, is_manifest_known: bool) -> None:
    """And it is as if Lance had made it: with the index, the deletions, the row ids and the transaction."""
    location = create(counted, storage_options={"new_table_enable_stable_row_ids": "true"})
    dataset = lance.dataset(location, storage_options=counted.storage.options(location))
    dataset.create_scalar_index("id", "BTREE")
    delete_from_table(counted, models.DeleteFromTableRequest(id=["t"], predicate="id = 0"))
    insert(counted, 10)
    version: list[int | None] = []
    if not is_manifest_known:
        lasting_facts.clear()
    requests = requests_of(counted, proxy, lambda: version.append(insert(counted, 11)))
    # without the manifest, Lance reads which indexes there are, too
    assert requests == (AT_ONCE if is_manifest_known else {**ONE_INSERT, "GET manifest": 2})
    assert counted.services.append_counts.read().get("at_once", 0) == is_manifest_known
    assert version == [5]
    latest = lance.dataset(location, storage_options=counted.storage.options(location))
    assert latest.version == 5
    assert sorted(latest.to_table(columns=["id"])["id"].to_pylist()) == [1, 2, 10, 11]
    assert latest.to_table(filter="id = 11", with_row_id=True)["_rowid"].to_pylist() == [4]
    assert latest.describe_indices()[0].num_rows_indexed == 2
    transaction = latest.read_transaction(5)
    assert transaction is not None and transaction.read_version == 4
    assert count_served(counted) == 4
    latest.insert(rows(1, 12))
    assert latest.count_rows() == 5


def test_objects_inserts_after_each_other_put_rows_and_manifest_at_once(counted: Context, proxy: S3Proxy) -> None:
    location = create(counted)
    insert(counted, 10)
    assert requests_of(counted, proxy, lambda: insert(counted, 11)) == ONE_INSERT
    for number in (12, 13):
        proxy.drain()
        proxy.delay = 0.1
        assert requests_of(counted, proxy, partial(insert, counted, number)) == AT_ONCE
        proxy.delay = 0.0
    assert counted.services.append_counts.read() == {"lance": 1, "made_here": 1, "at_once": 2}
    dataset = lance.dataset(location, storage_options=counted.storage.options(location))
    dataset.validate()
    assert sorted(dataset.to_table()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12, 13]
    assert count_served(counted) == 7


@pytest.mark.parametrize("maker", ["make_next_manifest", "make_append"])
def test_objects_insert_that_another_server_overtakes_is_made_again_on_top(
    counted: Context, other_machine: Context, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    location = create(counted)
    insert(counted, 10)
    assert requests_of(counted, proxy, lambda: insert(counted, 9)) == ONE_INSERT
    if maker == "make_next_manifest":
        lasting_facts.clear()
    make = getattr(writing, maker)

    def overtake(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, maker, make)
        assert insert(other_machine, 11) == 4
        return make(*arguments)

    monkeypatch.setattr(writing, maker, overtake)
    assert insert(counted, 12) == 5
    assert count(counted, location) == 7
    assert counted.services.append_counts.read() == {"made_here": 1, "lance": 2}, "Lance rebases what is overtaken"
    data = counted.storage.files(location).list_names(f"{location}/data")
    assert len(data) == 5, "what was put at once and lost is deleted"
    other_machine.services.commit_log.flush()
    counted.services.commit_log.flush()
    assert all(name.endswith(".manifest") for name in names_of_versions(counted, location))
    assert len(counted.storage.files(location).list_names(f"{location}/_transactions")) == 5


def test_objects_insert_does_not_wait_until_its_version_is_open(counted: Context, may_open: threading.Event) -> None:
    """Nor do inserts that follow; who reads waits, and sees all of them."""
    create(counted)
    may_open.clear()
    assert [insert(counted, number) for number in (10, 11, 12)] == [2, 3, 4]
    counts: list[int] = []
    reader = threading.Thread(target=lambda: counts.append(count_served(counted)))
    reader.start()
    reader.join(0.2)
    assert counts == []
    may_open.set()
    reader.join(30)
    assert counts == [6]
    assert insert(counted, 13) == 5 and count_served(counted) == 7


def test_objects_insert_while_the_version_is_opened_meets_a_restored_folder(
    counted: Context, may_open: threading.Event
) -> None:
    location = create(counted)
    assert insert(counted, 10) == 2
    counted.storage.datasets.openings.wait()
    may_open.clear()
    before = {file.path for file in counted.storage.files(location).walk(location)}
    assert insert(counted, 11) == 3
    counted.services.commit_log.flush()
    added = [file.path for file in counted.storage.files(location).walk(location) if file.path not in before]
    counted.storage.files(location).delete([f"{location}/{path}" for path in added])
    outcome: list[int | None] = []
    writer = threading.Thread(target=lambda: outcome.append(insert(counted, 12)))
    writer.start()
    may_open.set()
    writer.join(30)
    assert outcome == [3]
    ids = lance.dataset(location, storage_options=counted.storage.options(location)).to_table()["id"].to_pylist()
    assert sorted(ids) == [0, 1, 2, 10, 12]
    assert count_served(counted) == 5


def test_objects_insert_while_the_version_is_opened_meets_another_server(
    counted: Context, other_machine: Context, may_open: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the version that this server has committed is opened first, to commit after the other one's."""
    location = create(counted)
    may_open.clear()
    assert insert(counted, 10) == 2
    make = writing.make_next_manifest

    def overtake(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, "make_next_manifest", make)
        assert insert(other_machine, 11) == 3
        may_open.set()
        return make(*arguments)

    monkeypatch.setattr(writing, "make_next_manifest", overtake)
    assert insert(counted, 12) == 4
    assert count(counted, location) == 6 and count_served(counted) == 6


def test_objects_version_that_cannot_be_opened_is_opened_by_the_next_reader(
    counted: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(counted)

    def fail(*_: Any) -> Any:
        raise OSError("no connection")

    with monkeypatch.context() as patched:
        patched.setattr(NextManifest, "open", fail)
        assert [insert(counted, number) for number in (10, 11)] == [2, 3]
        assert count_served(counted) == 5
    assert insert(counted, 12) == 4 and count_served(counted) == 6


def test_objects_create_makes_its_manifest_here(counted: Context, proxy: S3Proxy) -> None:
    requests = requests_of(counted, proxy, lambda: create(counted))
    assert requests == {
        "LIST versions": 1,
        "PUT data": 1,
        "PUT transaction": 1,
        "PUT manifest": 1,
        "HEAD manifest": 1,
    }
    location = counted.store.describe_table(("t",)).location
    table = lance.dataset(location, storage_options=counted.storage.options(location))
    assert table.version == 1 and table.to_table() == rows(3)
    assert table.read_transaction(1) is not None
    assert insert(counted, 10) == 2 and count_served(counted) == 4


def test_objects_first_version_of_a_declared_table_is_staged_once(counted: Context, proxy: S3Proxy) -> None:
    location = counted.storage.new_location(Id(("t",)))
    counted.store.insert_table(("t",), location, {}, declared=True, managed=True)
    requests = requests_of(counted, proxy, lambda: insert(counted, 10))
    assert requests["PUT staged manifest"] == requests["PUT manifest"] == requests["PUT transaction"] == 1
    assert not requests["GET staged manifest"] and not requests["PUT other"]
    assert count(counted, location) == 1
