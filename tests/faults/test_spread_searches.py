"""Searches of a large table that servers share out by the segments of its index: they answer as one server does."""

from __future__ import annotations

import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance.indices import IndicesBuilder

from tests.faults.conftest import wait_until
from tests.services.ports import reserve_two_ports
from tests.services.secured import make_keys
from tests.services.segments import owned_in_turn
from tests.services.server import LOOPBACK, ServerProcess
from tests.services.wire import Wire
from tiltyard.api.execution.forwarding import FORWARDED, SEGMENTS

ROWS, DIMENSION, FRAGMENTS, SEGMENTS_OF_TABLE = 4200, 16, 12, 6
GENERATOR = np.random.default_rng(3)
CENTERS = GENERATOR.normal(size=(40, DIMENSION))
QUERIES = [GENERATOR.normal(size=DIMENSION).astype(np.float32).tolist() for _ in range(3)]
ALL = [(kind, metric) for kind in ("IVF_FLAT", "IVF_PQ") for metric in ("l2", "cosine", "dot")]
COMMON = [("IVF_FLAT", "l2"), ("IVF_PQ", "l2"), ("IVF_PQ", "cosine")]
TABLES = [table if table in COMMON else pytest.param(table, marks=pytest.mark.extended) for table in ALL]
ID = {"columns": {"column_names": ["id"]}}
PROBES = {"nprobes": 6}
"""So that a filter of so few rows does not have them compared one by one."""


def rows(count: int, first: int = 0) -> pa.Table:
    """Return rows around centers, some without a vector, some of them twice, so that distances are equal."""
    values = CENTERS[GENERATOR.integers(40, size=count)] + GENERATOR.normal(scale=0.3, size=(count, DIMENSION))
    values[1::50] = values[0::50]
    vectors = [None if number % 97 == 5 else row for number, row in enumerate(values.astype(np.float32).tolist())]
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "kind": pa.array([f"k{number % 7}" for number in range(count)]),
            "secret": pa.array([f"s{number}" for number in range(count)]),
            "vector": pa.array(vectors, pa.list_(pa.float32(), DIMENSION)),
        }
    )


def write(uri: str) -> None:
    """Write a table whose index is built later."""
    lance.write_dataset(rows(ROWS), uri, max_rows_per_file=ROWS // FRAGMENTS)


def index(uri: str, kind: str, metric: str, owners: Iterator[str]) -> None:
    """Build an index of segments with given ids; then rows come that none covers, and others are deleted."""
    dataset = lance.dataset(uri)
    builder = IndicesBuilder(dataset, "vector")
    ivf = builder.train_ivf(num_partitions=12, distance_type=metric, sample_rate=64)
    options: dict[str, Any] = {"metric": metric, "num_partitions": 12, "ivf_centroids": ivf.centroids}
    if kind == "IVF_PQ":
        options |= {"pq_codebook": builder.train_pq(ivf, num_subvectors=4, sample_rate=8).codebook}
        options |= {"num_sub_vectors": 4}
    each = FRAGMENTS // SEGMENTS_OF_TABLE
    segments = [
        dataset.create_index_uncommitted(
            "vector", kind, name="near", fragment_ids=[*range(first, first + each)], index_uuid=next(owners), **options
        )
        for first in range(0, FRAGMENTS, each)
    ]
    dataset.commit_existing_index_segments("near", "vector", segments)
    dataset.delete("id % 31 = 4")
    lance.write_dataset(rows(200, ROWS), uri, mode="append", max_rows_per_file=100)


def name_of(kind: str, metric: str) -> str:
    return f"{kind}_{metric}".lower()


@dataclass(frozen=True)
class Group:
    """Three servers that spread searches, one that does not, and the keys of their callers."""

    servers: list[ServerProcess]
    alone: ServerProcess
    keys: dict[str, str]
    catalog: Path

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.catalog, timeout=20)) as connection:
            return connection.execute(statement).fetchall()

    def http(self, server: ServerProcess, name: str = "administrator") -> Wire:
        wire = Wire(server.url)
        wire.http.headers["x-api-key"] = self.keys[name]
        return wire


