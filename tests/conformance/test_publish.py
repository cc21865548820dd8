"""`tiltyard.publish`: what is written in a block becomes visible together, or not at all."""

# ruff: noqa: PT012 - what raises is the end of a block, whatever it holds

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import lance
import lance.namespace as rust
import obstore
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata, write_fragments
from lance_namespace import (
    BatchCommitTablesRequest,
    CountTableRowsRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTransactionRequest,
    DropTableRequest,
    ListTablesRequest,
    ListTableVersionsRequest,
    TableExistsRequest,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lancedb.namespace import LanceNamespaceDBConnection

import tiltyard
from tests.conformance.conftest import Raw
from tests.services.server import ServerProcess
from tiltyard.publishing import commit
from tiltyard.publishing.batch_call import batch_sender
from tiltyard_conformance.cases import World

Fresh = Callable[[str], str]
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", "c"]})


class OutsideView:
    """The tables of a test's namespace as other clients see them, and their files."""

    def __init__(self, client: Any, namespace: str, server: ServerProcess) -> None:
        self.client = client
        self.namespace = namespace
        self.options = server.options
        self.root = str(server.root)
        self._old_names = set(self._list_root())

    def id(self, name: str) -> list[str]:
        return [self.namespace, name]

    def make(self, *names: str) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: write(self.client, self.id(name)), names))

    def version(self, name: str) -> int:
        return int(lance.dataset(namespace_client=self.client, table_id=self.id(name)).version)

    def rows(self, name: str) -> int:
        return int(lance.dataset(namespace_client=self.client, table_id=self.id(name)).count_rows())

    def tables(self) -> list[str]:
        return sorted(self.client.list_tables(ListTablesRequest(id=[self.namespace])).tables)

    def location(self, name: str) -> str:
        return str(self.client.describe_table(DescribeTableRequest(id=self.id(name))).location)

    def plain(self, name: str) -> lance.LanceDataset:
        """Open a table from its location, without the namespace."""
        return lance.dataset(self.location(name), storage_options=self.options)

    def files(self) -> set[str]:
        """List all files but the catalog and hints of the latest version (Lance checks those before use).

        Folders that existed before are left out: the server may still work on them for other tests. Nor are they
        listed, since there may be hundreds.
        """
        store = World(None, self.options).files(self.root)
        files: set[str] = set()
        for name, is_folder in self._list_root().items():
            if name not in self._old_names:
                listed = [entry["path"] for batch in obstore.list(store, name) for entry in batch]
                files |= set(listed) if is_folder else {name}
        return {path for path in files if not path.endswith("latest_version_hint.json") and "catalog.db" not in path}

    def _list_root(self) -> dict[str, bool]:
        """List the names right below the root, each with whether it is a folder."""
        listed = obstore.list_with_delimiter(World(None, self.options).files(self.root))
        return {entry["path"]: False for entry in listed["objects"]} | dict.fromkeys(listed["common_prefixes"], True)

    def wait_until_settled(self) -> None:
        """Wait until new files have a later modification time than all before: object stores have whole seconds.

        And until no staged manifest is left of earlier commits: those are deleted a moment after they are published.
        """
        files = World(None, self.options).files(self.root)

        def now() -> Any:
            obstore.put(files, "clock", b"")
            modified = obstore.head(files, "clock")["last_modified"]
            obstore.delete(files, "clock")
            return modified

        start = now()
        until = time.monotonic() + 30
        while now() == start or (any(".manifest-" in path for path in self.files()) and time.monotonic() < until):
            time.sleep(0.05)


def write(client: Any, table_id: list[str], mode: str = "create", rows: pa.Table = ROWS) -> lance.LanceDataset:
    return lance.write_dataset(rows, namespace_client=client, table_id=table_id, mode=mode)


