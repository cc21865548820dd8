"""`tiltyard.publish`: what is written in a block becomes visible together, or not at all."""

# ruff: noqa: PT012 - what raises is the end of a block, whatever it holds

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tests.conformance.cases import World, paths
from tests.conformance.conftest import Raw
from tests.services.server import ServerProcess
from tiltyard.publishing import commit
from tiltyard.publishing.batch_call import batch_sender

Fresh = Callable[[str], str]
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", "c"]})


class Shelf:
    """Tables of a namespace of its own, as others see them, and their files."""

    def __init__(self, client: Any, namespace: str, server: ServerProcess) -> None:
        self.client = client
        self.namespace = namespace
        self.options = server.options
        self.root = str(server.root)
        self._others: set[str] = set()
        self._others = {path.partition("/")[0] for path in self.files()}

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
        """A table without its namespace."""
        return lance.dataset(self.location(name), storage_options=self.options)

    def files(self) -> set[str]:
        """All files but the catalog and hints of the latest version (Lance checks those before use).

        Folders that were there before this shelf are others': the server may work on them still.
        """
        found = {path for path in paths(World(None, self.options).files(self.root)) if "catalog.db" not in path}
        ours = {path for path in found if path.partition("/")[0] not in self._others}
        return {path for path in ours if not path.endswith("latest_version_hint.json")}

    def let_the_clock_tick(self) -> None:
        """Files of object stores are dated to the second: what is written from now on is younger than all before."""
        files = World(None, self.options).files(self.root)

        def now() -> Any:
            obstore.put(files, "clock", b"")
            dated = obstore.head(files, "clock")["last_modified"]
            obstore.delete(files, "clock")
            return dated

        start = now()
        while now() == start:
            time.sleep(0.05)


def write(client: Any, table_id: list[str], mode: str = "create", rows: pa.Table = ROWS) -> lance.LanceDataset:
    return lance.write_dataset(rows, namespace_client=client, table_id=table_id, mode=mode)


