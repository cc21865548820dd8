"""Exactly once: lost responses, servers killed around the commit, and clients that retry."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import lance
import lancedb
import pyarrow as pa
import pytest

from tests.services.lossy import LossyProxy, wait_for
from tests.services.postgres import postgres_server
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard.store import open_store

ROWS = pa.table({"id": [1, 2, 3], "n": [0, 0, 0]})
MORE = pa.table({"id": [3, 4], "n": [7, 7]})
LARGE = pa.table({"id": range(300_000), "n": [0] * 300_000})  # more than a body that is held in memory
POINTS = ["before_record", "after_record", "after_finalize", "before_answer"]
keys = (f"key-{number}" for number in itertools.count())
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


class KillableServer:
    """A server that can be killed: `arm` makes it die at a failpoint, the file `held` holds it at the last one."""

    def __init__(self, root: Path, *flags: str) -> None:
        self.folder = root
        self.held = root / "held"
        kills = [f"{point}=kill@{root / point}" for point in POINTS[:3]]
        last = f"before_answer=hold@{self.held}"
        self._environ = {"TILTYARD_FAULT": ",".join([*kills, last]), "TILTYARD_REPEAT_LEASE": "3"}
        self.process = ServerProcess(root / "data", *flags, environ=self._environ)
        self.http = httpx.Client(base_url=self.process.url, timeout=60)

    def arm(self, point: str) -> None:
        (self.folder / point).touch()

    def post(self, table: str, action: str, body: Any = None, key: str | None = None, **query: Any) -> httpx.Response:
        headers = {} if key is None else {"idempotency-key": key}
        content: dict[str, Any] = {"json": body or {}}
        if isinstance(body, bytes):
            content, headers = {"content": body}, headers | ARROW
        return self.http.post(f"/v1/table/{table}/{action}", params=query, headers=headers, **content)

    def create(self, table: str, rows: pa.Table = ROWS, **options: Any) -> None:
        response = self.post(table, "create", stream(rows), **options)
        assert response.status_code == 200, response.text

    def rows(self, table: str, predicate: str | None = None) -> int:
        count: int = self.post(table, "count_rows", {"predicate": predicate} if predicate else {}).json()
        return count

    def version(self, table: str) -> int:
        version: int = self.post(table, "describe", {"load_detailed_metadata": True}).json()["version"]
        return version

    def restart(self) -> None:
        self.process.process.wait(30)
        self.process.start()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def killable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    root = tmp_path_factory.mktemp("killable")
    if request.param == "sqlite":
        running = KillableServer(root)
        yield running
        running.process.stop()
        return
    with postgres_server() as postgres:
        running = KillableServer(root, "--db", postgres.new_database())
        yield running
        running.process.stop()


@pytest.fixture
def table(killable: KillableServer, fresh: Callable[[str], str]) -> str:
    name = fresh("t")
    killable.create(name)
    return name


@pytest.fixture
def proxy(killable: KillableServer) -> Iterator[LossyProxy]:
    with LossyProxy(killable.process.url) as running:
        yield running


@pytest.fixture
def through(proxy: LossyProxy) -> Any:
    """Connect lancedb through a load balancer that loses responses."""
    return lancedb.connect("db://tests", api_key="none", host_override=proxy.url)


def replayed(response: httpx.Response) -> bool:
    return response.headers.get("idempotent-replayed") == "true"


# lancedb, whose answer is lost after the commit.


def test_insert_answer_lost_lancedb_adds_rows_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/insert", killable.held)
    added = lancedb_table.add(MORE)
    first, second = proxy.tries("/insert")
    assert first != second  # lancedb takes a new id for each try of an insert: the rows have to tell
    assert (killable.rows(table), killable.version(table), added.version) == (5, 2, 2)


def test_insert_answer_cut_and_tried_again_by_hand_adds_rows_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/insert", killable.held, status=0)
    with pytest.raises(Exception, match="error sending request"):
        lancedb_table.add(MORE)
    assert lancedb_table.add(MORE).version == 2
    assert killable.rows(table) == 5
    assert lancedb_table.add(MORE).version == 3  # heard of: the same rows once more are meant
    assert killable.rows(table) == 7


def test_insert_answer_cut_is_taken_by_nobody_else_who_adds_the_same_rows(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/insert", killable.held, status=0)
    with pytest.raises(Exception, match="error sending request"):
        lancedb_table.add(MORE)
    for others in ({"api_key": "another"}, {"api_key": "none", "database": "others"}):
        uri = f"db://{others.pop('database', 'tests')}"
        table_of_others = lancedb.connect(uri, host_override=proxy.url, **others).open_table(table)
        assert table_of_others.add(MORE).version > 2
    assert killable.rows(table) == 9
    assert lancedb_table.add(MORE).version == 2
    assert killable.rows(table) == 9


def test_insert_of_many_rows_answer_lost_lancedb_adds_them_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/insert", killable.held)
    assert lancedb_table.add(LARGE).version == 2
    assert len(proxy.tries("/insert")) == 2
    assert killable.rows(table) == 3 + LARGE.num_rows


def test_insert_of_the_same_rows_on_purpose_adds_them_each_time(
    killable: KillableServer, table: str, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: lancedb_table.add(MORE), range(12)))
    assert killable.rows(table) == 3 + 12 * 2


def test_merge_insert_answer_lost_lancedb_merges_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/merge_insert", killable.held)
    merge = lancedb_table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    done = merge.execute(MORE)
    assert len(proxy.tries("/merge_insert")) == 2
    assert (done.num_inserted_rows, done.num_updated_rows, done.version) == (1, 1, 2)
    assert (killable.rows(table), killable.version(table)) == (4, 2)


def test_delete_answer_lost_lancedb_hears_what_was_deleted(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/delete", killable.held)
    done = lancedb_table.delete("id > 1")
    first, second = proxy.tries("/delete")
    assert first == second
    assert (done.num_deleted_rows, done.version, killable.version(table)) == (2, 2, 2)


def test_update_answer_lost_lancedb_counts_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/update", killable.held)
    assert lancedb_table.update(values_sql={"n": "n + 1"}).rows_updated == 3
    assert len(proxy.tries("/update")) == 2
    assert killable.rows(table, "n = 1") == 3


@pytest.mark.parametrize("status", [0, 502])
def test_create_table_answer_lost_leaves_one_table(
    killable: KillableServer, fresh: Callable[[str], str], proxy: LossyProxy, through: Any, status: int
) -> None:
    name = fresh("made")
    proxy.lose("/create", killable.held, status)
    with pytest.raises(Exception, match=r"error sending request|502"):
        through.create_table(name, ROWS)
    with pytest.raises(ValueError, match="already exists"):
        through.create_table(name, ROWS)
    assert (killable.rows(name), killable.version(name)) == (3, 1)


def test_complete_multipart_answer_lost_lancedb_adds_rows_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/multipart_write/complete", killable.held)
    parts = pa.concat_tables([LARGE.slice(0, 100_000), LARGE.slice(100_000)])
    assert lancedb_table.add(parts, write_parallelism=2).version == 2
    assert len(proxy.tries("upload_part_id")) == 2
    assert len(proxy.tries("/multipart_write/complete")) == 2
    assert killable.rows(table) == 3 + LARGE.num_rows


# Any client, by the header.


@pytest.mark.parametrize("rows", [MORE, LARGE], ids=["small", "large"])
def test_insert_repeated_answers_the_first_and_writes_nothing(
    killable: KillableServer, table: str, rows: pa.Table
) -> None:
    key, body = next(keys), stream(rows)
    first = killable.post(table, "insert", body, key)
    repeated = killable.post(table, "insert", body, key)
    assert (first.status_code, repeated.status_code, repeated.json()) == (200, 200, first.json())
    assert (replayed(first), replayed(repeated)) == (False, True)
    assert (killable.rows(table), killable.version(table)) == (3 + rows.num_rows, 2)


@pytest.mark.parametrize("rows", [MORE, LARGE], ids=["small", "large"])
def test_insert_repeated_with_another_body_is_409(killable: KillableServer, table: str, rows: pa.Table) -> None:
    key = next(keys)
    assert killable.post(table, "insert", stream(rows), key).status_code == 200
    other = rows.set_column(1, "n", pa.array([9] * rows.num_rows))
    refused = killable.post(table, "insert", stream(other), key)
    assert (refused.status_code, refused.json()["code"]) == (409, 13)
    assert killable.rows(table) == 3 + rows.num_rows


def test_key_of_another_operation_is_409(killable: KillableServer, table: str) -> None:
    key = next(keys)
    assert killable.post(table, "delete", {"predicate": "id = 1"}, key).status_code == 200
    assert killable.post(table, "update", {"updates": [["n", "1"]]}, key).status_code == 409
    assert killable.post(table, "delete", {"predicate": "id = 2"}, key).status_code == 409


def test_key_of_somebody_else_is_another_key(killable: KillableServer, table: str) -> None:
    key, body = next(keys), {"predicate": "id = 1"}
    responses = [
        killable.http.post(
            f"/v1/table/{table}/delete", json=body, headers={"idempotency-key": key, "x-api-key": api_key}
        )
        for api_key in ("one", "two")
    ]
    assert [response.json()["num_deleted_rows"] for response in responses] == [1, 0]


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_key_of_impossible_length_is_400(killable: KillableServer, table: str, key: str) -> None:
    assert killable.post(table, "delete", {"predicate": "id = 1"}, key).status_code == 400


@pytest.mark.parametrize("identity", ["", "i" * 256])
def test_request_id_of_impossible_length_is_no_key(killable: KillableServer, table: str, identity: str) -> None:
    headers = {"x-request-id": identity, "x-lancedb-database": "tests", **ARROW}
    for count in (5, 7):
        assert (
            killable.http.post(f"/v1/table/{table}/insert/", content=stream(MORE), headers=headers).status_code == 200
        )
        assert killable.rows(table) == count


def test_key_of_a_creation_with_other_properties_is_409(killable: KillableServer, fresh: Callable[[str], str]) -> None:
    name, headers = fresh("t"), {"idempotency-key": next(keys), **ARROW}
    for owner, status, repeated in (("ann", 200, False), ("bob", 409, False), ("ann", 200, True)):
        sent = {**headers, "x-lance-table-properties": json.dumps({"owner": owner})}
        response = killable.http.post(f"/v1/table/{name}/create", content=stream(ROWS), headers=sent)
        assert (response.status_code, replayed(response)) == (status, repeated)


def test_key_on_a_read_means_nothing(killable: KillableServer, table: str) -> None:
    key = next(keys)
    assert killable.post(table, "count_rows", {}, key).json() == 3
    killable.post(table, "delete", {"predicate": "id = 1"})
    assert killable.post(table, "count_rows", {}, key).json() == 2


def test_namespace_created_again_by_key_answers_the_first(
    killable: KillableServer, fresh: Callable[[str], str]
) -> None:
    name, headers = fresh("space"), {"idempotency-key": next(keys)}
    responses = [
        killable.http.post(f"/v1/namespace/{name}/create", json={"properties": {"a": "b"}}, headers=headers)
        for _ in range(2)
    ]
    assert [response.status_code for response in responses] == [200, 200]
    assert replayed(responses[1]) and responses[1].json() == responses[0].json()


def test_failure_that_changed_nothing_is_not_remembered(killable: KillableServer, fresh: Callable[[str], str]) -> None:
    name, key = fresh("later"), next(keys)
    assert killable.post(name, "insert", stream(MORE), key).status_code == 404
    killable.create(name)
    response = killable.post(name, "insert", stream(MORE), key)
    assert (response.status_code, replayed(response), killable.rows(name)) == (200, False, 5)


def test_repeat_while_the_first_runs_waits_for_its_answer(killable: KillableServer, table: str) -> None:
    key = next(keys)
    reached = killable.held.with_name("held.reached")
    reached.unlink(missing_ok=True)
    killable.held.touch()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(killable.post, table, "insert", stream(MORE), key)
        wait_for(reached.exists)
        others = [pool.submit(killable.post, table, "insert", stream(MORE), key) for _ in range(3)]
        assert not any(other.done() for other in others)
        killable.held.unlink()
        responses = [first.result(), *(other.result() for other in others)]
    assert {response.text for response in responses} == {responses[0].text}
    assert [replayed(response) for response in responses] == [False, True, True, True]
    assert (killable.rows(table), killable.version(table)) == (5, 2)


# Servers killed around the commit.

CHANGES: dict[str, tuple[str, Any, dict[str, Any], dict[str, int], str, int]] = {
    # action, body, query, what the answer says, rows to look for, how many
    "append": ("insert", stream(MORE), {}, {"num_inserted_rows": 2}, "true", 5),
    "large": ("insert", stream(LARGE), {}, {"num_inserted_rows": LARGE.num_rows}, "true", 3 + LARGE.num_rows),
    "overwrite": ("insert", stream(MORE), {"mode": "overwrite"}, {"num_inserted_rows": 2}, "true", 2),
    "merge": (
        "merge_insert",
        stream(MORE),
        {"on": "id", "when_matched_update_all": "true", "when_not_matched_insert_all": "true"},
        {"num_inserted_rows": 1, "num_updated_rows": 1, "num_deleted_rows": 0},
        "n = 7",
        2,
    ),
    "update": ("update", {"updates": [["n", "n + 1"]]}, {}, {"updated_rows": 3}, "n = 1", 3),
    "delete": ("delete", {"predicate": "id > 1"}, {}, {"num_deleted_rows": 2}, "true", 1),
    "add_columns": ("add_columns", {"new_columns": [{"name": "m", "expression": "n + 1"}]}, {}, {}, "m = 1", 3),
}


KILLS = [
    *(("sqlite", "after_record", change) for change in ("append", "merge")),
    *(("sqlite", point, "append") for point in ("before_record", "after_finalize")),
]
MORE_KILLS = [
    *(("sqlite", "after_record", change) for change in CHANGES if change not in ("append", "merge")),
    *(("sqlite", point, "update") for point in ("before_record", "after_finalize")),
    *(("postgres", "after_record", change) for change in ("append", "update")),
]


@pytest.mark.parametrize(
    "killable, point, change",
    [*KILLS, *(pytest.param(*kill, marks=pytest.mark.extended) for kill in MORE_KILLS)],
    indirect=["killable"],
)
def test_change_killed_at_a_point_and_repeated_happens_once(
    killable: KillableServer, table: str, point: str, change: str
) -> None:
    action, body, query, expected, predicate, count = CHANGES[change]
    key = next(keys)
    killable.arm(point)
    with pytest.raises(httpx.TransportError):
        killable.post(table, action, body, key, **query)
    killable.restart()
    repeated = killable.post(table, action, body, key, **query)
    assert repeated.status_code == 200, "".join(killable.process.log[-40:])
    assert repeated.json().items() >= {**expected, "version": 2}.items()
    assert (killable.rows(table, predicate), killable.version(table)) == (count, 2)


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
@pytest.mark.parametrize("change", ["append", "large", "overwrite"])
def test_change_straight_to_storage_killed_after_the_commit_and_repeated_happens_once(
    killable: KillableServer, fresh: Callable[[str], str], change: str
) -> None:
    name, key = fresh("plain"), next(keys)
    killable.create(name, properties='{"tiltyard.managed_versioning": "false"}')
    action, body, query, expected, predicate, count = CHANGES[change]
    killable.arm("after_finalize")
    with pytest.raises(httpx.TransportError):
        killable.post(name, action, body, key, **query)
    killable.restart()
    repeated = killable.post(name, action, body, key, **query)
    assert repeated.json().items() >= {**expected, "version": 2}.items()
    assert (killable.rows(name, predicate), killable.version(name)) == (count, 2)


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_create_table_killed_before_its_record_and_repeated_makes_one(
    killable: KillableServer, fresh: Callable[[str], str], mode: str
) -> None:
    name, key = fresh("made"), next(keys)
    killable.arm("before_record")
    with pytest.raises(httpx.TransportError):
        killable.post(name, "create", stream(ROWS), key, mode=mode)
    killable.restart()
    repeated = killable.post(name, "create", stream(ROWS), key, mode=mode)
    assert (repeated.status_code, killable.rows(name), killable.version(name)) == (200, 3, 1)


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
def test_insert_killed_whose_repeat_finds_the_table_unreadable_is_recognised_later(
    killable: KillableServer, table: str
) -> None:
    remote = {"x-lancedb-database": "tests", **ARROW}

    def insert(identity: str) -> httpx.Response:
        headers = {"x-request-id": f"{table} {identity}", **remote}
        return killable.http.post(f"/v1/table/{table}/insert/", content=stream(MORE), headers=headers)

    versions = Path(killable.post(table, "describe").json()["location"]) / "_versions"
    killable.held.touch()
    killable.held.with_name("held.reached").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool, open_store(f"sqlite:///{killable.folder}/data/catalog.db") as store:
        lost_response = pool.submit(insert, "first")
        wait_for(killable.held.with_name("held.reached").exists)
        wait_for(lambda: not store.has_pending_versions(store.describe_table((table,)).id))
        killable.process.kill()
        assert isinstance(lost_response.exception(), httpx.TransportError)
    killable.held.unlink()
    killable.restart()
    manifests = {path: path.read_bytes() for path in versions.iterdir()}
    for path in manifests:
        path.write_bytes(b"a disk that is not well")
    assert insert("second").status_code >= 500
    for path, content in manifests.items():
        path.write_bytes(content)
    assert insert("third").json()["version"] == 2
    assert killable.rows(table) == 5


def test_drop_killed_before_its_answer_and_repeated_leaves_the_next_table_of_that_name(
    killable: KillableServer, table: str
) -> None:
    key, location = next(keys), killable.post(table, "describe").json()["location"]
    killable.held.touch()
    killable.held.with_name("held.reached").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        lost_response = pool.submit(killable.post, table, "drop", None, key)
        wait_for(killable.held.with_name("held.reached").exists)
        killable.process.kill()
        assert isinstance(lost_response.exception(), httpx.TransportError)
    killable.held.unlink()
    killable.restart()
    killable.create(table, MORE)
    repeated = killable.post(table, "drop", None, key)
    assert (repeated.status_code, repeated.json()["location"]) == (200, location)
    assert killable.rows(table) == 2


def test_drop_whose_data_could_not_be_deleted_and_repeated_leaves_the_next_table_of_that_name(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", "--retention-days", "0", "--jobs", "0")
    with httpx.Client(base_url=f"{server.url}/v1/table/t/", timeout=60) as http:
        create = partial(http.post, "create", content=stream(ROWS), headers=ARROW)
        location = Path(create().json()["location"])
        location.rename(tmp_path / "moved")
        location.symlink_to(tmp_path / "moved")  # which nobody deletes through
        drop = partial(http.post, "drop", json={}, headers={"idempotency-key": next(keys)})
        refused = drop()
        assert (refused.status_code, refused.json()["code"]) == (503, 17)
        assert "The table is dropped, and its data is still there" in refused.json()["error"]
        assert create().status_code == 200
        repeated = drop()
        assert (repeated.status_code, repeated.json()["location"]) == (200, str(location))
        assert http.post("count_rows", json={}).json() == 3
    server.stop()


@pytest.mark.parametrize("rows", [MORE, LARGE], ids=["small", "large"])
def test_insert_that_failed_and_repeated_first_with_another_body_happens_once(tmp_path: Path, rows: pa.Table) -> None:
    away = tmp_path / "away"
    server = ServerProcess(tmp_path / "data", environ={"TILTYARD_FAULT": f"before_record=unavailable@{away}"})
    with httpx.Client(base_url=f"{server.url}/v1/table/t/", timeout=60) as http:
        assert http.post("create", content=stream(ROWS), headers=ARROW).status_code == 200
        insert = partial(http.post, "insert", headers={"idempotency-key": next(keys), **ARROW})
        away.touch()
        assert insert(content=stream(rows)).status_code == 503
        away.unlink(missing_ok=True)
        other_rows = rows.set_column(1, "n", pa.array([9] * rows.num_rows))
        assert insert(content=stream(other_rows)).status_code == 409
        assert insert(content=stream(rows)).json() == {"version": 2, "num_inserted_rows": rows.num_rows}
    server.stop()


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
def test_insert_killed_and_repeated_first_with_another_body_happens_once(killable: KillableServer, table: str) -> None:
    key, other_rows = next(keys), LARGE.set_column(1, "n", pa.array([9] * LARGE.num_rows))
    killable.arm("after_finalize")
    with pytest.raises(httpx.TransportError):
        killable.post(table, "insert", stream(LARGE), key)
    killable.restart()
    assert killable.post(table, "insert", stream(other_rows), key).status_code == 409
    assert killable.post(table, "insert", stream(LARGE), key).json()["version"] == 2
    assert killable.rows(table) == 3 + LARGE.num_rows


def test_create_table_killed_after_its_record_answers_as_if_it_had_not(
    killable: KillableServer, fresh: Callable[[str], str]
) -> None:
    name, key = fresh("made"), next(keys)
    killable.held.touch()
    killable.held.with_name("held.reached").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        lost_response = pool.submit(killable.post, name, "create", stream(ROWS), key)
        wait_for(killable.held.with_name("held.reached").exists)
        killable.process.kill()
        assert isinstance(lost_response.exception(), httpx.TransportError)
    killable.held.unlink()
    killable.restart()
    repeated = killable.post(name, "create", stream(ROWS), key)
    assert (repeated.status_code, repeated.json()["version"]) == (200, 1)
    assert (killable.rows(name), killable.version(name)) == (3, 1)


def test_inserts_gathered_into_commits_killed_and_repeated_happen_once_each(
    killable: KillableServer, table: str
) -> None:
    inserts = [(next(keys), stream(pa.table({"id": [100 + number], "n": [0]}))) for number in range(24)]

    def insert(entry: tuple[str, bytes]) -> int:
        key, body = entry
        try:
            return killable.post(table, "insert", body, key).status_code
        except httpx.TransportError:
            return 0

    killable.arm("after_finalize")
    with ThreadPoolExecutor(24) as pool:
        assert 0 in set(pool.map(insert, inserts))
        killable.restart()
        assert set(pool.map(insert, inserts)) == {200}
    assert killable.rows(table) == 3 + 24
    assert all(killable.rows(table, f"id = {100 + number}") == 1 for number in range(24))


def test_insert_killed_behind_a_load_balancer_lancedb_adds_rows_once(
    killable: KillableServer, table: str, proxy: LossyProxy, through: Any
) -> None:
    lancedb_table = through.open_table(table)
    proxy.lose("/insert", killable.held)
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(lancedb_table.add, MORE)
        wait_for(killable.held.with_name("held.reached").exists)
        killable.process.kill()
        killable.held.unlink(missing_ok=True)
        killable.restart()
        assert adding.result().version == 2
    assert (killable.rows(table), killable.version(table)) == (5, 2)


# Behind a compaction that remapped an index: pylance 14 cannot read the transaction of that version by itself.


def compact(killable: KillableServer, table: str) -> None:
    """Append, index and compact a table, as a client with its location can."""
    assert killable.post(table, "insert", stream(MORE)).status_code == 200
    dataset = lance.dataset(killable.post(table, "describe").json()["location"])
    dataset.create_scalar_index("id", "BTREE", replace=True)
    dataset.optimize.compact_files()


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
@pytest.mark.parametrize("managed", ["true", "false"])
def test_write_killed_and_repeated_behind_a_compaction_that_remapped_an_index_happens_once(
    killable: KillableServer, fresh: Callable[[str], str], managed: str
) -> None:
    table = fresh("compacted")
    killable.create(table, properties=json.dumps({"tiltyard.managed_versioning": managed}))
    compact(killable, table)
    base, rows = killable.version(table), 5

    killable.arm("before_record")
    first = next(keys)
    with pytest.raises(httpx.TransportError):
        killable.post(table, "insert", stream(MORE), first)
    killable.restart()
    repeated = killable.post(table, "insert", stream(MORE), first)
    assert (repeated.status_code, repeated.json().get("version")) == (200, base + 1), repeated.text

    killable.arm("after_finalize")
    second = next(keys)
    with pytest.raises(httpx.TransportError):
        killable.post(table, "insert", stream(MORE), second)
    killable.restart()
    compact(killable, table)
    repeated = killable.post(table, "insert", stream(MORE), second)
    assert (repeated.status_code, repeated.json().get("version")) == (200, base + 2), repeated.text
    assert killable.rows(table) == rows + 2 + 2 + 2


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
def test_add_killed_and_repeated_behind_a_compaction_that_remapped_an_index_adds_rows_once(
    killable: KillableServer, table: str, through: Any
) -> None:
    compact(killable, table)
    lancedb_table, base = through.open_table(table), killable.version(table)
    killable.arm("before_record")
    with pytest.raises(Exception, match=r"error sending request|502"):
        lancedb_table.add(MORE)
    killable.restart()
    assert lancedb_table.add(MORE).version == base + 1
    assert killable.rows(table) == 7


@pytest.mark.parametrize("killable", ["sqlite"], indirect=True)
def test_multipart_write_completed_again_behind_a_compaction_that_remapped_an_index_is_one_version(
    killable: KillableServer, table: str
) -> None:
    upload = killable.post(table, "multipart_write/create").json()["upload_id"]
    assert killable.post(table, "insert", stream(MORE), upload_id=upload).status_code == 200
    complete = partial(killable.post, table, "multipart_write/complete", {"upload_id": upload})
    first = complete()
    compact(killable, table)
    repeated = complete()
    assert (repeated.status_code, repeated.json().get("version")) == (200, first.json()["version"]), repeated.text
    unknown = killable.post(table, "multipart_write/complete", {"upload_id": "none"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, 10), unknown.text
