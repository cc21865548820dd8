"""Garbage collection of a table removes what no version, tag, branch or unfinished write refers to, and no more."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableNotFoundError
from tests.services.s3 import s3_server
from tests.tables.bodies import small
from tests.tables.served import Server, ask

from tiltyard.catalog import garbage as everywhere
from tiltyard.catalog import tables
from tiltyard.catalog.garbage import sweep
from tiltyard.model.ids import Id
from tiltyard.model.jobs import Job
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.store import NewVersion, Store
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.update_delete import delete_from_table
from tiltyard.tables.upkeep import garbage
from tiltyard.tables.upkeep.garbage import CollectOptions
from tiltyard.tables.versions import clone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.s3 import S3Server

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

ROWS = pa.table({"id": range(100)})


@pytest.fixture(scope="module")
def objects() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.extended)])
def careless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server without a safety period (`gc_safety_days` 0); on a folder, then on S3."""
    settings: dict[str, Any] = {"gc_safety_days": 0.0, "db": f"sqlite:///{tmp_path}/catalog.db"}
    if request.param == "folder":
        running = Server(tmp_path / "a root", **settings)
    else:
        objects: S3Server = request.getfixturevalue("objects")
        bucket = objects.new_bucket(f"gc-{time.time_ns()}")
        running = Server(f"{bucket}/tables", storage_options=objects.options, **settings)  # type: ignore[arg-type]  # a root may be a URI
    yield running
    running.services.close()


class Table:
    """A table with garbage of every kind."""

    def __init__(self, server: Server, name: str = "t") -> None:
        self.server = server
        location = server.services.storage.new_location(Id((name,)))
        self.options = server.services.storage.options(location)
        self.dataset = lance.write_dataset(ROWS, location, storage_options=self.options)
        self.record: TableRecord = server.services.store.insert_table((name,), location, {})
        self.location = location

    @property
    def files(self) -> set[str]:
        storage = self.server.services.storage
        return {file.path for file in storage.files(self.location).walk(self.location)}

    def write(self, path: str, content: bytes = b"garbage") -> str:
        self.server.services.storage.files(self.location).write_if_not_exists(f"{self.location}/{path}", content)
        return path

    def orphan(self, branch: str | None = None) -> str:
        """Write a data file that is not committed."""
        branch_dataset = self.dataset if branch is None else self.dataset.checkout_version((branch, None))
        [fragment] = write_fragments(ROWS, branch_dataset, mode="append")
        return f"{f'tree/{branch}/' if branch else ''}data/{fragment.files[0].path}"

    def litter(self) -> set[str]:
        return {
            self.orphan(),
            self.write("_indices/6f0c54c5-14f8-4a4e-9d2e-f2c4f8a9a3c1/page_data.lance"),
            self.write("_deletions/0-1-99.arrow"),
            self.write("_transactions/7-6f0c54c5-14f8-4a4e-9d2e-f2c4f8a9a3c1.txn"),
            self.write(f"_versions/{2**64 - 9}.manifest-6f0c54c5-14f8-4a4e-9d2e-f2c4f8a9a3c1"),
            self.write("_creating-6f0c54c514f84a4e/_versions/1.manifest"),
            self.write("_publishing-6f0c54c514f84a4e9d2ef2c4f8a9a3c1/18446744073709551613.manifest"),
            self.write("_publishing-6f0c54c514f84a4e9d2ef2c4f8a9a3c1/tree/try/18446744073709551613.manifest"),
        }

    def furnish(self) -> None:
        """Write versions, an index, deletions, a tag, and branches, one of them in the folder of another."""
        self.dataset.create_scalar_index("id", "BTREE")
        self.dataset.delete("id < 10")
        self.dataset.tags.create("first", 1)
        for name in ("try", "try/again"):
            branch = self.dataset.create_branch(name, (None, None))
            branch.insert(ROWS)
            branch.delete("id = 50")
            branch.create_scalar_index("id", "BTREE", name=f"own_{len(name)}")
        self.dataset = lance.dataset(self.location, storage_options=self.options)
        self.dataset.insert(ROWS)

    def check(self) -> None:
        """Check that every version of every branch reads all its rows, by an index as well."""
        for name in (None, "try", "try/again"):
            line = lance.dataset(self.location, storage_options=self.options).checkout_version((name, None))
            for entry in line.versions():
                seen = line.checkout_version((name, entry["version"]))
                assert seen.to_table().num_rows == seen.count_rows() > 0
                assert seen.to_table(filter="id = 60").num_rows >= 1