@pytest.fixture(params=["rest", "twin"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def shelf(client: Any, namespace: str, server: ServerProcess) -> Shelf:
    return Shelf(client, namespace, server)


class Stop(Exception):  # noqa: N818  # no error: what a block was left with
    """Raised in a block."""


def test_publish_shows_new_appended_and_overwritten_tables_together(client: Any, shelf: Shelf) -> None:
    shelf.make("appended", "overwritten")
    before = shelf.files()
    with tiltyard.publish(client) as tables:
        write(tables, shelf.id("new"))
        write(tables, shelf.id("appended"), "append")
        write(tables, shelf.id("overwritten"), "overwrite", ROWS.slice(2))
        assert (shelf.version("appended"), shelf.version("overwritten")) == (1, 1)
        assert shelf.plain("appended").version == 1
        assert shelf.tables() == ["appended", "overwritten"]
        with pytest.raises(TableNotFoundError):
            client.table_exists(TableExistsRequest(id=shelf.id("new")))
    assert [shelf.rows(name) for name in ("new", "appended", "overwritten")] == [3, 6, 1]
    assert [shelf.plain(name).version for name in ("new", "appended", "overwritten")] == [1, 2, 2]
    done = client.describe_transaction(DescribeTransactionRequest(id=[tables.transaction_id]))
    assert done.status == "Succeeded" and done.properties["operations"] == "4"
    left = shelf.files() - before
    assert [path for path in left if "_publishing-" in path or ".manifest-" in path] == []


def test_publish_lets_the_block_read_and_extend_what_it_wrote(client: Any, shelf: Shelf) -> None:
    shelf.make("old")
    with tiltyard.publish(client) as tables:
        for name in ("old", "new"):
            write(tables, shelf.id(name), "append" if name == "old" else "create").delete("id = 1")
            dataset = lance.dataset(namespace_client=tables, table_id=shelf.id(name))
            dataset.add_columns({"twice": "id * 2"})
            dataset.update({"text": "'z'"}, where="id = 2")
            merged = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merged.execute(pa.table({"id": [3, 9], "text": ["m", "m"], "twice": [6, 18]}))
            dataset.create_scalar_index("id", "BTREE")
            again = lance.dataset(namespace_client=tables, table_id=shelf.id(name))
            assert again.count_rows("text = 'm'") == (3 if name == "old" else 2)
            assert lance.dataset(namespace_client=tables, table_id=shelf.id(name), version=1).count_rows() == 3
        latest = lance.dataset(namespace_client=tables, table_id=shelf.id("old")).version
        for descending, expected in ((True, list(range(latest, 0, -1))), (False, list(range(1, latest + 1)))):
            asked = ListTableVersionsRequest(id=shelf.id("old"), descending=descending)
            assert [entry.version for entry in tables.list_table_versions(asked).versions] == expected
        asked = ListTableVersionsRequest(id=shelf.id("old"), descending=True, limit=2)
        assert [entry.version for entry in tables.list_table_versions(asked).versions] == [latest, latest - 1]
        assert tables.list_tables(ListTablesRequest(id=[shelf.namespace])).tables == ["old", "new"]
        tables.table_exists(TableExistsRequest(id=shelf.id("new")))
        assert shelf.version("old") == 1
    assert (shelf.version("old"), shelf.plain("old").version) == (latest, latest)
    assert (shelf.rows("old"), shelf.rows("new")) == (5, 3)
    assert [index.name for index in shelf.plain("new").describe_indices()] == ["id_idx"]


def test_publish_after_an_exception_leaves_nothing(client: Any, shelf: Shelf) -> None:
    shelf.make("old", "other")
    shelf.let_the_clock_tick()
    before = shelf.files()
    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        write(tables, shelf.id("new")).delete("id = 1")
        dataset = write(tables, shelf.id("old"), "append")
        dataset.delete("id = 1")
        dataset.add_columns({"twice": "id * 2"})
        dataset.create_scalar_index("id", "BTREE")
        write(tables, shelf.id("other"), "overwrite", ROWS.drop_columns("text"))
        assert len(shelf.files()) > len(before) + 15
        raise Stop
    assert shelf.files() == before
    assert shelf.tables() == ["old", "other"]
    assert (
        [shelf.version(name) for name in ("old", "other")]
        == [1, 1]
        == [shelf.plain(name).version for name in ("old", "other")]
    )
    write(client, shelf.id("old"), "append")
    write(client, shelf.id("new"))
    assert (shelf.rows("old"), shelf.rows("new")) == (6, 3)


def test_publish_after_an_exception_keeps_what_a_restored_version_needs(client: Any, shelf: Shelf) -> None:
    shelf.make("t")
    write(client, shelf.id("t"), "overwrite", ROWS.slice(2))
    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        lance.dataset(namespace_client=tables, table_id=shelf.id("t")).checkout_version(1).restore()
        assert lance.dataset(namespace_client=tables, table_id=shelf.id("t")).count_rows() == 3
        raise Stop
    assert shelf.rows("t") == 1
    assert lance.dataset(namespace_client=client, table_id=shelf.id("t"), version=1).to_table().num_rows == 3


def test_publish_meets_another_commit_and_names_the_table(client: Any, shelf: Shelf) -> None:
    shelf.make("docs", "chunks")
    shelf.let_the_clock_tick()
    with (
        pytest.raises(tiltyard.PublishConflictError, match=r"chunks first") as caught,
        tiltyard.publish(client) as tables,
    ):
        for name in ("docs", "chunks", "new"):
            write(tables, shelf.id(name), "create" if name == "new" else "append")
        write(client, shelf.id("chunks"), "append", ROWS.slice(2))
    assert caught.value.tables == (tuple(shelf.id("chunks")),)
    assert (shelf.rows("docs"), shelf.rows("chunks"), shelf.tables()) == (3, 4, ["chunks", "docs"])
    data = [path for path in shelf.files() if path.startswith((folder(shelf, "docs"), folder(shelf, "chunks")))]
    assert sum("/data/" in path for path in data) == 3
    assert [path for path in data if "_publishing-" in path or ".manifest-" in path] == []


def folder(shelf: Shelf, name: str) -> str:
    return shelf.location(name).rpartition("/")[2]


@pytest.mark.parametrize("others", [1, 2, 3])
def test_publish_that_writes_on_after_others_names_the_table_and_deletes_none_of_their_files(
    client: Any, shelf: Shelf, others: int
) -> None:
    """Lance finds their versions in storage, and stages a version on top of them."""
    shelf.make("a")
    shelf.let_the_clock_tick()
    with pytest.raises(tiltyard.PublishConflictError) as conflict, tiltyard.publish(client) as tables:
        write(tables, shelf.id("a"), "append")
        for _ in range(others):
            write(client, shelf.id("a"), "append", ROWS.slice(2))
        if others > 1:
            write(tables, shelf.id("a"), "append")
    assert conflict.value.tables == (tuple(shelf.id("a")),)
    found = lance.dataset(namespace_client=client, table_id=shelf.id("a"))
    assert found.to_table().num_rows == 3 + others
    files = {file.path for part in found.get_fragments() for file in part.data_files()}
    assert {path.rpartition("/")[2] for path in shelf.files() if "/data/" in path} == files


def test_publish_that_is_interrupted_after_a_refusal_is_interrupted(client: Any, shelf: Shelf) -> None:
    shelf.make("a")
    with pytest.raises(KeyboardInterrupt), tiltyard.publish(client) as tables:
        with suppress(OSError, ValueError):
            lance.dataset(namespace_client=tables, table_id=shelf.id("a")).create_branch("new")
        raise KeyboardInterrupt


def test_publish_that_fails_leaves_nothing_to_undrop(client: Any, shelf: Shelf, raw: Raw) -> None:
    with suppress(Stop), tiltyard.publish(client) as tables:
        write(tables, shelf.id("new"))
        raise Stop
    dropped = raw.post("/tiltyard/v1/table/dropped", {"limit": 1000}).json()["tables"]
    assert shelf.id("new") not in [one["id"] for one in dropped]


@pytest.mark.parametrize("change", ["taken", "dropped"])
def test_publish_meets_another_table_of_the_name_or_none(client: Any, shelf: Shelf, change: str) -> None:
    shelf.make("old")
    with pytest.raises(tiltyard.PublishConflictError) as caught, tiltyard.publish(client) as tables:
        write(tables, shelf.id("new"))
        write(tables, shelf.id("old"), "append")
        if change == "taken":
            shelf.make("new")
        else:
            client.drop_table(DropTableRequest(id=shelf.id("old")))
    assert caught.value.tables == (tuple(shelf.id("new" if change == "taken" else "old")),)
    assert shelf.tables() == (["new", "old"] if change == "taken" else [])


def test_publish_again_after_conflicts_gets_through(client: Any, shelf: Shelf) -> None:
    shelf.make("docs", "chunks")

    def publish(number: int) -> None:
        rows = pa.table({"id": [100 + number], "text": ["w"]})
        published = False
        while not published:
            with suppress(tiltyard.PublishConflictError):
                with tiltyard.publish(client) as tables:
                    for name in ("docs", "chunks"):
                        write(tables, shelf.id(name), "append", rows)
                published = True

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(publish, range(6)))
    for name in ("docs", "chunks"):
        dataset = lance.dataset(namespace_client=client, table_id=shelf.id(name))
        assert sorted(dataset.to_table()["id"].to_pylist()) == [1, 2, 3, *range(100, 106)]
        assert dataset.version == 7


def test_publish_20_tables_and_a_reader_never_sees_some_of_them(client: Any, shelf: Shelf) -> None:
    names = [f"t{number}" for number in range(20)]
    shelf.make(*names)
    done, seen = threading.Event(), []

    def poll() -> None:
        while not done.is_set():
            seen.append((shelf.version(names[0]), shelf.version(names[-1]), shelf.version(names[0])))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for round_ in range(2):
            with tiltyard.publish(client) as tables, ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda name: write(tables, shelf.id(name), "append"), names))  # waited for
                before = [shelf.version(name) for name in (names[0], names[-1])]
                assert before[0] == before[1] == 1 + round_
    finally:
        done.set()
        reader.join()
    assert len(seen) > 3 and all(first <= last <= then for first, last, then in seen)
    assert {shelf.version(name) for name in names} == {3}


