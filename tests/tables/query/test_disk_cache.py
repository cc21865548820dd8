"""Reads of tables on an object store from copies on disk: exact, bounded, checked, and dropped at any time."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InternalError, InvalidInputError
from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.disk_cache import cache as cache_module
from tiltyard.storage.disk_cache.cache import DiskCache
from tiltyard.storage.disk_cache.table_copy import CHECKSUMS
from tiltyard.storage.objects import ObjectFiles

BUCKETS = count(1)
MIB = 1 << 20
WAIT = 60


def rows(first: int, total: int) -> pa.Table:
    ids = np.arange(first, first + total)
    vectors = np.random.default_rng(first).standard_normal(total * 16, dtype=np.float32)
    return pa.table({"id": ids, "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 16)})


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Bucket:
    """A bucket, what reads its files, and how often that was asked for a file's content."""

    def __init__(self, store: S3Server) -> None:
        self.uri = store.new_bucket(f"disk-{next(BUCKETS)}")
        self.options = store.options
        self.files = ObjectFiles(self.uri, store.options)
        self.reads: list[str] = []
        self.on_chunk = lambda: None

    def read_chunks(self, location: str) -> Iterator[bytes]:
        self.reads.append(location.rpartition("/")[2])
        for chunk in ObjectFiles.read_chunks(self.files, location):
            self.on_chunk()
            yield chunk

    def write(self, table: str, data: pa.Table, mode: str = "create") -> lance.LanceDataset:
        return lance.write_dataset(data, f"{self.uri}/{table}.lance", mode=mode, storage_options=self.options)

    def open(self, table: str) -> CachedVersion:
        return CachedVersion(lance.dataset(f"{self.uri}/{table}.lance", storage_options=self.options))


@pytest.fixture
def bucket(store: S3Server) -> Bucket:
    bucket = Bucket(store)
    bucket.files.read_chunks = bucket.read_chunks  # type: ignore[method-assign]
    return bucket


class Cache:
    """A cache of a process."""

    def __init__(self, folder: Path, bucket: Bucket, max_bytes: int = 64 * MIB) -> None:
        self.folder, self.bucket = folder, bucket
        self.cache = DiskCache(str(folder), max_bytes, lance.Session())
        self.cache.open_files = lambda location: bucket.files  # type: ignore[return-value]

    def read(self, table: str, snapshot: CachedVersion) -> CachedVersion:
        return self.cache.snapshot(f"{self.bucket.uri}/{table}.lance", snapshot)

    def read_often(self, table: str, snapshot: CachedVersion) -> CachedVersion:
        """Read a version until what is copied for it is there; return what the next read gets."""
        for _ in range(cache_module.READS):
            self.read(table, snapshot)
        self.cache.wait()
        return self.read(table, snapshot)

    def reason(self, table: str, snapshot: CachedVersion) -> str | None:
        return self.cache.state(f"{self.bucket.uri}/{table}.lance", snapshot)

    def table(self, location: str) -> Any:
        return self.cache._tables[location]

    def copied(self) -> list[Path]:
        """The files of all copies."""
        paths = (path for path in self.folder.glob("process-*/*/**/*") if path.is_file())
        return sorted(path for path in paths if path.name != CHECKSUMS)


@pytest.fixture
def cache(tmp_path: Path, bucket: Bucket) -> Iterator[Cache]:
    cache = Cache(tmp_path, bucket)
    yield cache
    cache.cache.close()


def ids(snapshot: CachedVersion) -> list[int]:
    found: list[int] = sorted(snapshot.dataset.to_table(columns=["id"]).column("id").to_pylist())
    return found


def is_copy(cache: Cache, snapshot: CachedVersion) -> bool:
    return str(cache.folder) in str(snapshot.dataset.uri)