@pytest.fixture(params=["rest", "twin"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def outside(client: Any, namespace: str, server: ServerProcess) -> OutsideView:
    return OutsideView(client, namespace, server)


class Stop(Exception):  # noqa: N818  # ends a block, and is no error
    """Raised in a block to leave it."""


def test_publish_shows_new_appended_and_overwritten_tables_together(client: Any, outside: OutsideView) -> None:
    outside.make("appended", "overwritten")
    before = outside.files()
    with tiltyard.publish(client) as tables:
        write(tables, outside.id("new"))
        write(tables, outside.id("appended"), "append")
        write(tables, outside.id("overwritten"), "overwrite", ROWS.slice(2))
        assert (outside.version("appended"), outside.version("overwritten")) == (1, 1)
        assert outside.plain("appended").version == 1
        assert outside.tables() == ["appended", "overwritten"]
        with pytest.raises(TableNotFoundError):
            client.table_exists(TableExistsRequest(id=outside.id("new")))
    assert [outside.rows(name) for name in ("new", "appended", "overwritten")] == [3, 6, 1]
    assert [outside.plain(name).version for name in ("new", "appended", "overwritten")] == [1, 2, 2]
    transaction = client.describe_transaction(DescribeTransactionRequest(id=[tables.transaction_id]))
    assert transaction.status == "Succeeded" and transaction.properties["operations"] == "4"
    outside.wait_until_settled()
    new_files = outside.files() - before
    assert [path for path in new_files if "_publishing-" in path or ".manifest-" in path] == []


def test_publish_lets_the_block_read_and_extend_what_it_wrote(client: Any, outside: OutsideView) -> None:
    outside.make("old")
    with tiltyard.publish(client) as tables:
        for name in ("old", "new"):
            write(tables, outside.id(name), "append" if name == "old" else "create").delete("id = 1")
            dataset = lance.dataset(namespace_client=tables, table_id=outside.id(name))
            dataset.add_columns({"twice": "id * 2"})
            dataset.update({"text": "'z'"}, where="id = 2")
            merged = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merged.execute(pa.table({"id": [3, 9], "text": ["m", "m"], "twice": [6, 18]}))
            dataset.create_scalar_index("id", "BTREE")
            reopened = lance.dataset(namespace_client=tables, table_id=outside.id(name))
            assert reopened.count_rows("text = 'm'") == (3 if name == "old" else 2)
            assert lance.dataset(namespace_client=tables, table_id=outside.id(name), version=1).count_rows() == 3
        latest = lance.dataset(namespace_client=tables, table_id=outside.id("old")).version
        for descending, expected in ((True, list(range(latest, 0, -1))), (False, list(range(1, latest + 1)))):
            request = ListTableVersionsRequest(id=outside.id("old"), descending=descending)
            assert [entry.version for entry in tables.list_table_versions(request).versions] == expected
        request = ListTableVersionsRequest(id=outside.id("old"), descending=True, limit=2)
        assert [entry.version for entry in tables.list_table_versions(request).versions] == [latest, latest - 1]
        assert tables.list_tables(ListTablesRequest(id=[outside.namespace])).tables == ["old", "new"]
        tables.table_exists(TableExistsRequest(id=outside.id("new")))
        assert outside.version("old") == 1
    assert (outside.version("old"), outside.plain("old").version) == (latest, latest)
    assert (outside.rows("old"), outside.rows("new")) == (5, 3)
    assert [index.name for index in outside.plain("new").describe_indices()] == ["id_idx"]


def test_publish_after_an_exception_leaves_nothing(client: Any, outside: OutsideView) -> None:
    outside.make("old", "other")
    outside.wait_until_settled()
    before = outside.files()
    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        write(tables, outside.id("new")).delete("id = 1")
        dataset = write(tables, outside.id("old"), "append")
        dataset.delete("id = 1")
        dataset.add_columns({"twice": "id * 2"})
        dataset.create_scalar_index("id", "BTREE")
        write(tables, outside.id("other"), "overwrite", ROWS.drop_columns("text"))
        assert len(outside.files()) > len(before) + 15
        raise Stop
    assert outside.files() == before
    assert outside.tables() == ["old", "other"]
    assert (
        [outside.version(name) for name in ("old", "other")]
        == [1, 1]
        == [outside.plain(name).version for name in ("old", "other")]
    )
    write(client, outside.id("old"), "append")
    write(client, outside.id("new"))
    assert (outside.rows("old"), outside.rows("new")) == (6, 3)


def test_publish_after_an_exception_keeps_what_a_restored_version_needs(client: Any, outside: OutsideView) -> None:
    outside.make("t")
    write(client, outside.id("t"), "overwrite", ROWS.slice(2))
    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        lance.dataset(namespace_client=tables, table_id=outside.id("t")).checkout_version(1).restore()
        assert lance.dataset(namespace_client=tables, table_id=outside.id("t")).count_rows() == 3
        raise Stop
    assert outside.rows("t") == 1
    assert lance.dataset(namespace_client=client, table_id=outside.id("t"), version=1).to_table().num_rows == 3


def test_publish_meets_another_commit_and_names_the_table(client: Any, outside: OutsideView) -> None:
    outside.make("docs", "chunks")
    outside.wait_until_settled()
    with (
        pytest.raises(tiltyard.PublishConflictError, match=r"chunks first") as conflict,
        tiltyard.publish(client) as tables,
    ):
        for name in ("docs", "chunks", "new"):
            write(tables, outside.id(name), "create" if name == "new" else "append")
        write(client, outside.id("chunks"), "append", ROWS.slice(2))
    assert conflict.value.tables == (tuple(outside.id("chunks")),)
    assert (outside.rows("docs"), outside.rows("chunks"), outside.tables()) == (3, 4, ["chunks", "docs"])
    data = [path for path in outside.files() if path.startswith((folder(outside, "docs"), folder(outside, "chunks")))]
    assert sum("/data/" in path for path in data) == 3
    assert [path for path in data if "_publishing-" in path or ".manifest-" in path] == []


def folder(outside: OutsideView, name: str) -> str:
    return outside.location(name).rpartition("/")[2]


@pytest.mark.parametrize("others", [1, 2, 3])
def test_publish_that_writes_on_after_others_names_the_table_and_deletes_none_of_their_files(
    client: Any, outside: OutsideView, others: int
) -> None:
    """Lance finds their versions in storage, and stages a version based on them."""
    outside.make("a")
    outside.wait_until_settled()
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        write(tables, outside.id("a"), "append")
        for _ in range(others):
            write(client, outside.id("a"), "append", ROWS.slice(2))
        if others > 1:
            write(tables, outside.id("a"), "append")
    assert conflict.value.tables == (tuple(outside.id("a")),)
    dataset = lance.dataset(namespace_client=client, table_id=outside.id("a"))
    assert dataset.to_table().num_rows == 3 + others
    files = {file.path for fragment in dataset.get_fragments() for file in fragment.data_files()}
    assert {path.rpartition("/")[2] for path in outside.files() if "/data/" in path} == files


def test_publish_that_is_interrupted_after_a_refusal_is_interrupted(client: Any, outside: OutsideView) -> None:
    outside.make("a")
    with pytest.raises(KeyboardInterrupt), tiltyard.publish(client) as tables:
        with suppress(OSError, ValueError):
            lance.dataset(namespace_client=tables, table_id=outside.id("a")).create_branch("new")
        raise KeyboardInterrupt


def test_publish_that_fails_leaves_nothing_to_undrop(client: Any, outside: OutsideView, raw: Raw) -> None:
    with suppress(Stop), tiltyard.publish(client) as tables:
        write(tables, outside.id("new"))
        raise Stop
    dropped = raw.post("/tiltyard/v1/table/dropped", {"limit": 1000}).json()["tables"]
    assert outside.id("new") not in [table["id"] for table in dropped]


@pytest.mark.parametrize("change", ["taken", "dropped"])
def test_publish_meets_another_table_of_the_name_or_none(client: Any, outside: OutsideView, change: str) -> None:
    outside.make("old")
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        write(tables, outside.id("new"))
        write(tables, outside.id("old"), "append")
        if change == "taken":
            outside.make("new")
        else:
            client.drop_table(DropTableRequest(id=outside.id("old")))
    assert conflict.value.tables == (tuple(outside.id("new" if change == "taken" else "old")),)
    assert outside.tables() == (["new", "old"] if change == "taken" else [])


def test_publish_again_after_conflicts_gets_through(client: Any, outside: OutsideView) -> None:
    outside.make("docs", "chunks")

    def publish(number: int) -> None:
        rows = pa.table({"id": [100 + number], "text": ["w"]})
        published = False
        while not published:
            with suppress(tiltyard.PublishConflictError):
                with tiltyard.publish(client) as tables:
                    for name in ("docs", "chunks"):
                        write(tables, outside.id(name), "append", rows)
                published = True

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(publish, range(6)))
    for name in ("docs", "chunks"):
        dataset = lance.dataset(namespace_client=client, table_id=outside.id(name))
        assert sorted(dataset.to_table()["id"].to_pylist()) == [1, 2, 3, *range(100, 106)]
        assert dataset.version == 7


def test_publish_20_tables_is_atomic_for_a_reader(client: Any, outside: OutsideView) -> None:
    names = [f"t{number}" for number in range(20)]
    outside.make(*names)
    done, versions = threading.Event(), []

    def poll() -> None:
        while not done.is_set():
            versions.append((outside.version(names[0]), outside.version(names[-1]), outside.version(names[0])))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for round_ in range(2):
            with tiltyard.publish(client) as tables, ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda name: write(tables, outside.id(name), "append"), names))  # waited for
                before = [outside.version(name) for name in (names[0], names[-1])]
                assert before[0] == before[1] == 1 + round_
    finally:
        done.set()
        reader.join()
    assert len(versions) > 3 and all(first <= last <= again for first, last, again in versions)
    assert {outside.version(name) for name in names} == {3}