def start(root: Path, db: str, *, spreads: bool = True) -> ServerProcess:
    port, _ = reserve_two_ports(LOOPBACK)
    environ = {"TILTYARD_VECTOR_CACHE_BYTES": "0", "TILTYARD_AUDIT": "all", "TILTYARD_SPREAD_SEARCH_ROWS": "1"}
    if spreads:
        environ |= {"TILTYARD_SERVER_URL": f"http://{LOOPBACK}:{port}"}
    return ServerProcess(root, "--auth", "--db", db, "--port", str(port), environ=environ)


def start_group(stack: ExitStack, root: Path, number: int, tables: list[tuple[str, str]]) -> Group:
    db = f"sqlite:///{root}/catalog.db"
    root.mkdir()
    keys = make_keys(db, "administrator", "ann")
    servers = [start(root, db) for _ in range(number)]
    alone = start(root, db, spreads=False)
    for server in (*servers, alone):
        stack.callback(lambda server=server: server.process.poll() is None and server.kill())
    group = Group(servers, alone, keys, root / "catalog.db")
    with group.http(alone) as wire:
        for kind, metric in tables:
            name = name_of(kind, metric)
            write(uri := f"{root}/{name}.lance")
            wire.good(wire.table([name], "register", {"location": f"{name}.lance"}))
            [[table_id]] = group.sql(f"SELECT id FROM tables WHERE name = '{name}'")
            index(uri, kind, metric, owned_in_turn(table_id, [server.url for server in servers]))
    for server in servers:
        with group.http(server) as wire:
            wait_until(
                lambda wire=wire: f"{number} servers search" in explain(wire, tables[0], k=5), "all servers are known"
            )
    return group


def body_of(query: int = 0, **fields: Any) -> dict[str, Any]:
    return {"k": 10, "vector": {"single_vector": QUERIES[query]}, **fields}


def ask(wire: Wire, table: tuple[str, str], **fields: Any) -> Any:
    return wire.http.post(f"/v1/table/{name_of(*table)}/query", json=body_of(**fields))


def explain(wire: Wire, table: tuple[str, str], **fields: Any) -> str:
    return str(
        wire.good(wire.http.post(f"/v1/table/{name_of(*table)}/explain_plan", json={"query": body_of(**fields)}))
    )


def read(content: bytes) -> pa.Table:
    return pa.ipc.open_file(content).read_all()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with ExitStack() as stack:
        yield start_group(stack, tmp_path_factory.mktemp("spread") / "root", 3, ALL)


SPREAD: list[dict[str, Any]] = [
    {},
    ID,
    ID | {"with_row_id": True},
    {"columns": {"column_names": ["kind", "_distance", "id"]}},
    {"columns": {"column_aliases": {"twice": "id * 2", "far": "_distance"}}},
    {"k": 1, **PROBES},
    {"k": 300, **PROBES},
    {"k": 10, "offset": 7},
    {"k": 5, "offset": 7, **PROBES, "filter": "id % 3 = 0"},
    *({**ID, **PROBES, "filter": text} for text in ("id < 3600", "id % 10 = 0", "id % 100 = 0", "id = 700", "id < 0")),
    *({**ID, **PROBES, "filter": text, "prefilter": False} for text in ("id < 3600", "id % 10 = 0", "id < 0")),
    {**ID, **PROBES, "filter": "id % 2 = 0", "prefilter": False, "offset": 3},
    *({**PROBES, "refine_factor": factor} for factor in (1, 5, 30)),
    {**PROBES, "refine_factor": 4, "filter": "kind = 'k3'", "offset": 2},
    *({**PROBES, "fast_search": True, "refine_factor": factor} for factor in (None, 3)),
    {**PROBES, "fast_search": True, "with_row_id": True, "filter": "kind <> 'k1'"},
    {"minimum_nprobes": 3, "maximum_nprobes": 3},
    *({**PROBES, **bounds, "refine_factor": factor} for factor in (None, 3) for bounds in (
        {"upper_bound": 3.0}, {"lower_bound": 0.2}, {"lower_bound": 0.3, "upper_bound": 9.0}
    )),
    {**PROBES, "fast_search": True, "lower_bound": 0.2, "upper_bound": 8.0},
    {"version": 3, **PROBES},
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: name_of(*table))
def test_a_spread_search_has_the_answer_of_one_server(group: Group, table: tuple[str, str]) -> None:
    with group.http(group.servers[0]) as spread, group.http(group.alone) as alone:
        different = []
        for fields in SPREAD:
            for number in (0, 1):
                one, several = ask(alone, table, query=number, **fields), ask(spread, table, query=number, **fields)
                assert one.status_code == several.status_code == 200, (fields, several.text)
                if one.content != several.content:
                    different.append((number, fields, read(one.content), read(several.content)))
            assert "Route: spread_search" in explain(spread, table, **fields), fields
        assert not different, (len(different), [each[:2] for each in different], different[0])