def test_publish_of_an_unmanaged_table_is_refused(client: Any, shelf: Shelf, raw: Raw) -> None:
    shelf.make("managed")
    off = {"properties": {"tiltyard.managed_versioning": "false"}}
    raw.post(f"/v1/table/{shelf.namespace}$plain/declare", off)
    lance.write_dataset(ROWS, shelf.location("plain"), storage_options=shelf.options)
    shelf.let_the_clock_tick()
    before = shelf.files()
    refusal = "plain commits straight to storage"
    with (
        pytest.raises(InvalidInputError, match=refusal),
        tiltyard.publish(client) as tables,
    ):
        write(tables, shelf.id("managed"), "append")
        assert lance.dataset(namespace_client=tables, table_id=shelf.id("plain")).count_rows() == 3
        write(tables, shelf.id("plain"), "append")
    with (
        pytest.raises(InvalidInputError, match=refusal),
        tiltyard.publish(client) as tables,
        pytest.raises(OSError, match="unknown"),
    ):
        write(tables, shelf.id("plain"), "append")
    with pytest.raises(InvalidInputError, match="straight to storage"), tiltyard.publish(client) as tables:
        tables.declare_table(DeclareTableRequest(id=shelf.id("new"), **off))
    assert (shelf.rows("managed"), shelf.rows("plain"), shelf.files()) == (3, 3, before)