def test_publish_of_an_unmanaged_table_is_refused(client: Any, outside: OutsideView, raw: Raw) -> None:
    outside.make("managed")
    off = {"properties": {"tiltyard.managed_versioning": "false"}}
    raw.post(f"/v1/table/{outside.namespace}$plain/declare", off)
    lance.write_dataset(ROWS, outside.location("plain"), storage_options=outside.options)
    outside.wait_until_settled()
    before = outside.files()
    refusal = "plain commits straight to storage"
    with (
        pytest.raises(InvalidInputError, match=refusal),
        tiltyard.publish(client) as tables,
    ):
        write(tables, outside.id("managed"), "append")
        assert lance.dataset(namespace_client=tables, table_id=outside.id("plain")).count_rows() == 3
        write(tables, outside.id("plain"), "append")
    with (
        pytest.raises(InvalidInputError, match=refusal),
        tiltyard.publish(client) as tables,
        pytest.raises(OSError, match="unknown"),
    ):
        write(tables, outside.id("plain"), "append")
    with pytest.raises(InvalidInputError, match="straight to storage"), tiltyard.publish(client) as tables:
        tables.declare_table(DeclareTableRequest(id=outside.id("new"), **off))
    assert (outside.rows("managed"), outside.rows("plain"), outside.files()) == (3, 3, before)