def test_versions_are_read_from_disk_with_their_indexes_and_deletions(cache: Cache, bucket: Bucket) -> None:
    dataset = bucket.write("t", rows(0, 1000))
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_index("vec", "IVF_PQ", num_partitions=4, num_sub_vectors=4, metric="l2")
    dataset.delete("id % 10 = 3")
    remote = bucket.open("t")
    assert cache.read("t", remote) is remote
    assert cache.reason("t", remote) == "too few reads yet"
    local = cache.read_often("t", remote)
    assert is_copy(cache, local)
    assert cache.reason("t", local) is None
    assert ids(local) == ids(remote) == [number for number in range(1000) if number % 10 != 3]
    nearest = {"column": "vec", "q": np.zeros(16, np.float32), "k": 10, "nprobes": 4}
    by_vector, by_id = {"columns": ["id"], "nearest": nearest}, {"columns": ["id"], "filter": "id = 17"}
    options: Any
    for options in (by_vector, by_id):
        assert local.dataset.to_table(**options) == remote.dataset.to_table(**options)
    assert "ScalarIndexQuery" in local.dataset.scanner(**by_id).explain_plan()  # type: ignore[arg-type]
    assert "ANNSubIndex" in local.dataset.scanner(**by_vector).explain_plan()  # type: ignore[arg-type]
    assert cache.cache.hits == 1


def test_commit_is_seen_at_once_and_brings_its_new_files_alone(cache: Cache, bucket: Bucket) -> None:
    bucket.write("t", rows(0, 100))
    first = cache.read_often("t", bucket.open("t"))
    assert len(bucket.reads) == len(cache.copied()) == 2
    bucket.write("t", rows(100, 50), "append")
    remote = bucket.open("t")
    assert cache.read("t", remote) is remote  # and the one read suffices for a table that has a copy
    cache.cache.wait()
    second = cache.read("t", remote)
    assert is_copy(cache, second)
    assert (len(ids(first)), len(ids(second))) == (100, 150)
    assert len(bucket.reads) == 4
    del first
    bucket.write("t", rows(0, 10), "overwrite")
    third = cache.read_often("t", bucket.open("t"))
    assert ids(third) == list(range(10))
    assert len(ids(second)) == 150  # somebody still reads it
    del second
    cache.read_often("t", bucket.open("t"))
    assert len(cache.copied()) == 2


@pytest.mark.parametrize("damage", ["truncated", "other bytes", "gone", "checksums gone", "checksums garbled"])
def test_damaged_files_are_copied_anew_by_the_next_process(
    cache: Cache, bucket: Bucket, tmp_path: Path, damage: str
) -> None:
    bucket.write("t", rows(0, 1000))
    cache.read_often("t", bucket.open("t"))
    cache.cache.close()
    (data,) = (path for path in cache.copied() if path.suffix == ".lance")
    content = data.read_bytes()
    checksums = next(iter(tmp_path.glob(f"process-*/*/{CHECKSUMS}")))
    match damage:
        case "truncated":
            data.write_bytes(content[:-1])
        case "other bytes":
            data.write_bytes(content[:100] + b"?" + content[101:])
        case "gone":
            data.unlink()
        case "checksums gone":
            checksums.unlink()
        case "checksums garbled":
            checksums.write_bytes(checksums.read_bytes()[:-3])
    wait_until_released(cache.cache)
    bucket.reads.clear()
    following = Cache(tmp_path, bucket)
    local = following.read_often("t", bucket.open("t"))
    assert is_copy(following, local)
    assert ids(local) == list(range(1000))
    assert data.name in bucket.reads
    assert len(bucket.reads) == (2 if "checksums" in damage else 1)
    following.cache.close()