def test_publish_what_lancedb_writes(client: Any, shelf: Shelf) -> None:
    rows = pa.table({"id": [1, 2], "vector": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})
    write(client, shelf.id("old"), rows=rows)
    with tiltyard.publish(client) as tables:
        database = LanceNamespaceDBConnection(tables)
        database.create_table("new", rows, namespace_path=[shelf.namespace]).add(rows)
        old = database.open_table("old", namespace_path=[shelf.namespace])
        old.add(rows)
        old.update(where="id = 1", values={"id": 7})
        assert old.search([1.0, 0.0]).limit(9).to_arrow().num_rows == 4
        assert shelf.tables() == ["old"] and shelf.rows("old") == 2
    assert (shelf.rows("old"), shelf.rows("new"), shelf.plain("old").count_rows("id = 7")) == (4, 4, 2)


def write_part(location: str, options: dict[str, str], number: int) -> list[FragmentMetadata]:
    """A task of a cluster: it writes rows, and tells the driver what it wrote."""
    rows = pa.table({"id": [number], "text": ["t"]})
    return write_fragments(rows, location, mode="append", storage_options=options)


def test_publish_what_tasks_of_other_processes_wrote(rest: Any, namespace: str, server: ServerProcess) -> None:
    shelf = Shelf(rest, namespace, server)
    shelf.make("t", "log")
    with tiltyard.publish(rest) as tables:
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(tables)
        dataset = lance.dataset(namespace_client=tables, table_id=shelf.id("t"))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            parts = pool.starmap(write_part, [(dataset.uri, shelf.options, number) for number in (10, 11)])
        rows = lance.LanceOperation.Append([fragment for part in parts for fragment in part])
        lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, rows))
        write(tables, shelf.id("log"), "append")
        assert shelf.rows("t") == 3
    assert (shelf.rows("t"), shelf.rows("log")) == (5, 6)


