"""Reads of tables on an object store by ranges: the same bytes, in checked blocks, for this process alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InternalError
from obstore.exceptions import GenericError, PermissionDeniedError
from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.disk_cache import range_server, ranges
from tiltyard.storage.disk_cache.blocks import BLOCK_BYTES, HEAD_BYTES, MIN_SEGMENT_BYTES
from tiltyard.storage.disk_cache.cache import DiskCache
from tiltyard.storage.disk_cache.range_reader import MAX_REQUEST_BYTES, TAIL_BYTES, Kind, kind_of
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.objects import FileRange, ObjectFiles

BUCKETS = count(1)
MIB = 1 << 20
WAIT = 60
SECRET = "x-tiltyard-secret"


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Bucket:
    """A bucket, what reads its files, and the ranges that the store was asked for."""

    def __init__(self, store: S3Server) -> None:
        self.store = store
        self.name = f"ranges-{next(BUCKETS)}"
        self.uri = store.new_bucket(self.name)
        self.files = ObjectFiles(self.uri, store.options)
        self.asked: list[tuple[str, int, int]] = []
        self.error: Exception | None = None
        self.files.read_range = self.read_range  # type: ignore[method-assign]

    async def read_range(self, location: str, start: int, end: int) -> FileRange:
        self.asked.append((location.removeprefix(f"{self.uri}/"), start, end))
        if self.error is not None:
            raise self.error
        return await ObjectFiles.read_range(self.files, location, start, end)

    def put(self, key: str, content: bytes) -> bytes:
        self.store.client.put_object(Bucket=self.name, Key=key, Body=content)
        return content

    def delete(self, key: str) -> None:
        self.store.client.delete_object(Bucket=self.name, Key=key)


class Cache:
    """A cache of a process, and a client of its endpoint."""

    def __init__(self, folder: Path, bucket: Bucket, max_bytes: int = 64 * MIB) -> None:
        self.folder, self.bucket = folder, bucket
        self.cache = DiskCache(str(folder), max_bytes, lance.Session())
        self.cache.open_files = lambda location: bucket.files
        server = self.cache.ranges._serve()
        assert server is not None
        self.server = server
        self.add("t")

    def add(self, table: str) -> None:
        self.server.call(self.server.reader.add_table, f"{self.bucket.uri}/{table}", self.bucket.files)
        self.settle()

    def settle(self) -> None:
        self.cache.wait()

    def ask(self, key: str, what: str = "", method: str = "GET", secret: str | None = None, host: str = "") -> Answer:
        headers = {SECRET: self.server._secret if secret is None else secret, **({"range": what} if what else {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.server._port, timeout=WAIT)
        try:
            connection.request(method, f"/{host or self.bucket.name}/{key}", headers=headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        finally:
            connection.close()

    def read(self, key: str, start: int, end: int) -> bytes:
        answer = self.ask(key, f"bytes={start}-{end - 1}")
        assert answer.status == 206, answer
        return answer.body

    def open(self, dataset: lance.LanceDataset) -> CachedVersion:
        location = str(dataset.uri)
        snapshot = self.cache.open(location, CachedVersion(dataset), is_latest=False)
        assert self.cache.ranges.reads(snapshot)
        return snapshot

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("process-*/blocks-*/*.blocks"))

    def close(self) -> None:
        self.cache.close()
        for pool in (self.cache._threads, self.cache.ranges._writer):
            pool.shutdown(wait=True)


@pytest.fixture
def bucket(store: S3Server) -> Bucket:
    return Bucket(store)


@pytest.fixture
def cache(tmp_path: Path, bucket: Bucket) -> Iterator[Cache]:
    cache = Cache(tmp_path, bucket)
    yield cache
    cache.close()


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def rows(first: int, total: int) -> pa.Table:
    ids = np.arange(first, first + total)
    vectors = np.random.default_rng(first).standard_normal(total * 16, dtype=np.float32)
    return pa.table({"id": ids, "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 16)})


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("data/a.lance", Kind.ROWS),
        ("data/a/b.blob", Kind.ROWS),
        ("_indices/u/index.idx", Kind.INDEX),
        ("_deletions/0-1-2.arrow", Kind.SMALL),
        ("_transactions/1-u.txn", Kind.SMALL),
        ("tree/b/data/a.lance", Kind.ROWS),
        ("tree/data/data/a.lance", Kind.ROWS),
        ("_versions/1.manifest", Kind.MANIFEST),
        ("tree/data/_versions/1.manifest", Kind.MANIFEST),
        ("tree/x/data/_versions/1.manifest", Kind.MANIFEST),
        ("_versions/1.manifest-0a1b", Kind.MUTABLE),
        ("_versions/latest_version_hint.json", Kind.MUTABLE),
        ("tree/data/_refs/tags/t.json", Kind.MUTABLE),
        ("_refs/branches/data/x.json", Kind.MUTABLE),
        ("data/_versions/1.manifest", Kind.MUTABLE),
        ("other/x", Kind.MUTABLE),
        ("data", Kind.MUTABLE),
    ],
)
def test_files_whose_names_another_may_get_are_never_kept(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


@pytest.mark.parametrize("folder", ["data", "_indices/u"])
def test_ranges_have_the_bytes_of_the_store(cache: Cache, bucket: Bucket, folder: str) -> None:
    size = MAX_REQUEST_BYTES + MIB + 12_345
    key, chance = f"t/{folder}/file", random.Random(7)
    content = bucket.put(key, noise(size))
    for _ in range(150):
        start = chance.randrange(size)
        end = min(size, start + 1 + int(chance.expovariate(1 / 100_000)))
        assert cache.read(key, start, end) == content[start:end]
    assert cache.read(key, 0, size) == content
    assert cache.read(key, size - 5, size + 1000) == content[-5:]
    for edge in (BLOCK_BYTES, MAX_REQUEST_BYTES):
        assert cache.read(key, edge - 1, edge + 1) == content[edge - 1 : edge + 1]
        assert cache.read(key, edge, 2 * edge) == content[edge : 2 * edge]
    cache.settle()
    asked = len(bucket.asked)
    for _ in range(2):  # rows enter at the second read at last
        assert cache.read(key, 0, size) == content
        cache.settle()
    asked_later = len(bucket.asked)
    assert cache.read(key, 0, size) == content
    assert len(bucket.asked) == asked_later
    assert folder == "data" or asked_later == asked
    assert all(end - start <= MAX_REQUEST_BYTES for _, start, end in bucket.asked)


def test_suffixes_open_ends_and_whole_files(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/data/file", noise(300_000))
    for what, expected in {
        "bytes=-1000": content[-1000:],
        "bytes=-999999": content,
        "bytes=299000-": content[299_000:],
        "": content,
    }.items():
        for _ in range(3):
            answer = cache.ask("t/data/file", what)
            assert answer.body == expected
            assert answer.status == (206 if what else 200)
            begin = 300_000 - len(expected)
            assert answer.headers.get("content-range") == (f"bytes {begin}-299999/300000" if what else None)
            assert answer.headers["etag"]
    head = cache.ask("t/data/file", method="HEAD")
    assert (head.status, head.headers["content-length"]) == (200, "300000")
    assert bucket.put("t/data/empty", b"") == cache.ask("t/data/empty").body
    assert cache.ask("t/data/file", "bytes=300000-300001").status == 416
    assert cache.ask("t/data/empty", "bytes=0-1").status == 416
    for wrong in ("bytes=x-1", "lines=1-2", "bytes=", "bytes=-", "bytes=1-2,5-6"):
        assert cache.ask("t/data/file", wrong).status == 400


def test_large_files_are_sent_in_windows(cache: Cache, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_server, "MAX_WINDOW_BYTES", 2 * MIB)
    content = bucket.put("t/data/file", noise(9 * MIB + 1))
    assert cache.ask("t/data/file").body == content
    assert cache.read("t/data/file", 1, 9 * MIB) == content[1 : 9 * MIB]


def test_many_readers_share_one_request(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/_indices/u/file", noise(2 * MIB))
    bucket.put("t/_indices/u/other", noise(10))
    go_on, read_range = threading.Event(), bucket.read_range

    async def wait_for_all(location: str, start: int, end: int) -> FileRange:
        await asyncio.to_thread(go_on.wait, WAIT)
        return await read_range(location, start, end)

    bucket.files.read_range = wait_for_all  # type: ignore[method-assign]
    with ThreadPoolExecutor(24) as pool:
        answers = [pool.submit(cache.read, "t/_indices/u/file", start, MIB) for start in range(24)]
        time.sleep(0.3)
        go_on.set()
        assert [answer.result() for answer in answers] == [content[start:MIB] for start in range(24)]
    assert len(bucket.asked) == 1


def test_reader_that_goes_away_takes_nothing_from_others(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/_indices/u/file", noise(MIB))
    began, go_on, read_range = threading.Event(), threading.Event(), bucket.read_range

    async def wait_for_test(location: str, start: int, end: int) -> FileRange:
        began.set()
        await asyncio.to_thread(go_on.wait, WAIT)
        return await read_range(location, start, end)

    bucket.files.read_range = wait_for_test  # type: ignore[method-assign]
    leaving = http.client.HTTPConnection("127.0.0.1", cache.server._port, timeout=WAIT)
    headers = {SECRET: cache.server._secret, "range": "bytes=0-99"}
    leaving.request("GET", f"/{bucket.name}/t/_indices/u/file", headers=headers)
    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(cache.read, "t/_indices/u/file", 0, 100)
        assert began.wait(WAIT)
        leaving.close()
        time.sleep(0.1)
        go_on.set()
        assert staying.result() == content[:100]


def test_rows_enter_when_they_are_read_again_and_indexes_at_once(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/data/file", noise(MIB))
    for reads, kept in ((1, 0), (2, 1), (3, 1)):
        assert cache.read("t/data/file", 100, 200) == content[100:200]
        cache.settle()
        assert cache.cache.size == kept * (BLOCK_BYTES + HEAD_BYTES)
        assert len(bucket.asked) == min(reads, 2)
    assert bucket.asked[0] == ("t/data/file", 100, 200)  # no more than what is asked for
    assert bucket.asked[1] == ("t/data/file", 0, BLOCK_BYTES)
    for _ in range(2):
        cache.read("t/data/file", MIB - 100, MIB)  # its end, once its size is known
        cache.settle()
    assert len(bucket.asked) == 3
    bucket.put("t/_indices/u/file", noise(TAIL_BYTES))
    for _ in range(2):
        cache.read("t/_indices/u/file", 0, 10)
        cache.settle()
    assert len(bucket.asked) == 4
    assert cache.cache.ranges.counts[0] >= 3


def test_neighbours_that_are_missing_are_one_request(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/_indices/u/file", noise(MIB))
    cache.read("t/_indices/u/file", 5 * BLOCK_BYTES, 6 * BLOCK_BYTES)
    cache.settle()
    bucket.asked.clear()
    assert cache.read("t/_indices/u/file", 10, 10 * BLOCK_BYTES) == content[10 : 10 * BLOCK_BYTES]
    assert [(start // BLOCK_BYTES, end // BLOCK_BYTES) for _, start, end in bucket.asked] == [(0, 5), (6, 10)]


def test_secret_is_asked_for(cache: Cache, bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.put("t/data/file", b"content")
    assert cache.ask("t/data/file").status == 200
    for wrong in ("", "x", cache.server._secret[:-1], cache.server._secret.upper(), cache.server._secret + "0"):
        refused = cache.ask("t/data/file", secret=wrong)
        assert (refused.status, b"content" in refused.body) == (403, False)
        assert refused.headers["connection"] == "close"
    assert cache.server._secret not in caplog.text
    assert cache.server._secret not in repr(vars(bucket.files))


def test_only_files_of_tables_that_are_read_are_served(cache: Cache, bucket: Bucket) -> None:
    bucket.put("u/data/file", b"another table's")
    bucket.put("t-2/data/file", b"another table's")
    for key in ("u/data/file", "t-2/data/file", "t/../u/data/file", "t/%2e%2e/u/data/file"):
        assert cache.ask(key).status in (403, 404)
        assert b"another" not in cache.ask(key).body
    assert cache.ask("t/data/file", host="other-bucket").status == 403


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_is_written_through_it(cache: Cache, bucket: Bucket, method: str) -> None:
    bucket.put("t/data/file", b"content")
    assert cache.ask("t/data/file", method=method).status == 405
    assert cache.ask("t/?list-type=2").status == 405
    assert cache.ask("t/data/file").body == b"content"


def test_endpoint_listens_on_loopback_alone(cache: Cache) -> None:
    port = f":{cache.server._port:04X}"
    lines = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [address for address in lines if address.endswith(port)] != []
    assert {address[: -len(port)] for address in lines if address.endswith(port)} == {"0100007F"}


def test_connection_without_the_secret_is_closed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_server, "FIRST_REQUEST_SECONDS", 0.1)
    connection = http.client.HTTPConnection("127.0.0.1", cache.server._port, timeout=WAIT)
    connection.connect()
    began = time.monotonic()
    assert connection.sock.recv(1) == b""
    assert time.monotonic() - began < WAIT / 2
    too_long = cache.ask("t/data/file", secret="x" * range_server.MAX_HEAD_BYTES)
    assert too_long.status == 400


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (FileNotFoundError("gone"), 404, b"NoSuchKey"),
        (PermissionDeniedError("AccessDenied"), 403, b"AccessDenied"),
        (GenericError("status code: 503 Service Unavailable: SlowDown"), 503, b"SlowDown"),
        (GenericError("connection refused"), 502, b"InternalError"),
    ],
)
def test_errors_of_the_store_are_passed_on(
    cache: Cache, bucket: Bucket, error: Exception, status: int, code: bytes
) -> None:
    bucket.put("t/data/file", noise(10))
    bucket.error = error
    for key in ("t/data/file", "t/_indices/u/file"):
        answer = cache.ask(key, "bytes=0-4")
        assert answer.status == status
        assert code in answer.body
        assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
    bucket.error = None
    assert cache.ask("t/data/file", "bytes=0-4").status == 206


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("gone"), "InvalidTableStateError"),
        (PermissionDeniedError("AccessDenied"), "PermissionDeniedError"),
        (GenericError("status code: 503 Service Unavailable: SlowDown"), "StorageThrottledError"),
        (GenericError("connection refused"), "StorageUnavailableError"),
    ],
)
def test_lance_understands_errors_as_those_of_the_store(
    cache: Cache, bucket: Bucket, error: Exception, expected: str
) -> None:
    dataset = lance.write_dataset(rows(0, 100), f"{bucket.uri}/t2", storage_options=bucket.store.options)
    bucket.error = error
    snapshot = cache.open(dataset)
    began = time.monotonic()
    with pytest.raises(Exception) as raised, lance_errors(snapshot.dataset):  # noqa: PT011  # told by its name
        snapshot.dataset.to_table()
    assert type(raised.value).__name__ == expected
    assert time.monotonic() - began < 10  # the store's client has tried again, Lance need not
    assert cache.server._secret not in str(raised.value) + repr(raised.value.__cause__)


def test_file_that_is_deleted_is_missing_but_for_what_is_kept(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/_indices/u/file", noise(MIB))
    assert cache.read("t/_indices/u/file", 0, 10) == content[:10]
    cache.settle()
    bucket.delete("t/_indices/u/file")
    assert cache.read("t/_indices/u/file", 0, 10) == content[:10]
    assert cache.ask("t/_indices/u/file", f"bytes={BLOCK_BYTES}-{BLOCK_BYTES}").status == 404


def test_file_that_is_another_one_is_read_anew(cache: Cache, bucket: Bucket) -> None:
    bucket.put("t/_indices/u/file", noise(MIB, seed=1))
    cache.read("t/_indices/u/file", 0, 10)
    cache.settle()
    content = bucket.put("t/_indices/u/file", noise(MIB, seed=2))
    assert cache.read("t/_indices/u/file", BLOCK_BYTES, BLOCK_BYTES + 10) == content[BLOCK_BYTES:][:10]
    cache.settle()
    assert cache.read("t/_indices/u/file", 0, 10) == content[:10]


def test_blocks_read_before_those_of_an_earlier_process_were_found_are_of_the_same_file(
    cache: Cache, bucket: Bucket, tmp_path: Path
) -> None:
    content = bucket.put("t/_indices/u/file", noise(MIB))
    cache.read("t/_indices/u/file", 0, MIB)
    cache.settle()
    cache.close()
    following = DiskCache(str(tmp_path), 64 * MIB, lance.Session())
    blocks = following.ranges.blocks
    file = blocks.file(f"{bucket.uri}/t", f"{bucket.uri}/t/_indices/u/file")
    assert (file.size, file.places) == (None, {})
    folder = following._take_folder()
    assert file.size == MIB
    assert b"".join(blocks.read(file, range(16)).values()) == content
    blocks.append(folder, f"{bucket.uri}/t", file, {0: content[:BLOCK_BYTES]})
    assert following.size == 16 * (BLOCK_BYTES + HEAD_BYTES)
    following.close()


def test_scan_of_rows_is_few_requests_each_time(cache: Cache, bucket: Bucket) -> None:
    content = bucket.put("t/data/file", noise(4 * MIB))
    for requests in (2, 1, 0, 0):  # the end of the file enters at once
        bucket.asked.clear()
        assert cache.read("t/data/file", 0, 4 * MIB) == content
        cache.settle()
        assert len(bucket.asked) == requests


def test_manifest_is_kept_until_another_has_its_name(cache: Cache, bucket: Bucket) -> None:
    key = "t/_versions/1.manifest"
    for seed in (1, 2):
        content = bucket.put(key, noise(1000, seed))
        bucket.asked.clear()
        cache.server.call(cache.server.reader.expect_version, f"{bucket.uri}/t")  # else it would not be asked for
        for _ in range(3):
            assert cache.ask(key, method="HEAD").status == 200
            assert cache.read(key, 900, 1000) == content[900:]
            cache.settle()
        assert len(bucket.asked) == 1
    bucket.delete(key)
    cache.server.call(cache.server.reader.expect_version, f"{bucket.uri}/t")
    assert cache.ask(key, method="HEAD").status == 404


@pytest.mark.parametrize("damage", ["flipped", "truncated", "gone", "folder gone", "swapped"])
def test_damaged_blocks_are_read_from_the_store(cache: Cache, bucket: Bucket, damage: str) -> None:
    content = bucket.put("t/_indices/u/file", noise(4 * BLOCK_BYTES))
    assert cache.read("t/_indices/u/file", 0, len(content)) == content
    cache.settle()
    (segment,) = cache.segments()
    written, record = segment.read_bytes(), BLOCK_BYTES + HEAD_BYTES
    match damage:
        case "flipped":
            at = HEAD_BYTES + 5
            segment.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        case "truncated":
            segment.write_bytes(written[:-10])
        case "gone":
            segment.unlink()
        case "folder gone":
            segment.unlink()
            for path in segment.parent.iterdir():
                path.unlink()
            segment.parent.rmdir()
        case "swapped":
            segment.write_bytes(written[record : 2 * record] + written[:record] + written[2 * record :])
    bucket.asked.clear()
    assert cache.read("t/_indices/u/file", 0, len(content)) == content
    assert bucket.asked != []
    assert len(bucket.asked) == 1 or damage == "truncated"
    assert cache.cache.ranges.blocks.damaged == {"flipped": 1, "truncated": 1, "swapped": 2}.get(damage, 0)
    cache.settle()
    bucket.asked.clear()
    assert cache.read("t/_indices/u/file", 0, len(content)) == content
    assert bucket.asked == []


def test_next_process_reads_what_is_there(cache: Cache, bucket: Bucket, tmp_path: Path) -> None:
    content = bucket.put("t/_indices/u/file", noise(MIB))
    cache.read("t/_indices/u/file", 0, MIB)
    cache.settle()
    (segment,) = cache.segments()
    cache.close()
    written, record = segment.read_bytes(), BLOCK_BYTES + HEAD_BYTES
    at = 3 * record + HEAD_BYTES + 7
    segment.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :] + b"half of a record")
    (segment.parent.parent / "blocks-0-0").mkdir()
    bucket.asked.clear()
    following = Cache(tmp_path, bucket)
    assert following.segments()[0].parent.parent == segment.parent.parent
    assert following.read("t/_indices/u/file", 0, MIB) == content
    assert [(start, end) for _, start, end in bucket.asked] == [(3 * BLOCK_BYTES, 4 * BLOCK_BYTES)]
    assert following.cache.ranges.blocks.damaged == 1
    assert not (segment.parent.parent / "blocks-0-0").exists()
    following.settle()
    assert following.cache.size == sum(path.stat().st_size for path in following.segments())
    following.close()


def test_other_process_has_a_folder_of_its_own(cache: Cache, bucket: Bucket, tmp_path: Path) -> None:
    content = bucket.put("t/_indices/u/file", noise(1000))
    other = Cache(tmp_path, bucket)
    for each in (cache, other):
        assert each.read("t/_indices/u/file", 0, 1000) == content
        each.settle()
    assert {path.parent.parent.name for path in cache.segments()} == {"process-0", "process-1"}
    assert cache.ask("t/_indices/u/file", secret=other.server._secret).status == 403
    other.close()


def test_budget_holds_and_what_was_read_last_stays(bucket: Bucket, tmp_path: Path) -> None:
    cache = Cache(tmp_path, bucket, max_bytes=6 * MIN_SEGMENT_BYTES)
    contents = {f"t/_indices/u/{number}": noise(MIB, seed=number) for number in range(12)}
    for key, content in contents.items():
        bucket.put(key, content)
        assert cache.read(key, 0, MIB) == content
        cache.settle()
        assert cache.read("t/_indices/u/0", 0, 100) == contents["t/_indices/u/0"][:100]  # which is used all the time
        assert cache.cache.size <= 6 * MIN_SEGMENT_BYTES
        assert cache.cache.size == sum(path.stat().st_size for path in cache.segments())
    bucket.asked.clear()
    for key in ("t/_indices/u/0", "t/_indices/u/11"):
        assert cache.read(key, 0, 100) == contents[key][:100]
    assert bucket.asked == []
    for key, content in contents.items():
        assert cache.read(key, 0, MIB) == content
    cache.close()


def test_tenants_share_the_disk(bucket: Bucket, tmp_path: Path) -> None:
    cache = Cache(tmp_path, bucket, max_bytes=8 * MIN_SEGMENT_BYTES)

    def tenants(locations: Collection[str]) -> Mapping[str, str]:
        return {location: "small" if location.endswith("/small") else "large" for location in locations}

    cache.cache.tenants_of = tenants
    cache.add("small")
    bucket.put("small/_indices/u/file", noise(2 * MIB))
    cache.read("small/_indices/u/file", 0, 2 * MIB)
    cache.settle()
    for number in range(20):
        key = f"t/_indices/u/{number}"
        bucket.put(key, noise(MIB, seed=number))
        cache.read(key, 0, MIB)
        cache.settle()
    bucket.asked.clear()
    cache.read("small/_indices/u/file", 0, 2 * MIB)
    assert bucket.asked == []
    assert cache.cache.sizes_by_tenant()["small"] >= 2 * MIB
    cache.close()


def test_full_disk_costs_nothing_but_its_use(
    cache: Cache, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take_no_more(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    content = bucket.put("t/_indices/u/file", noise(MIB))
    monkeypatch.setattr(os, "pwrite", take_no_more)
    for _ in range(2):
        assert cache.read("t/_indices/u/file", 0, MIB) == content
        cache.settle()
    assert "No space left" in cache.cache.ranges.reason
    assert "No space left" in caplog.text
    assert cache.cache.size == 0
    monkeypatch.undo()
    monkeypatch.setattr(ranges, "monotonic", lambda: time.monotonic() + 2 * WAIT)
    cache.read("t/_indices/u/file", 0, MIB)
    cache.settle()
    assert cache.cache.size > MIB
    assert cache.cache.ranges.reason == ""


def test_proxy_of_the_environment_gets_no_secret(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    dataset = lance.write_dataset(rows(0, 10), f"{tmp_path}/elsewhere")
    cache = DiskCache(str(tmp_path / "cache"), MIB, lance.Session())
    cache.open_files = lambda location: bucket.files
    snapshot = CachedVersion(dataset)
    assert cache.open(f"{bucket.uri}/t", snapshot, is_latest=False) is snapshot
    assert "NO_PROXY" in cache.ranges.reason
    cache.close()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    cache = DiskCache(str(tmp_path / "cache"), MIB, lance.Session())
    assert cache.ranges._serve() is not None
    cache.close()


def test_closed_cache_leaves_tables_as_they_were_opened(cache: Cache, bucket: Bucket) -> None:
    dataset = lance.write_dataset(rows(0, 100), f"{bucket.uri}/t2", storage_options=bucket.store.options)
    opened = cache.open(dataset)
    assert not cache.cache.drop_if_damaged(f"{bucket.uri}/t2", opened, InternalError("of Lance's own"))
    cache.close()
    until = time.monotonic() + WAIT
    while cache.cache.ranges.is_serving and time.monotonic() < until:
        time.sleep(0.01)
    assert cache.cache.drop_if_damaged(f"{bucket.uri}/t2", opened, InternalError("refused"))
    snapshot = CachedVersion(dataset)
    assert cache.cache.open(f"{bucket.uri}/t2", snapshot, is_latest=False) is snapshot


def test_tables_are_the_same_by_ranges(cache: Cache, bucket: Bucket) -> None:
    options = bucket.store.options
    dataset = lance.write_dataset(rows(0, 2000), f"{bucket.uri}/t2", storage_options=options)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_index("vec", "IVF_PQ", num_partitions=4, num_sub_vectors=4)
    dataset.delete("id % 10 = 3")
    dataset = lance.write_dataset(rows(2000, 500), dataset.uri, mode="append", storage_options=options)
    branch = dataset.create_branch("b", 1)
    branch = lance.write_dataset(rows(9000, 10), branch, mode="append")
    nearest = {"column": "vec", "q": np.zeros(16, np.float32), "k": 10, "nprobes": 4}
    questions: list[dict[str, Any]] = [{}, {"filter": "id = 17"}, {"nearest": nearest, "columns": ["id"]}]
    plain = [lance.dataset(dataset.uri, version=number, storage_options=options) for number in range(1, 6)]
    for source in [*plain, branch]:
        for _ in range(3):
            by_ranges = cache.cache.open(f"{bucket.uri}/t2", CachedVersion(source), is_latest=False)
            assert cache.cache.ranges.reads(by_ranges)
            for question in questions:
                assert by_ranges.dataset.to_table(**question) == source.to_table(**question)
            cache.settle()
    assert cache.cache.ranges.counts[0] > 0
    assert {kind_of(path.partition("t2/")[2]) for path, _, _ in bucket.asked} > {Kind.ROWS, Kind.INDEX}


def test_shallow_clones_are_read_by_ranges(cache: Cache, bucket: Bucket) -> None:
    options = bucket.store.options
    dataset = lance.write_dataset(rows(0, 100), f"{bucket.uri}/t2", storage_options=options)
    clone = dataset.shallow_clone(f"{bucket.uri}/t3", dataset.version, storage_options=options)
    clone = lance.write_dataset(rows(100, 20), clone.uri, mode="append", storage_options=options)
    for _ in range(3):
        found = cache.open(clone).dataset.to_table(columns=["id"]).column("id").to_pylist()
        assert sorted(found) == list(range(120))
        cache.settle()
    assert {path.partition("/")[0] for path, _, _ in bucket.asked} == {"t2", "t3"}


def test_table_of_the_same_place_shows_no_bytes_of_the_one_before(cache: Cache, bucket: Bucket) -> None:
    location, options = f"{bucket.uri}/t2", bucket.store.options
    for first in (0, 1000, 2000):
        dataset = lance.write_dataset(rows(first, 50), location, storage_options=options)
        for _ in range(3):
            found = cache.open(dataset).dataset.to_table(columns=["id"]).column("id").to_pylist()
            assert found == list(range(first, first + 50))
            cache.settle()
        for key in bucket.store.list_keys(bucket.name, "t2/"):
            bucket.delete(key)
        if first:  # else nobody has told the cache
            cache.cache.evict(location)
            cache.settle()
            assert cache.segments() == []


def test_servers_answers_are_the_same(store: S3Server, tmp_path: Path) -> None:
    name = f"ranges-{next(BUCKETS)}"
    root, options = store.new_bucket(name), json.dumps(store.options)
    catalog = ("--db", f"sqlite:///{tmp_path / 'catalog.db'}")
    environ = {"TILTYARD_STORAGE_OPTIONS": options, "TILTYARD_UPKEEP": "false"}
    kept = {"TILTYARD_DISK_CACHE_BYTES": str(8 * MIB), "TILTYARD_DISK_CACHE_FOLDER": str(tmp_path / "cache")}
    vector = rows(5, 1)["vec"][0].as_py()
    fields = {"columns": {"column_names": ["id"]}}
    queries = [
        {"vector": {"single_vector": vector}, "vector_column": "vec", "k": 10, "nprobes": 4, **fields},
        {"vector": {"single_vector": []}, "k": 50, "filter": "id >= 100 AND id < 140", **fields},
        {"vector": {"single_vector": []}, "k": 5, "filter": "id = 7", "version": 1, **fields},
    ]

    def answers(wire: Wire) -> list[Any]:
        responses = [wire.table(["t"], "query", query) for query in queries]
        assert [response.status_code for response in responses] == [200] * len(queries)
        found: list[Any] = [pa.ipc.open_file(response.content).read_all().to_pydict() for response in responses]
        return [*found, wire.table(["t"], "count_rows", {"predicate": "id < 77"}).text]

    def plan(wire: Wire) -> str:
        return str(wire.good(wire.table(["t"], "explain_plan", {"query": queries[0]})))

    server = ServerProcess(f"{root}/tables", *catalog, environ=environ)
    try:
        with Wire(server.url) as wire:
            # more than half of the room, so that it is not copied
            wire.good(wire.table(["t"], "create", stream(rows(0, 60_000))))
            wire.good(wire.table(["t"], "create_scalar_index", {"column": "id", "index_type": "BTREE"}))
            index = {"column": "vec", "index_type": "IVF_PQ", "distance_type": "l2", "num_partitions": 4}
            wire.good(wire.table(["t"], "create_index", index))
            location = wire.good(wire.table(["t"], "describe"))["location"]
            until = time.monotonic() + WAIT
            while len(lance.dataset(location, storage_options=store.options).describe_indices()) < 2:
                assert time.monotonic() < until
                time.sleep(0.2)
            expected = answers(wire)
    finally:
        server.stop()
    server = ServerProcess(f"{root}/tables", *catalog, environ={**environ, **kept})
    try:
        with Wire(server.url) as wire:
            assert "read by ranges, through the server's disk: too few reads yet" in plan(wire)
            for _ in range(4):
                assert answers(wire) == expected
            assert "more than half" in plan(wire)
            described = json.dumps(wire.good(wire.table(["t"], "describe")))
            assert store.endpoint in described
            assert "x-tiltyard-secret" not in described
            wrong = wire.table(["t"], "query", {**queries[1], "filter": "no_such_column = 1"})
            assert wrong.status_code == 404
            assert "127.0.0.1" not in wrong.text
            figures = wire.http.get("/metrics").text
            assert 'what="blocks of tables read from disk"' in figures
            wire.good(wire.table(["t"], "drop"))
            wire.good(wire.table(["t"], "create", stream(rows(500_000, 20))))
            got = wire.table(["t"], "query", {**queries[1], "filter": "id < 500003"})
            assert pa.ipc.open_file(got.content).read_all()["id"].to_pylist() == [500_000, 500_001, 500_002]
            assert wire.table(["t"], "count_rows", {"predicate": "id < 500000"}).text == "0"
    finally:
        server.stop()
    assert list((tmp_path / "cache").glob("process-*/blocks-*/*.blocks")) != []
    assert "x-tiltyard-secret" not in "".join(server.log)