WIDER: list[dict[str, Any]] = [
    {"search_effort": 0.4, "k": 20},
    {"minimum_nprobes": 1, "maximum_nprobes": 9, "filter": "id % 40 = 0", "fast_search": True},
    {"minimum_nprobes": 1, "k": 300, "refine_factor": 2},
]
"""How widely Lance looks depends on what it has found: in all segments there, in those of one server here."""


@pytest.mark.parametrize("fields", WIDER, ids=str)
def test_a_search_as_wide_as_it_finds_rows_finds_no_fewer_and_none_that_are_farther(
    group: Group, fields: dict[str, Any]
) -> None:
    with group.http(group.servers[0]) as spread, group.http(group.alone) as alone:
        for number in range(len(QUERIES)):
            one, several = (read(ask(wire, ALL[3], query=number, **fields).content) for wire in (alone, spread))
            assert several.num_rows >= one.num_rows > 0
            nearer = np.array(several["_distance"])[: one.num_rows] <= np.array(one["_distance"])
            assert nearer.all()
        assert "Route: spread_search" in explain(spread, ALL[3], **fields)


UNSPREAD: dict[str, dict[str, Any]] = {
    "it does not search for one vector": {"vector": {"multi_vector": QUERIES}},
    "it has an order": {"order_by": [{"column_name": "id"}]},
    "an expression names the distance": {"columns": {"column_aliases": {"far": "_distance * 2"}}},
    "it asks for no rows": {"k": 0},
    "one by one": {"bypass_vector_index": True},
    "without the index": {"filter": "id = 3"},
    "another distance type": {"distance_type": "cosine"},
}


@pytest.mark.parametrize("reason", UNSPREAD)
def test_a_search_that_cannot_be_spread_is_answered_by_one_server(group: Group, reason: str) -> None:
    with group.http(group.servers[0]) as spread, group.http(group.alone) as alone:
        fields = UNSPREAD[reason]
        assert ask(alone, ALL[0], **fields).content == ask(spread, ALL[0], **fields).content
        [line] = re.findall("^Not spread_search: .*", explain(spread, ALL[0], **fields), re.MULTILINE)
        assert reason in line


def test_explain_says_which_servers_search_how_many_segments(group: Group) -> None:
    counts = set()
    with group.http(group.servers[0]) as wire:
        assert ask(wire, ALL[0]).status_code == 200  # from now on each server that has segments plans by itself
    for server in group.servers:
        with group.http(server) as wire:
            [line] = [line for line in explain(wire, ALL[0]).splitlines() if line.startswith("Route: ")]
        assert line.startswith(
            f"Route: spread_search: 3 servers search the {SEGMENTS_OF_TABLE} segments of the index at"
        )
        others = {each.url for each in group.servers} - {server.url}
        found = dict(re.findall(r"(http\S+|this one) (\d+)", line))
        assert found.keys() == {"this one", *others}
        counts.add(tuple(found[url if url != server.url else "this one"] for url in sorted({*others, server.url})))
        assert sum(map(int, found.values())) == SEGMENTS_OF_TABLE
    assert len(counts) == 1, "all servers share the segments out likewise"