def test_publish_writes_of_lancedb(client: Any, outside: OutsideView) -> None:
    rows = pa.table({"id": [1, 2], "vector": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})
    write(client, outside.id("old"), rows=rows)
    with tiltyard.publish(client) as tables:
        database = LanceNamespaceDBConnection(tables)
        database.create_table("new", rows, namespace_path=[outside.namespace]).add(rows)
        old = database.open_table("old", namespace_path=[outside.namespace])
        old.add(rows)
        old.update(where="id = 1", values={"id": 7})
        assert old.search([1.0, 0.0]).limit(9).to_arrow().num_rows == 4
        assert outside.tables() == ["old"] and outside.rows("old") == 2
    assert (outside.rows("old"), outside.rows("new"), outside.plain("old").count_rows("id = 7")) == (4, 4, 2)


def write_part(location: str, options: dict[str, str], number: int) -> list[FragmentMetadata]:
    """Write rows as a task of a cluster does, and return the fragments to the driver."""
    rows = pa.table({"id": [number], "text": ["t"]})
    return write_fragments(rows, location, mode="append", storage_options=options)


def test_publish_fragments_of_other_processes(rest: Any, namespace: str, server: ServerProcess) -> None:
    outside = OutsideView(rest, namespace, server)
    outside.make("t", "log")
    with tiltyard.publish(rest) as tables:
        with pytest.raises(TypeError, match="cannot leave its process"):
            pickle.dumps(tables)
        dataset = lance.dataset(namespace_client=tables, table_id=outside.id("t"))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            parts = pool.starmap(write_part, [(dataset.uri, outside.options, number) for number in (10, 11)])
        rows = lance.LanceOperation.Append([fragment for part in parts for fragment in part])
        lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, rows))
        write(tables, outside.id("log"), "append")
        assert outside.rows("t") == 3
    assert (outside.rows("t"), outside.rows("log")) == (5, 6)


