"""Tables are maintained after commits: indexes get new rows, small fragments are joined, old versions removed."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.indices import IndexConfig
from lance.optimize import CompactionTask
from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from tests.tables.bodies import small
from tests.tables.served import Server, ask

from tiltyard.context import Context
from tiltyard.model.branches import MAIN
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.principals import Principal, parse_privileges
from tiltyard.model.spec import models
from tiltyard.store.access.grants import SERVER
from tiltyard.store.jobs.jobs import JobFilter
from tiltyard.store.tables.upkeep import MAX_ENDED, UPKEEP
from tiltyard.tables.indexes.build_job import CREATE_INDEX
from tiltyard.tables.indexes.indexes import create_table_index
from tiltyard.tables.keys.declaration import set_table_primary_key
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.opening import open_to_commit
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table, update_table
from tiltyard.tables.upkeep import maintainer, upkeep_job
from tiltyard.tables.upkeep.upkeep_job import first_time_to_keep, remove_old_versions
from tiltyard.upkeep import compaction
from tiltyard.upkeep.indexing import count_segments_to_merge, index_states
from tiltyard.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DAY_MS = 86_400_000


def rows(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    vectors = np.array([[number % 97, number % 13, number % 7, 1] for number in numbers], dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "kind": pa.array([number % 5 for number in numbers], pa.int32()),
            "text": [f"word{number} common" for number in numbers],
            "tags": [[str(number % 5)] for number in numbers],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4),
        }
    )


class Kept:
    """A server whose tables are looked at when a test says so; time passes by `later`."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.server = Server(root, **settings)
        self.ctx, self.store = self.server.ctx, self.server.services.store
        self.worker = Worker(self.server.services, 1)

    def create(self, name: str, data: pa.Table, **properties: str) -> None:
        create_table(self.ctx, ask(models.CreateTableRequest, id=name, properties=properties), small(data))

    def insert(self, name: str, data: pa.Table) -> None:
        insert_into_table(self.ctx, ask(models.InsertIntoTableRequest, id=name), small(data))

    def to_commit(self, name: str) -> lance.LanceDataset:
        return open_to_commit(self.ctx, self.store.describe_table((name,)), MAIN)

    def sql(self, statement: str) -> None:
        self.store.transact(lambda catalog: catalog.connection.change(statement))

    def note(self) -> None:
        """Write what commits have noted."""
        self.server.services.commit_log.flush()

    def later(self, ms: int = 0) -> None:
        """Let tables be due whose rest is over, and all that is noted be older."""
        self.note()
        self.sql(
            f"UPDATE upkeep SET due_at = due_at - {ms}, changed_at = changed_at - {ms}, "  # a number
            f"rests_until = rests_until - {ms}, clean_at = clean_at - {ms}"
        )
        self.sql("UPDATE upkeep SET due_at = 0, rests_until = 0")

    def run(self) -> None:
        """Look at the tables, and run what they need."""
        self.later()
        for _ in range(4):
            self.worker.maintain_one()

    def jobs(self) -> list[Mapping[str, str]]:
        """Return the properties of upkeep's transactions, newest first."""
        records = self.store.list_jobs(JobFilter((UPKEEP,)), None, 100)
        assert all(record.status is TransactionStatus.SUCCEEDED for record in records), records
        return [record.properties for record in records]

    def state(self, name: str) -> tuple[int, int, dict[str, int]]:
        """Return the rows and fragments of a table, and the rows that each index lacks."""
        dataset = self.server.open(name)
        missing = {state.name: state.missing for state in index_states(dataset)}
        return dataset.count_rows(), len(dataset.get_fragments()), missing


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    kept = Kept(tmp_path / "root")
    yield kept
    kept.store.close()