def collect(table: Table, **wish: Any) -> garbage.Collection:
    return garbage.collect(table.server.ctx, table.record, CollectOptions(**wish))


def test_collect_removes_what_no_version_tag_or_branch_needs(careless: Server) -> None:
    table = Table(careless)
    table.furnish()
    needed = table.files
    litter = table.litter() | {table.orphan("try"), table.orphan("try/again")}
    table.write("notes.txt")
    collection = collect(table, dry_run=True)
    assert {file.path for file in collection.garbage} == litter and collection.size > 0
    assert {file.kind for file in collection.garbage} == {
        *("data", "index", "deletion", "transaction", "staged manifest", "unfinished write"),
    }
    assert table.files == needed | litter | {"notes.txt"}
    assert {file.path for file in collect(table).garbage} == litter
    assert table.files == needed | {"notes.txt"}
    table.check()
    assert collect(table).garbage == []


def test_collect_removes_old_versions_but_those_with_tags_and_branches(careless: Server) -> None:
    table = Table(careless)
    table.furnish()
    store = careless.services.store
    for version in range(1, table.dataset.version + 1):
        path = f"_versions/{2**64 - 1 - version}.manifest"
        store.record_version(NewVersion(table.record.id, version, "", path, finalized=True))
    plan = collect(table, dry_run=True, keep_versions_days=0.0)
    assert plan.versions == 1 and {file.kind for file in plan.garbage} == {"old version"}
    before, collection = table.files, collect(table, keep_versions_days=0.0)
    assert collection.versions == 1
    assert before - table.files == {file.path for file in plan.garbage} == {file.path for file in collection.garbage}
    assert sorted(entry["version"] for entry in table.dataset.versions()) == [1, 3, 4]
    assert [record.version for record in store.list_versions(table.record.id)] == [1, 3, 4]
    table.check()
    assert collect(table, keep_versions_days=0.0).garbage == []


def test_collect_leaves_alone_what_is_younger_than_the_safety_age(server: Server) -> None:
    table = Table(server)
    table.litter()
    before = table.files
    assert collect(table).garbage == []
    assert table.files == before


@pytest.mark.parametrize("work", ["transaction", "upload"])
def test_collect_leaves_alone_what_unfinished_work_may_own(careless: Server, work: str) -> None:
    table, store = Table(careless), careless.services.store
    if work == "upload":
        upload = store.create_upload(table.record.id, "main", "")
    else:
        transaction = store.create_transaction("create_index", table.record.id, {}, {})
    orphan = table.orphan()
    assert collect(table).garbage == []
    if work == "upload":
        store.delete_upload(upload.id)
    else:
        store.claim_transaction("me", 1000)
        store.finish_transaction(transaction.id, "me", TransactionStatus.SUCCEEDED)
    assert [file.path for file in collect(table).garbage] == [orphan]


@pytest.mark.parametrize(("names", "owns"), [(["t"], True), (["other"], False), ([], True)])
def test_collect_leaves_alone_what_a_job_may_own_that_makes_its_table(
    careless: Server, names: list[str], owns: bool
) -> None:
    """A job queued before the table existed may be resumed; one without a table may write any."""
    store = careless.services.store
    transaction = store.create_transaction("ingest", None, {"arguments": {}, "table": names}, {})
    table = Table(careless)
    orphan = table.orphan()
    assert [file.path for file in collect(table, dry_run=True).garbage] == ([] if owns else [orphan])
    store.claim_transaction("me", 1000)
    store.save_job_part(transaction.id, "me", "share-1", "{}")
    store.finish_transaction(transaction.id, "me", TransactionStatus.FAILED)
    assert [file.path for file in collect(table).garbage] == ([] if owns else [orphan])