def test_publish_to_an_existing_branch_and_not_to_a_new_one(client: Any, outside: OutsideView) -> None:
    outside.make("t")
    lance.dataset(namespace_client=client, table_id=outside.id("t")).create_branch("try")
    outside.wait_until_settled()
    before = outside.files()

    def on_branch(namespace: Any) -> lance.LanceDataset:
        return lance.dataset(namespace_client=namespace, table_id=outside.id("t")).checkout_version(("try", None))

    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        on_branch(tables).insert(ROWS)
        raise Stop
    assert outside.files() == before and on_branch(client).count_rows() == 3
    with tiltyard.publish(client) as tables:
        on_branch(tables).insert(ROWS)
        on_branch(tables).delete("id = 1")
        write(tables, outside.id("t"), "append")
        assert on_branch(tables).count_rows() == 4 and on_branch(client).count_rows() == 3
    assert (on_branch(client).count_rows(), outside.rows("t")) == (4, 6)
    with pytest.raises(InvalidInputError, match="Make the branch other"), tiltyard.publish(client) as tables:
        lance.dataset(namespace_client=tables, table_id=outside.id("t")).create_branch("other")


def test_publish_deregisters_within_the_batch(client: Any, outside: OutsideView) -> None:
    outside.make("gone", "kept")
    with tiltyard.publish(client) as tables:
        location = tables.deregister_table(DeregisterTableRequest(id=outside.id("gone"))).location
        write(tables, outside.id("kept"), "append")
        assert tables.list_tables(ListTablesRequest(id=[outside.namespace])).tables == ["kept"]
        with pytest.raises(TableNotFoundError):
            tables.describe_table(DescribeTableRequest(id=outside.id("gone")))
        with pytest.raises(InvalidInputError):
            tables.deregister_table(DeregisterTableRequest(id=outside.id("kept")))
        assert outside.tables() == ["gone", "kept"]
    assert outside.tables() == ["kept"]
    assert lance.dataset(location, storage_options=outside.options).count_rows() == 3


def test_publish_refuses_operations_that_take_effect_at_once_or_miss_the_blocks_writes(
    client: Any, outside: OutsideView
) -> None:
    outside.make("t", "untouched")
    with tiltyard.publish(client) as tables:
        write(tables, outside.id("t"), "append")
        for name in ("insert_into_table", "drop_table", "create_table_tag", "register_table"):
            with pytest.raises(UnsupportedOperationError, match="outside of the block"):
                getattr(tables, name)({"id": outside.id("t")})
        with pytest.raises(UnsupportedOperationError, match="does not see what this block wrote"):
            tables.count_table_rows(CountTableRowsRequest(id=outside.id("t")))
        tables.count_table_rows(CountTableRowsRequest(id=outside.id("untouched")))
        with pytest.raises(TableAlreadyExistsError):
            write(tables, outside.id("t"))
        with pytest.raises(NamespaceNotFoundError):
            write(tables, ["no such namespace", "t"])
        with pytest.raises(InvalidInputError, match="location"):
            tables.declare_table(DeclareTableRequest(id=outside.id("new"), location=outside.location("t")))
        tables.declare_table(DeclareTableRequest(id=outside.id("new")))
        with pytest.raises(TableAlreadyExistsError):
            tables.declare_table(DeclareTableRequest(id=outside.id("new")))
    assert outside.rows("t") == 6 and outside.tables() == ["new", "t", "untouched"]
    with pytest.raises(InvalidInputError, match="has ended"):
        tables.declare_table(DeclareTableRequest(id=outside.id("late")))
    assert lance.dataset(namespace_client=tables, table_id=outside.id("t")).count_rows() == 6
    with tiltyard.publish(client) as tables:
        assert lance.dataset(namespace_client=tables, table_id=outside.id("t")).count_rows() == 6
    assert tables.transaction_id is None


def test_publish_needs_a_client_with_batches(lossy: LossyNamespace) -> None:
    with tiltyard.publish(lossy) as tables, pytest.raises(UnsupportedOperationError, match="part of another"):
        tiltyard.publish(tables)
    with pytest.raises(TypeError, match="LanceNamespace, not NoneType"):
        tiltyard.publish(None)  # type: ignore[arg-type]  # as after a forgotten connection
    with pytest.raises(UnsupportedOperationError, match="DirectoryNamespace cannot commit several tables"):
        tiltyard.publish(rust.DirectoryNamespace(root="memory://none"))


class LossyNamespace(tiltyard.Namespace):
    """A namespace that loses responses: for each batch an outcome True, None (runs, but no response), or False."""

    def batch_commit_tables(self, request: Any, request_data: bytes | None = None) -> Any:
        runs = self.outcomes.pop(0) if self.outcomes else True
        if runs is None or runs:
            response = self.call("BatchCommitTables", request)
            if runs:
                return response
        raise ServiceUnavailableError("The connection was lossy.")