def index_all(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("id", "BTREE", name="ids")
    dataset.create_scalar_index("text", "INVERTED", name="texts")
    dataset.create_index("vector", "IVF_FLAT", name="vectors", num_partitions=2)


def test_indexes_and_upkeep_of_a_table_that_commits_to_storage_are_durable(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        fsync(descriptor)
        synced[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_mtime_ns  # noqa: PTH115  # as it is

    monkeypatch.setattr(os, "fsync", remember)
    kept.create("t", rows(10), **{"tiltyard.managed_versioning": "false"})
    create_table_index(kept.ctx, models.CreateTableIndexRequest(id=["t"], column="id", index_type="BTREE"))
    assert kept.server.run_jobs() == ["Succeeded"]
    indexed = int(kept.server.open("t").version)
    for start in range(10, 200, 10):
        kept.insert("t", rows(10, start))
    kept.run()
    assert kept.jobs() != [] and int(kept.server.open("t").version) > indexed + 19
    folder = Path(kept.store.describe_table(("t",)).location)
    written = [path for part in ("_versions", "_indices", "data") for path in (folder / part).rglob("*.*")]
    written = [path for path in written if path.name != "latest_version_hint.json"]  # Lance does without it
    assert [path for path in written if synced.get(str(path)) != path.stat().st_mtime_ns] == []


@pytest.mark.parametrize("managed", [True, False])
def test_upkeep_after_inserts_extends_indexes_and_joins_fragments(tmp_path: Path, managed: bool) -> None:
    kept = Kept(tmp_path / "root", managed_versioning=managed)
    kept.create("t", rows(3000))
    index_all(kept.to_commit("t"))
    for number in range(20):
        kept.insert("t", rows(100, 3000 + number * 100))
    assert kept.state("t") == (5000, 21, {"ids": 2000, "texts": 2000, "vectors": 2000})
    kept.run()
    assert kept.state("t") == (5000, 2, {"ids": 0, "texts": 0, "vectors": 0})
    [properties] = kept.jobs()
    assert (properties["rows_indexed"], properties["fragments_removed"]) == ("6000", "20")
    assert "the index ids lacks 2000 rows" in properties["reason"]
    table = kept.server.open("t")
    assert table.to_table(filter="id = 4999").num_rows == 1
    assert table.to_table(full_text_query="word4999").num_rows == 1
    version = table.version
    kept.run()
    kept.run()
    assert kept.server.open("t").version == version, "nothing is left to do"


def test_upkeep_of_larger_table_works_in_a_child_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_job, "MAX_ROWS_HERE", -1)
    kept.create("t", rows(2000))
    index_all(kept.to_commit("t"))
    kept.insert("t", rows(1500, 2000))
    kept.run()
    assert kept.state("t") == (3500, 2, {"ids": 0, "texts": 0, "vectors": 0})
    [properties] = kept.jobs()
    assert properties["rows_indexed"] == "4500"


def test_upkeep_process_beyond_its_memory_fails_and_the_table_rests(tmp_path: Path, monkeypatch: Any) -> None:
    kept = Kept(tmp_path / "root")
    monkeypatch.setattr(upkeep_job, "MAX_ROWS_HERE", -1)
    monkeypatch.setattr("tiltyard.tables.indexes.build_process.POLL_SECONDS", 0.02)
    monkeypatch.setattr("tiltyard.tables.indexes.build_process.private_bytes", lambda process: 2 << 30)
    kept.create("t", rows(2000))
    index_all(kept.to_commit("t"))
    kept.insert("t", rows(1500, 2000))
    kept.run()
    [record] = kept.store.list_jobs(JobFilter((UPKEEP,)), None, 100)
    assert record.status is TransactionStatus.FAILED
    assert record.error is not None
    assert "1024 MiB of memory" in record.error
    noted = kept.store.find_upkeep(record.table_id or 0)
    assert noted is not None
    assert noted.state["failures"] == 1
    assert noted.rests_until > kept.ctx.clock() + 50_000


def test_upkeep_of_few_new_rows_waits_until_the_table_is_idle(kept: Kept) -> None:
    kept.create("t", rows(3000))
    index_all(kept.to_commit("t"))
    kept.insert("t", rows(10, 3000))
    kept.run()
    assert kept.jobs() == []
    kept.later(upkeep_job.IDLE_MS)
    for _ in range(3):
        kept.worker.maintain_one()
    assert kept.state("t") == (3010, 2, {"ids": 0, "texts": 0, "vectors": 0})


def test_upkeep_follows_the_properties_of_its_table(kept: Kept) -> None:
    kept.create("off", rows(3000), **{"tiltyard.upkeep": "off"})
    kept.create("early", rows(3000), **{"tiltyard.upkeep.unindexed_rows": "1"})
    for name in ("off", "early"):
        index_all(kept.to_commit(name))
        kept.insert(name, rows(5, 3000))
    kept.run()
    assert kept.state("early")[2]["ids"] == 0
    assert kept.state("off")[2]["ids"] == 5
    request = ask(models.UpdateTableRequest, id="off", properties={"tiltyard.upkeep.small_fragments": "2"}, updates=[])
    assert update_table(kept.ctx, request).properties["tiltyard.upkeep.small_fragments"] == "2"
    switch = ask(models.UpdateTableRequest, id="off", properties={"tiltyard.upkeep": "on"}, updates=[])
    update_table(kept.ctx, switch)
    kept.insert("off", rows(5, 3005))
    kept.run()
    assert kept.state("off")[1] == 2, "the two small ones are one"


@pytest.mark.parametrize(
    ("name", "value"),
    [("tiltyard.upkeep", "perhaps"), ("tiltyard.upkeep.unindexed_rows", "0"), ("tiltyard.upkeep.small_fragments", "x")],
)
def test_upkeep_property_that_is_none_is_refused(kept: Kept, name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        kept.create("t", rows(1), **{name: value})
    kept.create("t", rows(1))
    with pytest.raises(InvalidInputError, match=name):
        update_table(kept.ctx, ask(models.UpdateTableRequest, id="t", properties={name: value}, updates=[]))


def test_upkeep_rewrites_fragments_of_many_deleted_rows_only(kept: Kept) -> None:
    kept.create("t", rows(1000))
    kept.insert("t", rows(1000, 1000))
    delete_from_table(kept.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id < 300"))
    kept.run()
    fragments = kept.server.open("t").get_fragments()
    assert [(each.metadata.physical_rows, each.metadata.num_deletions) for each in fragments] == [(1000, 0), (700, 0)]


KINDS = {
    "BTREE": "id",
    "BITMAP": "kind",
    "LABEL_LIST": "tags",
    "INVERTED": "text",
    "NGRAM": "text",
    "ZONEMAP": "id",
    "BLOOMFILTER": "id",
    "FM": "text",
    "MINHASHLSH": "text",
    "RTREE": "place",
    "IVF_FLAT": "vector",
    "IVF_SQ": "vector",
    "IVF_PQ": "vector",
    "IVF_RQ": "vector",
    "IVF_HNSW_SQ": "vector",
}


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_maintain_extends_every_kind_of_index_and_compacts_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_large: bool
) -> None:
    """A kind that cannot follow a compaction (ZONEMAP, BLOOMFILTER, FM), or is large, has all rows again afterwards."""
    if is_large:
        monkeypatch.setattr(compaction, "MAX_REMAPPED_ROWS", 0)
        monkeypatch.setattr(compaction, "MAX_LEFT_SHARE", 1)
    column, data = KINDS[kind], rows(600)
    if kind == "RTREE":
        axes = [pa.array([float(number % 31) for number in range(600)]) for _ in "xy"]
        fields = [pa.field(name, pa.float64(), nullable=False) for name in "xy"]
        place = pa.field("place", pa.struct(fields), metadata={"ARROW:extension:name": "geoarrow.point"})
        data = data.append_column(place, pa.StructArray.from_arrays(axes, fields=fields))
    if kind == "IVF_RQ":  # needs a multiple of 8
        wide = pa.array(np.resize(np.arange(600 * 8, dtype=np.float32) % 31, 600 * 8))
        data = data.set_column(4, "vector", pa.FixedSizeListArray.from_arrays(wide, 8))
    dataset = lance.write_dataset(data, str(tmp_path / "t.lance"))
    if kind.startswith("IVF"):
        parts = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
        dataset.create_index(column, kind, name="x", num_partitions=1, **parts)
    else:
        config: Any = IndexConfig(index_type="FM", parameters={}) if kind == "FM" else kind
        dataset.create_scalar_index(column, config, name="x")
    for number in range(4):
        dataset.insert(data.slice(number * 20, 20))
    told: list[Mapping[str, Any]] = []
    maintainer.maintain(dataset, 4, told.append)
    opened = lance.dataset(dataset.uri)
    [state] = index_states(opened)
    assert (state.indexed, state.missing) == (680, 0)
    assert len(opened.get_fragments()) < 5
    assert "notes" not in told[-1]


def test_upkeep_loses_against_a_writer_that_changes_the_same_fragments(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.create("t", rows(20))
    for number in range(1, 20):
        kept.insert("t", rows(20, number * 20))

    class Task:
        """Rewrites fragments, of which a writer deletes rows meanwhile."""

        def __init__(self, task: CompactionTask) -> None:
            self.fragments = task.fragments
            self._task = task

        def execute(self, dataset: lance.LanceDataset) -> Any:
            result = self._task.execute(dataset)
            began = time.monotonic()
            delete_from_table(kept.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id = 7"))
            assert time.monotonic() - began < 5, "the writer waits for nobody"
            return result

    class Plan:
        def __init__(self, tasks: list[CompactionTask]) -> None:
            self.tasks = [Task(task) for task in tasks]

    plan: Callable[..., Any] = maintainer.plan_compaction

    def plan_with_writer(dataset: lance.LanceDataset, small: int) -> Any:
        planned = plan(dataset, small)
        return planned and type(planned)(Plan(planned.plan.tasks), planned.options)

    monkeypatch.setattr(maintainer, "plan_compaction", plan_with_writer)
    kept.run()
    [properties] = kept.jobs()
    assert "A writer changed fragments" in properties["notes"]
    assert kept.state("t")[0] == 399
    monkeypatch.setattr(maintainer, "plan_compaction", plan)
    kept.run()
    assert kept.state("t")[0] == 399
    assert kept.state("t")[1] <= 4, "of a hundred rows each"


def test_upkeep_waits_for_index_builds_and_open_publications(kept: Kept) -> None:
    kept.create("t", rows(3000), **{"tiltyard.upkeep.unindexed_rows": "1"})
    index_all(kept.to_commit("t"))
    kept.insert("t", rows(5, 3000))
    table = kept.store.describe_table(("t",))
    build = kept.store.create_transaction(CREATE_INDEX, table.id, {}, {}, status=TransactionStatus.RUNNING, lease_ms=1)
    kept.run()
    assert kept.jobs() == []
    kept.store.alter_transaction(build.id, lambda status, properties: (TransactionStatus.CANCELED, properties))
    folder = f"{table.location}/_publishing-1"
    lance.write_dataset(pa.table({"x": [1]}), f"{folder}/copy.lance")
    kept.run()
    assert kept.jobs() == []
    kept.later(60 * 60 * 1000)
    kept.sql("UPDATE upkeep SET state = '{\"put_off_since\": 1}'")
    for _ in range(3):
        kept.worker.maintain_one()
    assert kept.state("t")[2]["ids"] == 0, "a block that was left behind does not stop it for ever"


def test_upkeep_of_index_that_takes_no_rows_is_not_repeated(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.create("t", rows(3000), **{"tiltyard.upkeep.unindexed_rows": "10"})
    index_all(kept.to_commit("t"))
    kept.insert("t", rows(50, 3000))
    monkeypatch.setattr(maintainer, "extend_index", lambda dataset, state: None)
    kept.run()
    version = kept.server.open("t").version
    for _ in range(3):
        kept.run()
    assert len(kept.jobs()) == 1
    assert kept.server.open("t").version == version
    monkeypatch.undo()
    kept.insert("t", rows(50, 3050))
    kept.run()
    assert kept.state("t")[2]["ids"] == 0


def test_upkeep_keeps_few_of_its_transactions(kept: Kept) -> None:
    kept.create("t", rows(300), **{"tiltyard.upkeep.small_fragments": "2"})
    for number in range(5):
        kept.insert("t", rows(10, 300 + number * 10))
        kept.insert("t", rows(10, 300 + number * 10))
        kept.run()
    assert 1 <= len(kept.jobs()) <= MAX_ENDED


def test_remove_old_versions_leaves_the_latest_and_tagged_ones(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(kept.server.services.settings, "repeat_memory", 0)
    monkeypatch.setattr(upkeep_job, "CLOCK_SKEW_MS", 200)
    kept.create("t", rows(10))
    for number in range(1, 4):
        time.sleep(0.3)  # the clocks of catalog and storage may differ by what was set above
        kept.insert("t", rows(10, number * 10))
    time.sleep(0.3)
    kept.server.open("t").tags.create("second", 2)
    table = kept.store.describe_table(("t",))
    kept.note()
    job = kept.store.create_transaction("refresh", None, {}, {})
    removed = remove_old_versions(kept.ctx, table, 0.0, lambda count: None)
    assert removed.versions == 3 - 1
    assert [version["version"] for version in kept.server.open("t").versions()] == [2, 4]
    kept.insert("t", rows(10, 40))
    time.sleep(0.3)
    assert remove_old_versions(kept.ctx, table, 0.0, lambda count: None).versions == 0, "the job may read version 4"
    kept.store.alter_transaction(job.id, lambda status, properties: (TransactionStatus.CANCELED, properties))
    assert remove_old_versions(kept.ctx, table, 30.0, lambda count: None).versions == 0
    assert remove_old_versions(kept.ctx, table, 0.0, lambda count: None).versions == 1
    assert kept.server.open("t").count_rows() == 50


def test_upkeep_looks_for_old_versions_once_they_can_be_there(kept: Kept) -> None:
    kept.create("t", rows(10), **{"tiltyard.upkeep.keep_versions_days": "2"})
    kept.insert("t", rows(10, 10))
    kept.run()
    assert kept.jobs() == []
    kept.later(2 * DAY_MS + 60_000)
    for _ in range(3):
        kept.worker.maintain_one()
    [properties] = kept.jobs()
    assert (properties["reason"], properties["versions_removed"]) == ("old versions", "0")
    for _ in range(4):
        kept.later(DAY_MS)
        for _ in range(3):
            kept.worker.maintain_one()
    assert kept.store.find_upkeep(kept.store.describe_table(("t",)).id) is None, "nothing is left to look for"


@pytest.mark.parametrize(
    ("times", "limit", "expected"),
    [
        ([], 10, None),
        ([5], 10, None),
        ([1, 2, 30], 10, 2),  # the second was the latest at 10
        ([20, 30], 10, None),
        ([1, 2, 3], 10, 3),
        ([1, 9, 30, 4], 10, 4),  # the clock of the last one's writer is behind
        ([1, 9, 4, 30], 10, 4),
    ],
)
def test_first_time_to_keep_is_of_the_version_that_was_the_latest(
    times: list[int], limit: int, expected: int | None
) -> None:
    assert first_time_to_keep(times, limit) == expected


def test_count_segments_to_merge_lets_segments_grow_in_powers() -> None:
    segments: list[int] = [1_000_000]
    most, written = 0, 0
    for _ in range(1000):
        count = count_segments_to_merge(segments, 1000)
        merged = 1000 + sum(segments[len(segments) - count :])
        segments = [*segments[: len(segments) - count], merged]
        most, written = max(most, len(segments)), written + merged
    assert most <= 9
    assert written < 12 * 1_000_000
    assert sum(segments) == 2_000_000


def test_upkeep_disturbs_no_writer(kept: Kept) -> None:
    """Writers of all kinds commit while upkeep runs without a pause: all succeed, and what they wrote is there once."""
    kept.create("t", rows(400), **{"tiltyard.upkeep.unindexed_rows": "1", "tiltyard.upkeep.small_fragments": "2"})
    index_all(kept.to_commit("t"))
    longest = 0.0
    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            kept.run()

    def write(number: int) -> None:
        nonlocal longest
        for turn in range(6):
            began = time.monotonic()
            first = 10_000 * (number + 1) + turn * 10
            kept.insert("t", rows(10, first))
            delete_from_table(kept.ctx, ask(models.DeleteFromTableRequest, id="t", predicate=f"id = {first}"))
            change = ask(models.UpdateTableRequest, id="t", updates=[["kind", "9"]], predicate=f"id = {first + 1}")
            assert update_table(kept.ctx, change).updated_rows == 1
            longest = max(longest, time.monotonic() - began)

    with ThreadPoolExecutor(3) as pool:
        upkeep = pool.submit(maintain)
        writers = [pool.submit(write, number) for number in range(2)]
        try:
            for writer in writers:
                writer.result()
        finally:
            stop.set()
        upkeep.result()
    assert longest < 20, "that is far below the time for which conflicts are retried"
    expected = {
        10_000 * (number + 1) + turn * 10 + each for number in range(2) for turn in range(6) for each in range(10)
    }
    removed = {10_000 * (number + 1) + turn * 10 for number in range(2) for turn in range(6)}
    table = kept.server.open("t").to_table(columns=["id", "kind"])
    assert sorted(table["id"].to_pylist()) == sorted([*range(400), *(expected - removed)])
    assert table["kind"].to_pylist().count(9) == 12
    assert kept.jobs(), "upkeep was at work meanwhile"
    kept.run()
    kept.run()
    assert not any(kept.state("t")[2].values())


def test_upkeep_properties_of_table_need_the_privilege_to_alter(kept: Kept) -> None:
    kept.create("t", rows(1))
    request = ask(models.UpdateTableRequest, id="t", properties={"tiltyard.upkeep": "off"}, updates=[])
    for name, privileges in (("ann", ["read", "write"]), ("eve", ["read", "write", "alter"])):
        kept.store.grant(f"principal:{name}", SERVER, 0, parse_privileges(privileges), "test")
    with pytest.raises(PermissionDeniedError, match="alter"):
        update_table(Context(kept.server.services, "test", principal=Principal("ann")), request)
    changed = update_table(Context(kept.server.services, "test", principal=Principal("eve")), request)
    assert changed.properties == {"tiltyard.upkeep": "off"}


@pytest.mark.parametrize("most_rows", [-1, 20_000])
def test_upkeep_of_table_with_a_primary_key_leaves_the_key_enforced(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    monkeypatch.setattr(upkeep_job, "MAX_ROWS_HERE", most_rows)
    kept.create("t", rows(1000), **{"tiltyard.upkeep.unindexed_rows": "1"})
    set_table_primary_key(kept.ctx, ask(models.SetTablePrimaryKeyRequest, id="t", columns=["id"]))
    assert kept.worker.run_one(), "the index of the key"
    for number in range(20):
        kept.insert("t", rows(5, 1000 + number * 5))
    kept.run()
    assert kept.state("t")[:2] == (1100, 2)
    assert not any(kept.state("t")[2].values())
    for number in (7, 1042):
        with pytest.raises(DuplicateKeyError):
            kept.insert("t", rows(1, number))
    kept.insert("t", rows(1, 1100))