def test_collect_finishes_recorded_commits_before_it_looks(careless: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = Table(careless), careless.services.store
    table.dataset.insert(ROWS)
    final = f"{table.location}/_versions/{2**64 - 3}.manifest"
    files = careless.services.storage.files(table.location)
    files.write_if_not_exists(f"{final}-staged", files.read(final))
    files.delete([final])
    staged = NewVersion(table.record.id, 2, f"{final}-staged", f"_versions/{2**64 - 3}.manifest")
    store.record_version(staged)
    assert collect(table, dry_run=True).garbage[0].kind != "staged manifest"
    assert collect(table).garbage == []
    assert lance.dataset(table.location, storage_options=table.options).count_rows() == 200
    store.record_version(NewVersion(table.record.id, 3, f"{final}-lost", f"_versions/{2**64 - 4}.manifest"))
    monkeypatch.setattr(garbage, "_FINALIZE_SECONDS", 0.2)
    with pytest.raises(ConcurrentModificationError, match="repair"):
        collect(table)


def test_collect_of_a_table_that_another_process_commits_to_finds_a_moment_between(tmp_path: Path) -> None:
    """Act as another process, which marks its commits as final half a second later."""
    first, second = Server(tmp_path), Server(tmp_path)
    create_table(second.ctx, ask(models.CreateTableRequest, id="t"), small(ROWS))
    record, done = first.services.store.describe_table(("t",)), Event()

    def delete_one_by_one() -> int:
        for number in range(100):
            if done.is_set():
                return number
            delete_from_table(second.ctx, ask(models.DeleteFromTableRequest, id="t", predicate=f"id = {number}"))
        return 100

    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(delete_one_by_one)
        try:
            for _ in range(60):
                time.sleep(0.03)
                assert garbage.collect(first.ctx, record, CollectOptions()).notes == []
        finally:
            done.set()
    dataset = first.open("t")
    assert dataset.count_rows() == 100 - deleting.result() < 100
    assert [dataset.checkout_version(n + 1).count_rows() for n in range(dataset.version)] == list(
        range(100, dataset.count_rows() - 1, -1)
    )
    for server in (first, second):
        server.services.close()


def test_collect_spares_the_files_and_versions_of_shallow_clones(careless: Server) -> None:
    table = Table(careless)
    table.dataset.create_scalar_index("id", "BTREE")
    request = ask(models.CloneTableRequest, id="copy", source_location=table.location)
    clone.clone_table(careless.ctx, request)
    lance.write_dataset(ROWS, table.location, mode="overwrite", storage_options=table.options)
    before = table.files
    collection = collect(table, keep_versions_days=0.0)
    assert (collection.garbage, collection.versions) == ([], 0) and "clones" in collection.notes[0]
    assert table.files == before
    copy = careless.services.store.describe_table(("copy",)).location
    assert lance.dataset(copy, storage_options=table.options).to_table(filter="id = 5").num_rows == 1
    # Versions that somebody cleaned up round the server: what the clone needs stays even so.
    careless.services.store.remove_table(("copy",), delete_folder=True, keep_ms=60_000)
    lance.dataset(table.location, storage_options=table.options)
    files = careless.services.storage.files(table.location)
    files.delete([f"{table.location}/_versions/{2**64 - 1 - version}.manifest" for version in (1, 2)])
    assert {file.kind for file in collect(table).garbage} == {"transaction"}
    careless.services.store.restore_table(("copy",))
    assert lance.dataset(copy, storage_options=table.options).to_table(filter="id = 5").num_rows == 1


def test_collect_leaves_a_table_alone_whose_versions_are_not_there(careless: Server) -> None:
    """As in the middle of a restore, which brings the data first."""
    table, storage = Table(careless), careless.services.storage
    files = storage.files(table.location)
    names = [f"{table.location}/_versions/{name}" for name in files.list_names(f"{table.location}/_versions")]
    manifests = {name: files.read(name) for name in names}
    files.delete(names)
    before = table.files
    for options in ({"dry_run": True}, {}, {"keep_versions_days": 0.0}):
        collection = collect(table, **options)
        assert (collection.garbage, len(collection.notes)) == ([], 1) and "versions are missing" in collection.notes[0]
    assert table.files == before
    for name, content in manifests.items():
        files.write_if_not_exists(name, content)
    assert lance.dataset(table.location, storage_options=table.options).to_table().num_rows == 100


@pytest.mark.parametrize("branch", ["", "try"], ids=["main", "a branch"])
def test_collect_leaves_a_table_alone_whose_latest_version_is_recorded_and_gone(careless: Server, branch: str) -> None:
    table, store = Table(careless), careless.services.store
    line = table.dataset.create_branch("try", (None, None)) if branch else table.dataset
    line.insert(ROWS)
    latest = (
        lance.dataset(table.location, storage_options=table.options).checkout_version((branch or None, None)).version
    )
    folder = f"tree/{branch}/_versions" if branch else "_versions"
    path = f"{folder}/{2**64 - 1 - latest}.manifest"
    store.record_version(NewVersion(table.record.id, latest, "", path, branch=branch, finalized=True))
    files = careless.services.storage.files(table.location)
    content = files.read(f"{table.location}/{path}")
    files.delete([f"{table.location}/{path}"])
    before = table.files
    collection = collect(table, keep_versions_days=0.0)
    assert collection.garbage == [] and f"Version {latest}" in collection.notes[0] and "repair" in collection.notes[0]
    assert table.files == before
    files.write_if_not_exists(f"{table.location}/{path}", content)
    assert collect(table).garbage == []


def test_collect_leaves_alone_what_has_no_name_that_lance_gives(careless: Server) -> None:
    table = Table(careless)
    foreign_names = {
        table.write("data/part-0.parquet"),
        table.write("data/readme.txt"),
        table.write("_indices/readme.txt"),
        table.write("_indices/mine/page_data.lance"),
        table.write("_deletions/notes.md"),
        table.write("_transactions/7.txn.bak"),
        table.write("_versions/readme.txt"),
    }
    garbage_too = {table.orphan(), table.write("data/.tmpX1y2Z3"), table.write(f"data/{'0' * 50}.lance#1")}
    assert {file.path for file in collect(table).garbage} == garbage_too
    assert foreign_names <= table.files


def test_collect_spares_what_a_registered_table_keeps_in_the_folder_of_another(tmp_path: Path) -> None:
    server = Server(tmp_path / "root", gc_safety_days=0.0, allowed_roots=[str(tmp_path / "outside")])
    one, two = (str(tmp_path / "outside" / name) for name in ("one", "two"))
    lance.write_dataset(ROWS, one)
    base = lance.DatasetBasePath(f"{one}/data", name="x", is_dataset_root=False)
    lance.write_dataset(ROWS, two, initial_bases=[base], target_bases=["x"])
    for name, location in (("one", one), ("two", two)):
        tables.register_table(server.ctx, ask(models.RegisterTableRequest, id=name, location=location))
    assert garbage.collect(server.ctx, server.services.store.describe_table(("one",)), CollectOptions()).garbage == []
    assert lance.dataset(two).to_table() == ROWS
    server.services.close()


def test_collect_leaves_alone_what_detached_versions_may_need(careless: Server) -> None:
    table = Table(careless)
    table.dataset.insert(ROWS)
    append = lance.LanceOperation.Append(write_fragments(ROWS, table.dataset, mode="append"))
    detached = lance.LanceDataset.commit(
        table.dataset, append, read_version=1, detached=True, storage_options=table.options
    )
    table.orphan()
    before = table.files
    plain, versions = collect(table), collect(table, keep_versions_days=0.0)
    assert plain.garbage == versions.garbage == []
    assert "detached" in plain.notes[0] and "detached" in versions.notes[0]
    assert table.files == before
    assert detached.to_table().num_rows == 300


def test_collect_says_that_a_long_safety_age_keeps_old_versions(tmp_path: Path) -> None:
    server = Server(tmp_path / "root", gc_safety_days=30.0)
    table = Table(server)
    table.dataset.insert(ROWS)
    collection = collect(table, keep_versions_days=0.0)
    assert collection.versions == 0 and "gc_safety_days is more" in collection.notes[0]
    server.services.close()


def test_collect_tells_of_all_that_went_with_old_versions(tmp_path: Path) -> None:
    server = Server(tmp_path / "root", gc_safety_days=1.0)
    table = Table(server)
    lance.write_dataset(ROWS, table.location, mode="overwrite")
    orphan = table.orphan()
    long_ago = time.time() - 9 * 86400
    for file in Path(table.location).rglob("*.*"):
        os.utime(file, (long_ago, long_ago))
    collections = [collect(table, keep_versions_days=0.0, dry_run=dry) for dry in (True, False)]
    assert {(file.kind, file.path) for file in collections[0].garbage} == {
        (file.kind, file.path) for file in collections[1].garbage
    }
    assert collections[0].size == collections[1].size and collections[0].versions == collections[1].versions == 1
    assert ("data", orphan) in {(file.kind, file.path) for file in collections[1].garbage}
    assert orphan not in table.files
    server.services.close()


def test_old_versions_are_not_removed_while_a_clone_of_one_is_made(careless: Server) -> None:
    table = Table(careless)
    lance.write_dataset(ROWS, table.location, mode="overwrite", storage_options=table.options)
    cloned, collected, results = Event(), Event(), []
    request = ask(models.CloneTableRequest, id="copy", source_location=table.location, source_version=1)
    enter = careless.services.store.transact

    def later(work: Any) -> Any:
        cloned.set()
        collected.wait(1)  # it has to wait for this, so this is not to be
        return enter(work)

    def remove() -> None:
        results.append(collect(table, keep_versions_days=0.0))
        collected.set()

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "transact", lambda _, work: later(work))
        cloning = pool.submit(clone.clone_table, careless.ctx, request)
        assert cloned.wait(30)
        collecting = pool.submit(remove)
        location = cloning.result(60).location
        collecting.result(60)
    assert results[0].versions == 0 and "clones" in results[0].notes[0]
    assert lance.dataset(location, storage_options=table.options).to_table().num_rows == 100