def test_masks_and_row_filters_of_the_caller_apply_to_a_spread_search(group: Group) -> None:
    table = ALL[3]
    on = f"/v1/table/{name_of(*table)}"
    with group.http(group.alone) as admin:
        granted = {"object_kind": "table", "id": [name_of(*table)], "grantee": "ann", "privileges": ["read"]}
        admin.good(admin.http.post("/tiltyard/v1/grant/add", json=granted))
        masks = [
            {"column": "secret", "mask": "expression", "expression": "left(secret, 2)"},
            {"column": "kind", "mask": "null"},
        ]
        policy = {"name": "half", "filter": "id % 2 = 0", "masks": masks}
        admin.good(admin.http.post(f"/tiltyard{on}/policy/set", json=policy))
    with group.http(group.servers[1], "ann") as spread, group.http(group.alone, "ann") as alone:
        before = routes(group)
        asked = 0
        for fields in ({}, PROBES, PROBES | {"filter": "id > 900", "offset": 3}, {**PROBES, "refine_factor": 9, **ID}):
            for number in range(len(QUERIES)):
                one, several = (ask(wire, table, query=number, **PROBES | fields) for wire in (alone, spread))
                assert one.content == several.content
                found = read(several.content).to_pydict()
                assert found["id"] and all(id_ % 2 == 0 for id_ in found["id"])
                assert all(len(text) == 2 for text in found.get("secret", ())) and not any(found.get("kind", ()))
                asked += 1
        assert routes(group)["spread_search"] - before["spread_search"] == asked
        masked = ask(spread, table, **PROBES, filter="secret = 's4'")
        assert masked.status_code == 403


def routes(group: Group) -> dict[str, int]:
    """Return how often each route has answered, of all servers of the group that spread."""
    counted: dict[str, int] = dict.fromkeys(("spread_search", "segment_share"), 0)
    for server in group.servers:
        with group.http(server) as wire:
            text = wire.http.get("/metrics").text
        for name, number in re.findall(r'tiltyard_queries_total\{route="(\w+)"\} (\S+)', text):
            counted[name] = counted.get(name, 0) + int(float(number))
    return counted


def requests(group: Group) -> int:
    """Return how many queries the servers have counted."""
    total = 0
    for server in group.servers:
        with group.http(server) as wire:
            text = wire.http.get("/metrics").text
        found = re.findall(r'tiltyard_requests_total\{operation="QueryTable",status="\d+"\} (\S+)', text)
        total += sum(int(float(number)) for number in found)
    return total


def test_a_spread_search_is_one_request_of_its_caller(group: Group) -> None:
    def recorded() -> int:
        return len(group.sql("SELECT 1 FROM audit WHERE request_id LIKE 'counted-%'"))

    def used(wire: Wire) -> int:
        days = wire.good(wire.http.post("/tiltyard/v1/usage", json={}))["days"]
        return sum(each["requests"] for each in days if each.get("namespace") == [])

    def settled(wire: Wire) -> bool:
        """Return whether all servers have added what they have counted of earlier requests."""
        before = used(wire)
        time.sleep(3)
        return used(wire) == before

    with group.http(group.servers[2]) as wire:
        wait_until(lambda: settled(wire), "earlier requests are counted")
        before, shares, counted = requests(group), routes(group)["segment_share"], used(wire)
        for number in range(5):
            wire.http.headers["x-request-id"] = f"counted-{number}"
            assert ask(wire, ALL[0]).status_code == 200
        del wire.http.headers["x-request-id"]
        assert requests(group) - before == 5
        assert routes(group)["segment_share"] - shares == 10
        wait_until(lambda: recorded() >= 5, "the queries are recorded")
        wait_until(lambda: used(wire) >= counted + 5, "the queries are counted")
        wait_until(lambda: settled(wire), "no more are counted")
        assert (recorded(), used(wire)) == (5, counted + 5)


def test_the_header_of_a_sub_query_is_nothing_without_a_signature(group: Group) -> None:
    with group.http(group.servers[0]) as wire:
        expected = ask(wire, ALL[0]).content
        wire.http.headers[SEGMENTS.decode()] = "1000 00000000-0000-0000-0000-000000000000"
        assert ask(wire, ALL[0]).content == expected
        wire.http.headers[FORWARDED.decode()] = f"{time.time_ns() // 10**6} 10.9.8.7 {'0' * 64}"
        assert ask(wire, ALL[0]).content == expected