def test_publish_to_a_branch_that_is_there_and_to_none_that_is_not(client: Any, shelf: Shelf) -> None:
    shelf.make("t")
    lance.dataset(namespace_client=client, table_id=shelf.id("t")).create_branch("try")
    shelf.let_the_clock_tick()
    before = shelf.files()

    def on_branch(namespace: Any) -> lance.LanceDataset:
        return lance.dataset(namespace_client=namespace, table_id=shelf.id("t")).checkout_version(("try", None))

    with pytest.raises(Stop), tiltyard.publish(client) as tables:
        on_branch(tables).insert(ROWS)
        raise Stop
    assert shelf.files() == before and on_branch(client).count_rows() == 3
    with tiltyard.publish(client) as tables:
        on_branch(tables).insert(ROWS)
        on_branch(tables).delete("id = 1")
        write(tables, shelf.id("t"), "append")
        assert on_branch(tables).count_rows() == 4 and on_branch(client).count_rows() == 3
    assert (on_branch(client).count_rows(), shelf.rows("t")) == (4, 6)
    with pytest.raises(InvalidInputError, match="Make the branch other"), tiltyard.publish(client) as tables:
        lance.dataset(namespace_client=tables, table_id=shelf.id("t")).create_branch("other")


def test_publish_deregisters_within_the_batch(client: Any, shelf: Shelf) -> None:
    shelf.make("gone", "kept")
    with tiltyard.publish(client) as tables:
        location = tables.deregister_table(DeregisterTableRequest(id=shelf.id("gone"))).location
        write(tables, shelf.id("kept"), "append")
        assert tables.list_tables(ListTablesRequest(id=[shelf.namespace])).tables == ["kept"]
        with pytest.raises(TableNotFoundError):
            tables.describe_table(DescribeTableRequest(id=shelf.id("gone")))
        with pytest.raises(InvalidInputError):
            tables.deregister_table(DeregisterTableRequest(id=shelf.id("kept")))
        assert shelf.tables() == ["gone", "kept"]
    assert shelf.tables() == ["kept"]
    assert lance.dataset(location, storage_options=shelf.options).count_rows() == 3


def test_publish_refuses_what_would_be_seen_at_once_or_not_be_seen(client: Any, shelf: Shelf) -> None:
    shelf.make("t", "untouched")
    with tiltyard.publish(client) as tables:
        write(tables, shelf.id("t"), "append")
        for name in ("insert_into_table", "drop_table", "create_table_tag", "register_table"):
            with pytest.raises(UnsupportedOperationError, match="outside of the block"):
                getattr(tables, name)({"id": shelf.id("t")})
        with pytest.raises(UnsupportedOperationError, match="does not see what this block wrote"):
            tables.count_table_rows(CountTableRowsRequest(id=shelf.id("t")))
        tables.count_table_rows(CountTableRowsRequest(id=shelf.id("untouched")))
        with pytest.raises(TableAlreadyExistsError):
            write(tables, shelf.id("t"))
        with pytest.raises(NamespaceNotFoundError):
            write(tables, ["no such namespace", "t"])
        with pytest.raises(InvalidInputError, match="location"):
            tables.declare_table(DeclareTableRequest(id=shelf.id("new"), location=shelf.location("t")))
        tables.declare_table(DeclareTableRequest(id=shelf.id("new")))
        with pytest.raises(TableAlreadyExistsError):
            tables.declare_table(DeclareTableRequest(id=shelf.id("new")))
    assert shelf.rows("t") == 6 and shelf.tables() == ["new", "t", "untouched"]
    with pytest.raises(InvalidInputError, match="has ended"):
        tables.declare_table(DeclareTableRequest(id=shelf.id("late")))
    assert lance.dataset(namespace_client=tables, table_id=shelf.id("t")).count_rows() == 6
    with tiltyard.publish(client) as tables:
        assert lance.dataset(namespace_client=tables, table_id=shelf.id("t")).count_rows() == 6
    assert tables.transaction_id is None