def test_collect_spares_the_files_of_a_clone_of_a_deregistered_clone(careless: Server) -> None:
    table, store = Table(careless), careless.services.store
    clone.clone_table(careless.ctx, ask(models.CloneTableRequest, id="copy", source_location=table.location))
    copy = store.remove_table(("copy",), delete_folder=False, keep_ms=1).location
    clone.clone_table(careless.ctx, ask(models.CloneTableRequest, id="second", source_location=copy))
    kept_until = careless.ctx.clock() + 1
    while careless.ctx.clock() <= kept_until:
        pass
    sweep(careless.ctx)
    assert store.list_removed_tables(None, 10) == []
    lance.write_dataset(ROWS, table.location, mode="overwrite", storage_options=table.options)
    collection = collect(table, keep_versions_days=0.0)
    assert (collection.garbage, collection.versions) == ([], 0) and "clones" in collection.notes[0]
    second = store.describe_table(("second",)).location
    assert lance.dataset(second, storage_options=table.options).to_table(filter="id = 5").num_rows == 1


def test_collect_of_a_declared_table_removes_what_never_became_data(careless: Server) -> None:
    careless.declare("d")
    record = careless.services.store.describe_table(("d",))
    files = careless.services.storage.files(record.location)
    files.write_if_not_exists(f"{record.location}/data/x.lance", b"x" * 10)
    written = careless.ctx.clock()
    while careless.ctx.clock() <= written + 1:
        pass  # a file of this very millisecond may still be in somebody's hands
    collection = garbage.collect(careless.ctx, record, CollectOptions(keep_versions_days=0.0))
    assert [(file.kind, file.size) for file in collection.garbage] == [("data", 10)]
    assert list(files.walk(record.location)) == []


