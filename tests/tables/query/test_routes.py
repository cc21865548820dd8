"""The route that answers a query, through HTTP: what explain names, analyze runs, and the metrics count is the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from tests.access.scenes import send
from tests.services.secured import secured_server
from tests.services.wire import stream
from tests.tables.query.query_table import vectors

from tiltyard.model.spec import operations
from tiltyard.storage.caches.cached_rows import _LOOKUPS_BEFORE_SORT
from tiltyard.storage.vector_cache.searched_column import SEARCHES
from tiltyard.tables.query.routes.chooser import ROUTES

TABLE, VIEW, COUNT = ["hr", "people"], ["hr", "seen"], 1500
NAMES = [route.name for route in ROUTES]
PLACES = np.random.default_rng(1).normal(size=(COUNT, 8)).astype(np.float32)
ROWS = pa.table(
    {
        "id": range(COUNT),
        "kind": [f"k{number % 4}" for number in range(COUNT)],
        "free": range(COUNT),
        "pay": range(COUNT),
        "near": vectors(PLACES, pa.float32()),
        "far": vectors(PLACES[:, :4], pa.float32()),
    }
)
ID = {"columns": {"column_names": ["id", "kind"]}}
NEAR = {"vector": {"single_vector": PLACES[1].tolist()}, "vector_column": "near", "k": 5, **ID}
FAR = {"vector": {"single_vector": PLACES[1, :4].tolist()}, "vector_column": "far", "k": 5, **ID}


@dataclass(frozen=True)
class Client:
    """One principal's calls."""

    http: httpx.Client

    def call(self, name: str, body: bytes | None = None, /, **fields: Any) -> httpx.Response:
        response = send(self.http, operations()[name], {"id": TABLE, **fields}, body)
        assert response.status_code == 200, response.text
        return response

    def rows(self, **query: Any) -> list[dict[str, Any]]:
        content = self.call("QueryTable", **{"vector": None, "k": 10} | query).content
        rows: list[dict[str, Any]] = pa.ipc.open_file(content).read_all().to_pylist()
        return rows

    def explain(self, **query: Any) -> str:
        fields = {"vector": None, "k": 10} | query
        return str(self.call("ExplainTableQueryPlan", id=fields.pop("id", TABLE), query=fields).json())

    def analyze(self, **query: Any) -> str:
        fields = {"vector": None, "k": 10} | query
        return str(self.call("AnalyzeTableQueryPlan", id=fields.pop("id", TABLE), query=fields).json())


@dataclass(frozen=True)
class Scene:
    """A server with a table whose rows and vectors are in memory, a branch, a tag and a view of it, and two readers."""

    admin: Client
    ann: Client

    def counts(self) -> Counter[str]:
        """Return how many queries each route has answered."""
        text = self.admin.http.get("/metrics").text
        found = re.findall(r'^tiltyard_queries_total\{route="(\w+)"\} (\S+)$', text, re.MULTILINE)
        return Counter({route: int(float(number)) for route, number in found})

    def check(self, route: str, **query: Any) -> str:
        """Check that a query is explained, run, counted and analyzed by one route; return its plan."""
        plan = self.admin.explain(**query)
        before = self.counts()
        rows = self.admin.rows(**query)
        after = self.counts()
        analysis = self.admin.analyze(**query)
        lines = plan.splitlines()
        assert lines[0].startswith(f"Route: {route}: "), plan
        assert [line.split(":")[0] for line in lines[1 : len(NAMES)]] == [f"Not {n}" for n in NAMES if n != route], plan
        assert after - before == {route: 1}
        assert analysis.startswith(lines[0] + "\n"), analysis
        assert self.counts() - after == {route: 1}
        if route != "scan":
            assert f"\nRan: {len(rows):,} rows, " in analysis
        return plan


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    memory = {"TILTYARD_VECTOR_CACHE_BYTES": str(1 << 26)}
    folder = tmp_path_factory.mktemp("routes")
    with (
        secured_server(folder, environ=memory, names=("ann",)) as secured,
        secured.http("administrator") as administrator,
        secured.http("ann") as reader,
    ):
        scene = Scene(Client(administrator), Client(reader))
        admin = scene.admin
        admin.call("CreateNamespace", id=TABLE[:1])
        admin.call("GrantPrivileges", object_kind="namespace", id=TABLE[:1], grantee="ann", privileges=["read"])
        admin.call("CreateTable", stream(ROWS))
        admin.call("CreateTableIndex", column="near", index_type="IVF_FLAT", distance_type="l2")
        admin.call("CreateTableScalarIndex", column="id", index_type="BTREE")
        admin.call("CreateTableScalarIndex", column="kind", index_type="BITMAP")
        admin.call("CreateTableBranch", name="draft", from_ref="main")
        admin.call("CreateTableTag", tag="first", version=1)
        admin.call("CreateView", id=VIEW, query="SELECT id, kind, far FROM hr.people WHERE id < 90")
        for branch in (None, "draft"):
            admin.call("PrewarmTablePageCache", branch=branch)
        while "Route: index_in_memory" not in admin.explain(**NEAR):
            for _ in range(SEARCHES):
                admin.rows(**NEAR)
        while "the filter is evaluated in memory" not in admin.explain(**NEAR, filter="free > 7 AND kind = 'k2'"):
            admin.rows(**NEAR, filter="free > 9 AND kind = 'k3'")
        for _ in range(_LOOKUPS_BEFORE_SORT + 1):
            admin.rows(filter="id = 1")
        yield scene


