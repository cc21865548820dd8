"""Histories of requests whose values come from the server's own answers, so that most of them succeed.

Requests are made from the server's OpenAPI document; what names something gets a name that an answer had, most times.
A model knows what was acknowledged: rows, tags, names. Each answer has its schema, or an error's shape and code.
Some requests are in lancedb's dialect, and some are sent first by a principal who may do nothing of it.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.fuzz.server_answers import (
    DIALECT,
    OPERATIONS,
    Answers,
    Fields,
    Path,
    Statuses,
    check_answer,
    request_of,
    rows,
)
from tests.services.secured import Secured, secured_server
from tiltyard.model.spec import Operation, Shape

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]  # hundreds of requests, one after the other

MIN_SUCCESS = 0.6
"""The share of requests that have to succeed: what is refused at once exercises little."""
TRIED_BY_STRANGER = 0.15
"""How often a request is sent by somebody else first."""
LOOKING = sorted(
    name
    for name, facts in OPERATIONS.items()
    if facts.object in ("table", "namespace")
    and facts.request_shape is not Shape.ARROW
    and name.startswith(
        ("List", "Describe", "Get", "Count", "Query", "Explain", "Analyze", "Table", "Namespace", "Diff")
    )
    and not name.startswith(("DescribeSecret", "DescribeFunction", "DescribeSchedule", "DescribeMaterialized"))
    and "View" not in name
)
"""Operations that change nothing; `MODELLED` are those that do, each a rule below."""
SAMPLES: dict[str, list[Any]] = {
    "predicate": ["id >= 0", "id IN (1, 2)", "text LIKE '%fish'"],
    "filter": ["id < 5", "text IS NOT NULL"],
    "columns": [{"column_names": ["id"]}, {"column_names": ["id", "text"]}],
    "vector": [{"single_vector": [1.0, 0.5]}],
    "k": [1, 3, 100],
    "limit": [1, 2, 50],
    "query": [{"k": 2, "vector": {"single_vector": [1.0, 0.5]}}],
    "full_text_query": [None],
    "mode": [None],
    "delimiter": [None],
    "identity": [None],
    "context": [None],
    "bypass_vector_index": [None, True],
    "vector_column": [None, "vector"],
    "distance_type": [None, "l2", "cosine"],
}
BRANCHED = {"DiffTableBranch": "dev"}
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("stateful")) as server:
        yield server
        logged = [line for line in server.server.log if " ERROR " in line or "Traceback" in line or "panicked" in line]
        assert not logged, "".join(server.server.log)[-20_000:]


class Table:
    """What the model knows of a table: its rows by version, and its tags."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.versions: dict[int, list[int]] = {}
        self.version = 0
        self.tags: dict[str, int] = {}
        self.answers = Answers()

    def commit(self, version: int, ids: list[int]) -> None:
        """Remember what a change of the table has acknowledged."""
        self.version, self.ids = version, sorted(ids)
        self.versions[version] = self.ids