def test_gc_operation_lists_and_its_transaction_removes(careless: Server) -> None:
    table = Table(careless)
    litter = table.litter()
    request = ask(models.CollectTableGarbageRequest, id="t", dry_run=True)
    listed = garbage.collect_table_garbage(careless.ctx, request)
    assert {file.path for file in listed.files or ()} == litter
    assert (listed.num_files, listed.transaction_id) == (len(litter), None)
    queued = garbage.collect_table_garbage(careless.ctx, ask(models.CollectTableGarbageRequest, id="t"))
    assert careless.run_jobs() == ["Succeeded"]
    assert not litter & table.files
    assert careless.services.store.describe_transaction(queued.transaction_id or "").kind == "collect_table_garbage"
    with pytest.raises(InvalidInputError):
        garbage.collect_table_garbage(
            careless.ctx, ask(models.CollectTableGarbageRequest, id="t", keep_versions_days=-1)
        )
    with pytest.raises(TableNotFoundError):
        garbage.collect_table_garbage(careless.ctx, ask(models.CollectTableGarbageRequest, id="none"))


def test_gc_of_everything_knows_every_folder_and_removes_others_only_if_told(careless: Server) -> None:
    storage, store = careless.services.storage, careless.services.store
    table, dropped, gone = Table(careless), Table(careless, "dropped"), Table(careless, "gone")
    litter = table.litter()
    store.remove_table(("dropped",), delete_folder=True, keep_ms=60_000)
    store.remove_table(("gone",), delete_folder=False)
    storage.files(storage.root).write_if_not_exists(f"{storage.root}/other/file", b"x")
    assert [folder.location for folder in everywhere.find_unknown_folders(careless.ctx)] == [gone.location]
    for remove in (False, True):
        request = ask(models.CollectGarbageRequest, unknown_folders=remove)
        everywhere.collect_garbage(careless.ctx, request)
        assert careless.run_jobs() == ["Succeeded"]
        assert not litter & table.files
        sweep(careless.ctx)
        assert bool(gone.files) is not remove
    assert dropped.files and storage.files(storage.root).read(f"{storage.root}/other/file") == b"x"
    assert table.dataset.count_rows() == 100