BY_ROUTE: list[tuple[str, dict[str, Any]]] = [
    ("index_in_memory", NEAR),
    ("index_in_memory", NEAR | {"filter": "free > 90", "with_row_id": True}),
    ("index_in_memory", NEAR | {"vector": {"multi_vector": [PLACES[1].tolist(), PLACES[2].tolist()]}}),
    ("rows_in_memory", {"filter": "id = 7"}),
    ("rows_in_memory", {"filter": "id IN (7, 9, 5000)", "with_row_id": True}),
    ("rows_in_memory", {"filter": "id >= 7 AND id < 12", "k": 1000}),
    ("rows_in_memory", {"filter": "_rowid IN (3, 5)", "k": 2**31}),
    ("point_lookup", {"filter": "kind = 'k1'"}),
    ("rows_in_memory", {"filter": "_rowid IN (3, 5)", "version": 1, "k": 2**31}),
    ("row_take", {"filter": "_rowoffset IN (3, 5)", "version": 1, "with_row_id": True}),
    ("shared_search", FAR),
    ("cached_columns", {"filter": "free > 90"}),
    ("cached_columns", {"filter": "free = 90"}),
    ("cached_columns", {"k": 3, "offset": 2}),
    ("cached_columns", FAR | {"filter": "kind = 'k1'"}),
    ("cached_columns", FAR | {"vector": {"multi_vector": [[0.0] * 4, [1.0] * 4]}}),
    ("scan", {"k": 1001}),
    ("scan", NEAR | {"k": 1001}),
    ("scan", {"columns": {"column_aliases": {"twice": "id * 2"}}}),
    ("scan", {"order_by": [{"column_name": "id", "ascending": False}]}),
    ("cached_columns", {"filter": "id = 7", "version": 1}),
    ("shared_search", NEAR | {"version": 1}),
    ("cached_columns", {"branch": "draft", "filter": "free > 90"}),
    ("shared_search", FAR | {"branch": "draft"}),
    ("scan", {"branch": "draft", "k": 1001}),
    ("view", {"id": VIEW}),
    ("view", {"id": VIEW, "columns": {"column_names": ["kind"]}, "offset": 80}),
    ("view", {"id": VIEW, "filter": "id > 80"}),
    ("view", {"id": VIEW} | FAR),
]


@pytest.mark.parametrize(("route", "query"), BY_ROUTE, ids=str)
def test_query_is_explained_run_counted_and_analyzed_by_one_route(
    route: str, query: dict[str, Any], scene: Scene
) -> None:
    scene.check(route, **query)


def test_query_of_a_tag_is_one_of_its_version(scene: Scene) -> None:
    version = scene.admin.call("GetTableTagVersion", tag="first").json()["version"]
    scene.check("cached_columns", version=version, **ID)


def test_explain_has_the_plan_of_what_lance_runs(scene: Scene) -> None:
    assert "ScalarIndexQuery" in scene.check("point_lookup", filter="kind = 'k1'")
    assert "KNN" in scene.check("shared_search", **FAR)
    assert "LanceRead" in scene.check("scan", k=1001)
    assert "LanceRead" in scene.check("view", id=VIEW, filter="id > 80")
    plans = [scene.check("rows_in_memory", filter="id = 7"), scene.check("index_in_memory", **NEAR)]
    assert not any("LanceRead" in plan or "KNN" in plan for plan in plans)