def test_next_process_takes_over_what_is_there(cache: Cache, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("t", rows(0, 1000))
    cache.read_often("t", bucket.open("t"))
    cache.cache.close()
    wait_until_released(cache.cache)
    leftover = next(iter(tmp_path.glob("process-*/*/data"))) / "x.lance.part"
    leftover.write_bytes(b"half of a file")
    bucket.reads.clear()
    following = Cache(tmp_path, bucket)
    local = following.read_often("t", bucket.open("t"))
    assert is_copy(following, local)
    assert ids(local) == list(range(1000))
    assert bucket.reads == []
    assert not leftover.exists()
    following.cache.close()


def wait_until_released(closed: DiskCache) -> None:
    """Wait until a cache that was closed has left its folder."""
    for thread in list(closed._threads._threads):
        thread.join(WAIT)
        assert not thread.is_alive()


def test_two_processes_have_copies_of_their_own(cache: Cache, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("t", rows(0, 100))
    other = Cache(tmp_path, bucket)
    remote = bucket.open("t")
    assert cache.read_often("t", remote).dataset.uri != other.read_often("t", remote).dataset.uri
    assert {path.name for path in tmp_path.iterdir()} == {"process-0", "process-1"}
    other.cache.close()


def test_tables_that_do_not_fit_are_read_from_the_store(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("t", rows(0, 10_000))
    cache = Cache(tmp_path, bucket, max_bytes=100_000)
    remote = bucket.open("t")
    assert cache.read_often("t", remote) is remote
    assert "disk_cache_bytes" in str(cache.reason("t", remote))
    assert cache.copied() == []
    cache.cache.close()


def test_copy_read_least_recently_makes_room(bucket: Bucket, tmp_path: Path) -> None:
    for table in ("a", "b", "c"):
        bucket.write(table, rows(0, 10_000))
    cache = Cache(tmp_path, bucket, max_bytes=1_500_000)
    opened = {table: bucket.open(table) for table in ("a", "b", "c")}
    for table in ("a", "b"):
        assert is_copy(cache, cache.read_often(table, opened[table]))
    assert is_copy(cache, cache.read("a", opened["a"]))
    assert is_copy(cache, cache.read_often("c", opened["c"]))
    assert cache.read("b", opened["b"]) is opened["b"]
    assert is_copy(cache, cache.read("a", opened["a"]))
    assert cache.cache.size == sum(path.stat().st_size for path in cache.copied()) <= 1_500_000
    cache.cache.close()


def test_folder_may_be_deleted_at_any_time(cache: Cache, bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("t", rows(0, 100))
    remote = bucket.open("t")
    assert is_copy(cache, cache.read_often("t", remote))
    for path in cache.copied():
        path.unlink()
    assert cache.read("t", remote) is remote
    local = cache.read_often("t", remote)
    assert is_copy(cache, local)
    assert ids(local) == list(range(100))


def test_damage_while_it_is_read_costs_no_answer(cache: Cache, bucket: Bucket) -> None:
    bucket.write("t", rows(0, 1000))
    remote, location = bucket.open("t"), f"{bucket.uri}/t.lance"
    local = cache.read_often("t", remote)
    assert not cache.cache.drop_if_damaged(location, local, InvalidInputError("no such column"))
    assert not cache.cache.drop_if_damaged(location, local, InternalError("of Lance's own"))
    cache.cache.wait()
    assert cache.read("t", remote) is local
    (data,) = (path for path in cache.copied() if path.suffix == ".lance")
    data.write_bytes(data.read_bytes()[:-1])
    assert cache.cache.drop_if_damaged(location, local, InvalidInputError("Not found"))
    assert cache.read("t", remote) is remote
    assert "damaged" in str(cache.reason("t", remote))
    del local  # else what is read stays

    local = cache.read_often("t", remote)
    assert is_copy(cache, local)
    (data,) = (path for path in cache.copied() if path.suffix == ".lance")
    content = data.read_bytes()
    data.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert not cache.cache.drop_if_damaged(location, local, InternalError("checked a moment ago"))
    cache.table(location).verify_at = 0
    assert not cache.cache.drop_if_damaged(location, local, InternalError("in the background"))
    cache.cache.wait()
    assert cache.read("t", remote) is remote


def test_dropped_table_leaves_nothing(cache: Cache, bucket: Bucket) -> None:
    bucket.write("t", rows(0, 100))
    remote = bucket.open("t")
    cache.read_often("t", remote)
    cache.cache.evict(f"{bucket.uri}/t.lance")
    cache.cache.wait()
    assert cache.copied() == []
    assert cache.read("t", remote) is remote


def test_disk_that_takes_no_more_leaves_reads_to_the_store(
    cache: Cache, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("t", rows(0, 10_000))
    remote = bucket.open("t")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert cache.read_often("t", remote) is remote
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "it was not copied" in str(cache.reason("t", remote))
    monkeypatch.setattr(cache_module, "monotonic", lambda: time.monotonic() + 2 * WAIT)
    assert is_copy(cache, cache.read_often("t", remote))


def test_closing_stops_a_copy(cache: Cache, bucket: Bucket) -> None:
    bucket.write("t", rows(0, 100))
    remote, began, go_on = bucket.open("t"), threading.Event(), threading.Event()

    def wait_for_test() -> None:
        began.set()
        assert go_on.wait(WAIT)

    bucket.on_chunk = wait_for_test
    for _ in range(cache_module.READS):
        cache.read("t", remote)
    assert began.wait(WAIT)
    cache.cache.close()
    go_on.set()
    wait_until_released(cache.cache)
    assert cache.read("t", remote) is remote
    assert cache.copied() == []


def test_tables_with_blobs_are_read_from_the_store(cache: Cache, bucket: Bucket) -> None:
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    bucket.write("t", pa.table([pa.array([b"x"], pa.large_binary())], schema=pa.schema([field])))
    remote = bucket.open("t")
    assert cache.read_often("t", remote) is remote
    assert "blobs" in str(cache.reason("t", remote))


@contextmanager
def serve(store: S3Server, folder: Path) -> Iterator[ServerProcess]:
    """Run a server with tables in a bucket, and copies in a folder below this one."""
    bucket = store.new_bucket(f"disk-{next(BUCKETS)}")
    environ = {
        "TILTYARD_STORAGE_OPTIONS": json.dumps(store.options),
        "TILTYARD_DISK_CACHE_BYTES": str(64 * MIB),
        "TILTYARD_DISK_CACHE_FOLDER": str(folder / "copies"),
    }
    server = ServerProcess(f"{bucket}/tables", "--db", f"sqlite:///{folder / 'catalog.db'}", environ=environ)
    try:
        yield server
    finally:
        server.stop()


def test_lancedb_client_gets_the_same_answers_from_disk(store: S3Server, tmp_path: Path) -> None:
    with serve(store, tmp_path) as server:
        table = lancedb.connect("db://any", api_key="none", host_override=server.url).create_table("t", rows(0, 100))

        def is_on_disk() -> bool:
            return "read from the copy on the server's disk" in table.search().where("id < 3").explain_plan()

        def answers() -> list[object]:
            return [
                table.search().where("id < 3").to_list(),
                table.search(rows(7, 1)["vec"][0].as_py()).limit(5).to_list(),
                table.count_rows("id >= 50"),
            ]

        from_store = answers()
        until = time.monotonic() + WAIT
        while not is_on_disk():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert answers() == from_store
        table.delete("id = 1")
        assert [row["id"] for row in table.search().where("id < 3").to_list()] == [0, 2]
        while not is_on_disk():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert [row["id"] for row in table.search().where("id < 3").to_list()] == [0, 2]


def test_server_reads_from_disk_what_is_on_an_object_store(store: S3Server, tmp_path: Path) -> None:
    query = {"vector": {"single_vector": []}, "k": 5, "filter": "id < 3", "columns": {"column_names": ["id"]}}

    def plan(wire: Wire) -> str:
        return str(wire.good(wire.table(["t"], "explain_plan", {"query": query})))

    with serve(store, tmp_path) as server, Wire(server.url) as wire:
        wire.good(wire.table(["t"], "create", stream(rows(0, 100))))
        assert "read by ranges, through the server's disk: too few reads yet" in plan(wire)
        until = time.monotonic() + WAIT
        while "read from the copy on the server's disk" not in plan(wire):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert wire.table(["t"], "count_rows", {"predicate": "id < 3"}).text == "3"
        metrics = wire.http.get("/metrics").text
        assert 'what="reads of tables on disk"' in metrics
        wire.good(wire.table(["t"], "insert", stream(rows(100, 5))))
        assert wire.table(["t"], "count_rows", {"predicate": "id >= 100"}).text == "5"
        pinned = {"query": {**query, "version": 1}}
        text = str(wire.good(wire.table(["t"], "explain_plan", pinned)))
        assert "only the latest version of main is copied" in text
        wrong = wire.table(["t"], "query", {**query, "filter": "no_such_column = 1"})
        assert wrong.status_code == 404
        assert str(tmp_path) not in wrong.text
        while "read from the copy on the server's disk" not in plan(wire):
            assert time.monotonic() < until
            time.sleep(0.05)
        for path in (tmp_path / "copies").glob("process-*/*/data/*.lance"):
            path.unlink()
        assert wire.table(["t"], "count_rows", {"predicate": "id < 3"}).text == "3"
        assert "read by ranges" in plan(wire)
        wire.good(wire.table(["t"], "drop"))