def test_gc_of_everything_leaves_a_folder_that_was_registered_since_it_looked(careless: Server) -> None:
    store = careless.services.store
    back, gone = Table(careless, "back"), Table(careless, "gone")
    for name in ("back", "gone"):
        store.remove_table((name,), delete_folder=False)
    folders = everywhere.find_unknown_folders(careless.ctx)
    assert {folder.location for folder in folders} == {back.location, gone.location}
    store.insert_table(("back",), back.location, {}, registered=True)
    assert [folder.location for folder in everywhere.schedule_deletion(careless.ctx, folders)] == [gone.location]
    assert sweep(careless.ctx) == 1
    store.remove_table(("back",), delete_folder=False, keep_ms=60_000)
    assert sweep(careless.ctx) == 0
    store.restore_table(("back",))
    assert back.dataset.count_rows() == 100 and not gone.files


def test_gc_of_everything_tells_of_the_folders_that_it_removed(
    careless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    back, store = Table(careless, "back"), careless.services.store
    store.remove_table(("back",), delete_folder=False)
    look = everywhere.find_unknown_folders

    def look_and_let_register(ctx: Context) -> list[everywhere.UnknownFolder]:
        folders = look(ctx)
        store.insert_table(("back",), back.location, {}, registered=True)
        return folders

    monkeypatch.setattr(everywhere, "find_unknown_folders", look_and_let_register)
    payload = {"dry_run": False, "keep_versions_days": None, "unknown_folders": True}
    running = Job("j", everywhere.COLLECT_GARBAGE, None, payload, lambda _: True)
    assert everywhere.collect_all(careless.ctx, running)["unknown_folders"] == "0"
    assert back.files