def test_explain_counts_as_no_use_of_caches(scene: Scene) -> None:
    """Columns come into memory after a few queries, however often plans were asked for."""
    cold = ["hr", "cold"]
    scene.admin.call("CreateTable", stream(ROWS), id=cold)
    for _ in range(40):
        assert scene.admin.explain(id=cold).startswith("Route: scan: ")
    before = scene.counts()
    while not scene.admin.explain(id=cold).startswith("Route: cached_columns: "):
        scene.admin.rows(id=cold)
    assert (scene.counts() - before)["scan"], "the first query had columns from memory"


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("row_count", {}),
        ("row_count", {"version": 1}),
        ("rows_in_memory", {"predicate": "id < 12"}),
        ("scan", {"predicate": "free < 12"}),
        ("scan", {"predicate": "id < 12", "version": 1}),
        ("view", {"id": VIEW}),
        ("view", {"id": VIEW, "predicate": "id < 12"}),
    ],
    ids=str,
)
def test_count_is_counted_by_its_route(route: str, query: dict[str, Any], scene: Scene) -> None:
    before = scene.counts()
    number = scene.admin.call("CountTableRows", **query).json()
    assert number == (12 if "predicate" in query else 90 if query.get("id") else COUNT)
    assert scene.counts() - before == {route: 1}


@pytest.fixture
def restricted(scene: Scene) -> Iterator[Scene]:
    scene.admin.call("SetTablePolicy", name="kinds", filter="kind = 'k1'")
    scene.admin.call("SetTablePolicy", name="masks", masks=[{"column": "pay", "mask": "null"}])
    yield scene
    for name in ("kinds", "masks"):
        scene.admin.call("DropTablePolicy", name=name)


RESTRICTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("cached_columns", ID, {"filter": "(kind = 'k1')"} | ID),
    ("cached_columns", {"filter": "free > 90"} | ID, {"filter": "(kind = 'k1') AND (free > 90)"} | ID),
    ("index_in_memory", NEAR, NEAR | {"filter": "kind = 'k1'"}),
    ("cached_columns", FAR, FAR | {"filter": "kind = 'k1'"}),
    ("scan", {}, {"filter": "kind = 'k1'", "columns": {"column_aliases": {"id": "id", "pay": "NULL"}}}),
]


@pytest.mark.parametrize(("route", "query", "as_restricted"), RESTRICTED, ids=str)
def test_restricted_query_takes_the_route_of_what_it_is_restricted_to(
    route: str, query: dict[str, Any], as_restricted: dict[str, Any], restricted: Scene
) -> None:
    """Its plan is refused, which would tell of hidden rows: that of an administrator's equal query is shown."""
    before = restricted.counts()
    rows = restricted.ann.rows(**query)
    assert rows
    assert {row["kind"] for row in rows} == {"k1"}
    assert {row.get("pay") for row in rows} == {None}
    assert restricted.counts() - before == {route: 1}
    assert [row["id"] for row in rows] == [row["id"] for row in restricted.admin.rows(**as_restricted)]
    restricted.check(route, **as_restricted)
    request = {"id": TABLE, "query": {"vector": None, "k": 10} | query}
    for name in ("ExplainTableQueryPlan", "AnalyzeTableQueryPlan"):
        assert send(restricted.ann.http, operations()[name], request).status_code == 403


def test_restricted_count_is_counted_by_its_route(restricted: Scene) -> None:
    before = restricted.counts()
    assert restricted.ann.call("CountTableRows").json() == COUNT // 4
    assert restricted.ann.call("CountTableRows", predicate="id < 12").json() == 3
    assert restricted.counts() - before == {"scan": 2}


def test_plan_of_a_view_is_refused_as_its_query_is(scene: Scene) -> None:
    for fields in (
        {"version": 7},
        {"branch": "draft"},
        {"columns": {"column_names": ["free"]}},
        {"filter": "free = 1"},
    ):
        query = {"vector": None, "k": 10} | fields
        answers = [
            send(scene.admin.http, operations()["QueryTable"], {"id": VIEW} | query),
            send(scene.admin.http, operations()["ExplainTableQueryPlan"], {"id": VIEW, "query": query}),
            send(scene.admin.http, operations()["AnalyzeTableQueryPlan"], {"id": VIEW, "query": query}),
        ]
        assert {answer.status_code for answer in answers} in ({400}, {404}, {406}), [a.text for a in answers]
        assert len({answer.json()["error"] for answer in answers}) == 1