@dataclass
class Caller:
    """Searches for the same again and again, in a thread."""

    group: Group
    expected: bytes
    longest: float = 0.0
    asked: int = 0
    failed: list[str] = None  # type: ignore[assignment]  # set when it starts

    def run(self, done: threading.Event) -> None:
        self.failed = []
        with self.group.http(self.group.servers[0]) as wire:
            while not done.is_set():
                started = time.monotonic()
                response = ask(wire, ALL[3])
                self.longest = max(self.longest, time.monotonic() - started)
                self.asked += 1
                if response.content != self.expected:
                    self.failed.append(response.text[:300] if response.status_code != 200 else "other rows")


@pytest.mark.parametrize("fault", ["killed", "stalled"])
def test_an_owner_that_is_gone_or_stalled_costs_a_moment_and_no_search(tmp_path: Path, fault: str) -> None:
    with ExitStack() as stack:
        group = start_group(stack, tmp_path / "root", 3, [ALL[3]])
        victim = group.servers[2]
        with group.http(group.alone) as alone:
            expected = ask(alone, ALL[3]).content
        callers, done = [Caller(group, expected) for _ in range(3)], threading.Event()
        threads = [threading.Thread(target=caller.run, args=(done,)) for caller in callers]
        stack.callback(done.set)
        for thread in threads:
            thread.start()
        wait_until(lambda: all(caller.asked > 5 for caller in callers), "searches are answered")
        if fault == "killed":
            victim.kill()
        else:
            victim.process.send_signal(signal.SIGSTOP)
            stack.callback(victim.process.send_signal, signal.SIGCONT)
        then = [caller.asked for caller in callers]
        wait_until(
            lambda: all(caller.asked > before + 20 for caller, before in zip(callers, then, strict=True)), "they go on"
        )
        done.set()
        for thread in threads:
            thread.join()
        assert [caller.failed for caller in callers] == [[], [], []]
        assert max(caller.longest for caller in callers) < 5
        with group.http(group.servers[0]) as wire:
            assert ask(wire, ALL[3]).content == expected


def test_lancedb_gets_the_rows_that_one_server_gives(group: Group) -> None:
    tables = [
        lancedb.connect("db://spread", api_key=group.keys["administrator"], host_override=server.url).open_table(
            name_of(*ALL[3])
        )
        for server in (*group.servers, group.alone)
    ]
    assert "3 servers search" in tables[0].search(QUERIES[1]).limit(5).nprobes(6).explain_plan()

    def find(table: Any) -> pa.Table:
        return table.search(QUERIES[1]).limit(7).offset(2).nprobes(6).where("id % 3 = 0").refine_factor(2).to_arrow()

    found = [find(table) for table in tables]
    assert found[0].num_rows == 7
    assert all(each.equals(found[-1]) for each in found)


def test_a_key_that_is_revoked_meanwhile_gets_no_rows(tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = start_group(stack, tmp_path / "root", 2, [ALL[0]])
        admin = stack.enter_context(group.http(group.servers[1]))
        granted = {"object_kind": "table", "id": [name_of(*ALL[0])], "grantee": "ann", "privileges": ["read"]}
        admin.good(admin.http.post("/tiltyard/v1/grant/add", json=granted))
        wire = stack.enter_context(group.http(group.servers[0], "ann"))
        wait_until(lambda: ask(wire, ALL[0], **PROBES).status_code == 200, "the grant holds")
        admin.good(admin.http.post("/tiltyard/v1/key/revoke", json={"key_id": group.keys["ann"].split("_")[1]}))
        # The other server knows of it at once, and refuses its share; the one that is asked, which may answer alone
        # where that one is slow, knows of it within a tenth of a second (tests/histories judge that).
        wait_until(lambda: ask(wire, ALL[0], **PROBES).status_code == 401, "the end of the key is known", seconds=5)
        assert [ask(wire, ALL[0], **PROBES).status_code for _ in range(20)] == [401] * 20