class CatalogHistory(RuleBasedStateMachine):
    """A history of a few tables in one namespace."""

    def __init__(self, secured: Secured, document: Any, statuses: Statuses) -> None:
        super().__init__()
        self.statuses, self.document = statuses, document
        self.owner, self.stranger = secured.wire("administrator"), secured.wire("bob")
        self.root = f"run{os.getpid()}n{next(numbers)}"
        self.tables: dict[Path, Table] = {}
        self.namespaces: set[Path] = set()

    def teardown(self) -> None:
        try:
            listed = self.owner.good(self.owner.http.get(f"/v1/namespace/{self.root}/table/list"))["tables"]
            assert sorted(listed) == sorted(path[-1] for path in self.tables if len(path) == 2)
            assert self.owner.http.get("/health/live").status_code == 200
        finally:
            self.owner.namespace([self.root], "drop", {"behavior": "Cascade"})
            self.owner.http.close()
            self.stranger.http.close()

    # How a request is sent.

    def send(
        self, name: str, fields: Fields, chance: random.Random, body: bytes | None = None, *, dialect: bool = False
    ) -> httpx.Response:
        """Send a request, perhaps by a stranger first, who must not get anywhere."""
        operation = OPERATIONS[name]
        request = request_of(operation, fields, body)
        if chance.random() < TRIED_BY_STRANGER:
            self._try_as_stranger(operation, request)
        if dialect:
            request["headers"] = DIALECT
        response = self.owner.http.request(**request)
        check_answer(operation, response, self.document)
        self.statuses.count(operation, response)
        table = self.tables.get(tuple(fields["id"])) if isinstance(fields.get("id"), list | tuple) else None
        if table is not None and response.headers.get("content-type") == "application/json":
            table.answers.read(response.json())
        return response

    def _try_as_stranger(self, operation: Operation, request: Fields) -> None:
        refused = self.stranger.http.request(**request)
        check_answer(operation, refused, self.document)
        if refused.status_code < 300:
            assert operation.name in ("ListTables", "ListNamespaces"), (operation.name, refused.text)
            assert self.root not in refused.text and "t1" not in refused.text, refused.text
        else:
            assert refused.status_code in (400, 401, 403, 404, 406), (operation.name, refused.text)

    def _wait(self, response: httpx.Response) -> None:
        if response.status_code == 200 and (transaction := response.json().get("transaction_id")):
            url = f"/v1/transaction/{transaction}/describe"
            while self.owner.good(self.owner.http.post(url, json={}))["status"] in ("Queued", "Running"):
                time.sleep(0.05)

    def check_rows(self, path: Path) -> None:
        """The rows and tags that were acknowledged are there."""
        table = self.tables[path]
        assert self.owner.table(path, "count_rows").text == str(len(table.ids)), path
        listed = self.owner.good(self.owner.table(path, "tags/list"))["tags"]
        assert {tag: facts["version"] for tag, facts in listed.items()} == table.tags, path

    @initialize()
    def start(self) -> None:
        self.owner.good(self.owner.namespace([self.root], "create"))
        self._create(random.Random(0), [1, 2, 3])

    # What changes something: the model follows.

    def _create(self, chance: random.Random, ids: list[int]) -> None:
        inside = chance.choice(sorted(self.namespaces)) if self.namespaces and chance.random() < 0.3 else (self.root,)
        path = (*inside, f"t{next(numbers)}")
        response = self.send("CreateTable", {"id": list(path)}, chance, rows(ids))
        assert response.status_code == 200, response.text
        table = self.tables[path] = Table()
        table.commit(response.json()["version"], ids)

    chances = st.randoms(use_true_random=False)
    some_ids = st.lists(st.integers(0, 9), max_size=4)

    def pick(self, chance: random.Random) -> tuple[Path, Table]:
        path = chance.choice(sorted(self.tables))
        return path, self.tables[path]

    @precondition(lambda self: len(self.tables) < 4)
    @rule(chance=chances, ids=some_ids)
    def create_table(self, chance: random.Random, ids: list[int]) -> None:
        self._create(chance, ids)

    @precondition(lambda self: len(self.namespaces) < 3)
    @rule(chance=chances)
    def create_namespace(self, chance: random.Random) -> None:
        path = (self.root, f"s{next(numbers)}")
        assert self.send("CreateNamespace", {"id": list(path)}, chance).status_code == 200
        self.namespaces.add(path)
        assert self.send("CreateNamespace", {"id": list(path)}, chance).status_code == 409

    @precondition(lambda self: len(self.tables) > 1)
    @rule(chance=chances)
    def drop_table(self, chance: random.Random) -> None:
        path, _ = self.pick(chance)
        assert self.send("DropTable", {"id": list(path)}, chance).status_code == 200
        del self.tables[path]
        assert self.send("TableExists", {"id": list(path)}, chance).status_code == 404

    @rule(chance=chances)
    def rename_table(self, chance: random.Random) -> None:
        path, table = self.pick(chance)
        moved = (*path[:-1], f"t{next(numbers)}")
        response = self.send("RenameTable", {"id": list(path), "new_table_name": moved[-1]}, chance)
        if response.status_code == 200:
            self.tables[moved] = self.tables.pop(path)
            self.check_rows(moved)
            assert table is self.tables[moved]

    @rule(chance=chances, ids=some_ids, mode=st.sampled_from(["append", "append", "overwrite"]))
    def insert(self, chance: random.Random, ids: list[int], mode: str) -> None:
        path, table = self.pick(chance)
        dialect = chance.random() < 0.3
        response = self.send("InsertIntoTable", {"id": list(path), "mode": mode}, chance, rows(ids), dialect=dialect)
        if response.status_code == 200:
            self._committed(path, [*(table.ids if mode == "append" else []), *ids])

    def _committed(self, path: Path, ids: list[int]) -> None:
        described = self.owner.good(self.owner.table(path, "describe", {"load_detailed_metadata": True}))
        self.tables[path].commit(described["version"], ids)
        self.check_rows(path)

    @rule(chance=chances, ids=some_ids)
    def merge_insert(self, chance: random.Random, ids: list[int]) -> None:
        path, table = self.pick(chance)
        unique = sorted(set(ids))
        fields = {"id": list(path), "on": "id", "when_matched_update_all": True, "when_not_matched_insert_all": True}
        response = self.send("MergeInsertIntoTable", fields, chance, rows(unique), dialect=chance.random() < 0.3)
        if response.status_code == 200:
            self._committed(path, [*table.ids, *(each for each in unique if each not in table.ids)])

    @rule(chance=chances, low=st.integers(0, 9))
    def delete(self, chance: random.Random, low: int) -> None:
        path, table = self.pick(chance)
        response = self.send("DeleteFromTable", {"id": list(path), "predicate": f"id >= {low} AND id < 5"}, chance)
        if response.status_code == 200:
            self._committed(path, [each for each in table.ids if not low <= each < 5])

    @rule(chance=chances)
    def update(self, chance: random.Random) -> None:
        path, table = self.pick(chance)
        fields = {"id": list(path), "predicate": "id > 2", "updates": [["text", "upper(text)"]]}
        response = self.send("UpdateTable", fields, chance, dialect=chance.random() < 0.3)
        if response.status_code == 200:
            self._committed(path, table.ids)

    @rule(chance=chances)
    def restore(self, chance: random.Random) -> None:
        path, table = self.pick(chance)
        version = chance.choice(sorted(table.versions))
        response = self.send("RestoreTable", {"id": list(path), "version": version}, chance)
        if response.status_code == 200:
            self._committed(path, table.versions[version])

    @rule(
        chance=chances, action=st.sampled_from(["Create", "Update", "Delete"]), tag=st.sampled_from(["a", "b", "c.d"])
    )
    def change_tag(self, chance: random.Random, action: str, tag: str) -> None:
        path, table = self.pick(chance)
        if chance.random() < 0.8:  # most times one that is, or is not yet
            action = "Create" if tag not in table.tags else chance.choice(["Update", "Delete"])
        version = chance.choice(sorted(table.versions))
        fields = {"id": list(path), "tag": tag, **({} if action == "Delete" else {"version": version})}
        response = self.send(f"{action}TableTag", fields, chance)
        assert (response.status_code == 200) == ((tag in table.tags) != (action == "Create")), response.text
        if response.status_code == 200:
            table.tags = {**table.tags, tag: version}
            if action == "Delete":
                del table.tags[tag]
        self.check_rows(path)

    @rule(chance=chances, kind=st.sampled_from(["BTREE", "FTS", "IVF_FLAT"]))
    def create_index(self, chance: random.Random, kind: str) -> None:
        path, _ = self.pick(chance)
        column = {"BTREE": "id", "FTS": "text", "IVF_FLAT": "vector"}[kind]
        fields = {"id": list(path), "column": column, "index_type": kind, "name": f"by_{column}"}
        self._wait(self.send("CreateTableIndex", fields, chance, dialect=chance.random() < 0.2))
        self._committed(path, self.tables[path].ids)

    @rule(chance=chances, action=st.sampled_from(["Create", "Create", "Delete"]))
    def change_branch(self, chance: random.Random, action: str) -> None:
        path, _ = self.pick(chance)
        fields = {"id": list(path), "name": "dev" if action == "Delete" else f"dev{next(numbers)}"}
        self.send(f"{action}TableBranch", fields, chance)
        self.check_rows(path)

    # What looks alone: any request of its operation.

    @rule(name=st.sampled_from(LOOKING), data=st.data(), chance=chances)
    def look(self, name: str, data: st.DataObject, chance: random.Random) -> None:
        operation = OPERATIONS[name]
        path, table = self.pick(chance)
        case = data.draw(self.document[operation.path][operation.method].as_strategy())
        drawn = {**dict(case.query or {}), **(case.body if isinstance(case.body, dict) else {})}
        fields: Fields = {"id": list(path if operation.object == "table" else path[:-1])}
        for field, value in drawn.items():
            if field == "id" or (chance.random() < 0.5 and field in self._optional(operation)):
                continue
            fields[field] = self._known(field, value, table, chance)
        fields |= self._required(operation, fields, table, chance)
        self.send(name, fields, chance, dialect=chance.random() < 0.15)

    def _optional(self, operation: Operation) -> set[str]:
        return {"page_token", "branch", "version", "limit", "tag"} | set(SAMPLES)

    def _known(self, field: str, value: Any, table: Table, chance: random.Random) -> Any:
        """Return a value of an answer for a field that names something; one in twenty times the drawn one."""
        if chance.random() < 0.05:
            return value
        if field in SAMPLES:
            return chance.choice(SAMPLES[field])
        if field == "version":
            return chance.choice(sorted(table.versions))
        if field in ("branch", "page_token"):
            return table.answers.draw(field, chance) if chance.random() < 0.2 else None
        return table.answers.draw(field, chance, otherwise=None)

    def _required(self, operation: Operation, fields: Fields, table: Table, chance: random.Random) -> Fields:
        needed: Fields = {}
        if "{index_name}" in operation.path:
            needed["index_name"] = table.answers.draw("index_name", chance, otherwise="none")
        if operation.name in ("QueryTable", "ExplainTableQueryPlan", "AnalyzeTableQueryPlan"):
            needed["vector"] = {"single_vector": [1.0, 0.5]}
            needed["k"] = fields.get("k") or 2
        if operation.name == "GetTableTagVersion":
            needed["tag"] = chance.choice(sorted(table.tags) or ["none"])
        return needed


def test_histories_of_valid_requests_keep_what_was_acknowledged(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = Statuses()
    document = schemathesis.openapi.from_url(f"{secured.url}/openapi.json")
    bounds = settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", "8")),
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: CatalogHistory(secured, document, statuses), settings=bounds)
    with capsys.disabled():
        print(f"\nstateful: {statuses.report()}")  # noqa: T201  # the share is what the test is for
    worst = "\n".join(f"{count} {what}" for what, count in statuses.refused.most_common(20))
    assert statuses.success >= MIN_SUCCESS, f"{statuses.report()}\n{worst}"