@pytest.fixture
def lossy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyNamespace]:
    monkeypatch.setattr(commit, "PAUSES", (0, 0))
    with LossyNamespace(str(tmp_path), jobs=0) as namespace:
        namespace.outcomes = []
        write(namespace, ["t"])
        yield namespace


@pytest.mark.parametrize("outcomes", [[None], [False, None], [False, False, True]], ids=str)
@pytest.mark.parametrize("new", [True, False])
def test_publish_whose_response_is_lost_is_published_once(
    lossy: LossyNamespace, outcomes: list[Any], new: bool
) -> None:
    with tiltyard.publish(lossy) as tables:
        write(tables, ["t"], "append")
        if new:
            write(tables, ["u"])
        lossy.outcomes = list(outcomes)
    assert lance.dataset(namespace_client=lossy, table_id=["t"]).count_rows() == 6
    assert (tables.transaction_id is None) is (None in outcomes)
    assert lossy.list_tables({"id": []}).tables == (["t", "u"] if new else ["t"])


def test_publish_refused_by_a_server_that_goes_away_leaves_nothing(
    lossy: LossyNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        monkeypatch.setattr(LossyNamespace, "describe_table", gone)
        raise ConcurrentModificationError("taken")

    def gone(*_: Any) -> None:
        raise RuntimeError("error sending request")

    with pytest.raises(tiltyard.PublishConflictError) as raised, tiltyard.publish(lossy) as tables:
        location = write(tables, ["u"]).uri
        monkeypatch.setattr(LossyNamespace, "batch_commit_tables", refused)
    assert raised.value.tables == ()
    assert not Path(location).exists()


def test_publish_without_any_response_is_uncertain_and_keeps_its_files(lossy: LossyNamespace) -> None:
    with pytest.raises(tiltyard.PublishUncertainError), tiltyard.publish(lossy) as tables:
        location = write(tables, ["u"]).uri
        lossy.outcomes = [False] * 9
    assert list(Path(location, "data").iterdir())
    assert lossy.list_tables({"id": []}).tables == ["t"]


@pytest.mark.parametrize("failures", [1, 9])
def test_publish_of_which_a_server_says_no_more_than_that_it_is_committed_is_not_refused(
    lossy: LossyNamespace, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """It goes away between two questions about one batch: what is committed stays, and no error says that it is not."""
    describe, asked = LossyNamespace.describe_table_version, count()

    def goes_away(namespace: LossyNamespace, request: Any) -> Any:
        if 0 < next(asked) <= failures:
            raise InternalError("connection reset by peer")
        return describe(namespace, request)

    uncertain = pytest.raises(tiltyard.PublishUncertainError, match="The server published")
    with nullcontext() if failures == 1 else uncertain, tiltyard.publish(lossy) as tables:
        write(tables, ["t"], "append")
        lossy.outcomes = [None]
        monkeypatch.setattr(LossyNamespace, "describe_table_version", goes_away)
    monkeypatch.undo()
    assert lance.dataset(namespace_client=lossy, table_id=["t"]).count_rows() == 6


class RecordingHandler(BaseHTTPRequestHandler):
    """A server that records requests for batches, and refuses them."""

    def do_POST(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]  # assigned below
        status, body = self.server.responses.pop(0)  # type: ignore[attr-defined]  # likewise
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_publish_by_http_sends_headers_and_translates_refusals() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler) as server:
        server.requests, server.responses = [], [(409, b'{"code": 5, "error": "taken"}'), (502, b"<html>")]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = rust.RestNamespace(uri=f"http://127.0.0.1:{server.server_port}")
        send = batch_sender(client, {"Authorization": "Bearer me"})
        for expected in (TableAlreadyExistsError, ServiceUnavailableError):
            with pytest.raises(expected):
                send(BatchCommitTablesRequest(operations=[]), "a key")
        server.shutdown()
    with pytest.raises(ServiceUnavailableError):
        send(BatchCommitTablesRequest(operations=[]), "a key")
    path, headers = server.requests[0]
    assert path.startswith("/v1/table/batch-commit")
    assert (headers["Authorization"], headers["Idempotency-Key"]) == ("Bearer me", "a key")