def test_publish_needs_a_client_with_batches(cut: Cut) -> None:
    with tiltyard.publish(cut) as tables, pytest.raises(UnsupportedOperationError, match="part of another"):
        tiltyard.publish(tables)
    with pytest.raises(TypeError, match="LanceNamespace, not NoneType"):
        tiltyard.publish(None)  # type: ignore[arg-type]  # what a forgotten connection gives
    with pytest.raises(UnsupportedOperationError, match="DirectoryNamespace cannot commit several tables"):
        tiltyard.publish(rust.DirectoryNamespace(root="memory://none"))


class Cut(tiltyard.Namespace):
    """A namespace whose answers get lost: `fates` says of each batch whether it runs."""

    def batch_commit_tables(self, request: Any, request_data: bytes | None = None) -> Any:
        runs = self.fates.pop(0) if self.fates else True
        if runs is None or runs:
            response = self.call("BatchCommitTables", request)
            if runs:
                return response
        raise ServiceUnavailableError("The connection was cut.")


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cut]:
    monkeypatch.setattr(commit, "PAUSES", (0, 0))
    with Cut(str(tmp_path), jobs=0) as namespace:
        namespace.fates = []
        write(namespace, ["t"])
        yield namespace


@pytest.mark.parametrize("fates", [[None], [False, None], [False, False, True]], ids=str)
@pytest.mark.parametrize("new", [True, False])
def test_publish_whose_answer_is_lost_is_published_once(cut: Cut, fates: list[Any], new: bool) -> None:
    with tiltyard.publish(cut) as tables:
        write(tables, ["t"], "append")
        if new:
            write(tables, ["u"])
        cut.fates = list(fates)
    assert lance.dataset(namespace_client=cut, table_id=["t"]).count_rows() == 6
    assert (tables.transaction_id is None) is (None in fates)
    assert cut.list_tables({"id": []}).tables == (["t", "u"] if new else ["t"])


def test_publish_refused_by_a_server_that_goes_away_leaves_nothing(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        monkeypatch.setattr(Cut, "describe_table", gone)
        raise ConcurrentModificationError("taken")

    def gone(*_: Any) -> None:
        raise RuntimeError("error sending request")

    with pytest.raises(tiltyard.PublishConflictError) as raised, tiltyard.publish(cut) as tables:
        location = write(tables, ["u"]).uri
        monkeypatch.setattr(Cut, "batch_commit_tables", refused)
    assert raised.value.tables == ()
    assert not Path(location).exists()


def test_publish_that_nobody_answers_says_so_and_keeps_its_files(cut: Cut) -> None:
    with pytest.raises(tiltyard.PublishUncertainError), tiltyard.publish(cut) as tables:
        location = write(tables, ["u"]).uri
        cut.fates = [False] * 9
    assert list(Path(location, "data").iterdir())
    assert cut.list_tables({"id": []}).tables == ["t"]


class Answers(BaseHTTPRequestHandler):
    """A server that refuses batches, and keeps what it was sent."""

    def do_POST(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]  # put there below
        status, body = self.server.answers.pop(0)  # type: ignore[attr-defined]  # likewise
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_publish_by_http_sends_headers_and_understands_refusals() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.seen, server.answers = [], [(409, b'{"code": 5, "error": "taken"}'), (502, b"<html>")]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = rust.RestNamespace(uri=f"http://127.0.0.1:{server.server_port}")
        send = batch_sender(client, {"Authorization": "Bearer me"})
        for expected in (TableAlreadyExistsError, InternalError):
            with pytest.raises(expected):
                send(BatchCommitTablesRequest(operations=[]), "a key")
        server.shutdown()
    with pytest.raises(ServiceUnavailableError):
        send(BatchCommitTablesRequest(operations=[]), "a key")
    path, headers = server.seen[0]
    assert path.startswith("/v1/table/batch-commit")
    assert (headers["Authorization"], headers["Idempotency-Key"]) == ("Bearer me", "a key")
