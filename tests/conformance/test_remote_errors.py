"""lancedb's remote protocol, where something is missing, not served or out of time, through the stock clients."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lancedb.remote.errors import HttpError

from tiltyard_conformance.cases import World
from tiltyard_conformance.cases_of_jobs import CASES
from tiltyard_conformance.clients import NoSuchCallError, call_rust

Fresh = Callable[[str], str]

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
EMBEDDED = pytest.mark.parametrize("server", ["embedded"], indirect=True)


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    """A table of three rows and one tag."""
    table = remote.create_table(fresh("t"), ROWS)
    table.tags.create("there", 1)
    return table


def test_a_version_tag_or_branch_that_is_not_there_is_a_value_error(table: Any) -> None:
    for call in (
        lambda: table.checkout(99),
        lambda: table.checkout("nope"),
        lambda: table.restore(99),
        lambda: table.restore("nope"),
        lambda: table.tags.get_version("nope"),
        lambda: table.tags.create("new", 99),
        lambda: table.tags.update("nope", 1),
        lambda: table.tags.update("there", 99),
        lambda: table.tags.delete("nope"),
        lambda: table.branches.checkout("nope"),
        lambda: table.branches.create("b", from_version=99),
        lambda: table.branches.delete("nope"),
    ):
        with pytest.raises(ValueError, match=r"(was|is) not found"):
            call()
    assert table.count_rows() == 3


def test_what_is_to_be_mended_is_400_and_no_missing_table(table: Any) -> None:
    for call in (
        lambda: table.tags.create("there", 1),
        lambda: table.count_rows("nope = 1"),
        lambda: table.drop_columns(["nope"]),
    ):
        with pytest.raises(HttpError) as refused:
            call()
        assert refused.value.status_code == 400


def test_routes_that_are_not_served_are_501_and_406_in_the_specification(raw: Any) -> None:
    path = "/v1/nothing/list"
    assert (raw.post(path).status_code, raw.post(path).json()["code"]) == (406, 0)
    response = raw.post(path, headers={"x-lancedb-database": "x"})
    assert (response.status_code, response.json()["code"]) == (501, 0)


def merge(table: Any, milliseconds: int) -> Any:
    builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    rows = pa.table({"id": pa.array([3, 4], pa.int64())})
    return builder.execute(rows, timeout=datetime.timedelta(milliseconds=milliseconds))


def test_merge_insert_out_of_time_is_408_and_writes_nothing(table: Any) -> None:
    with pytest.raises(HttpError, match="merge insert timed out") as refused:
        merge(table, 0)
    assert refused.value.status_code == 408
    assert (table.count_rows(), table.version) == (3, 1)
    assert merge(table, 100_000_000).num_inserted_rows == 1


def test_requests_out_of_time_are_408(raw: Any, table: Any) -> None:
    def status(route: str, milliseconds: str, body: Any) -> int:
        headers = {"x-request-timeout-ms": milliseconds}
        code: int = raw.post(f"/v1/table/{table.name}/{route}/", body, headers=headers).status_code
        return code

    query = {"vector": [], "k": 10}
    for route, body in (("query", query), ("count_rows", {}), ("describe", {}), ("explain_plan", {"query": query})):
        assert status(route, "0", body) == 408
        assert status(route, "60000", body) == 200
        assert status(route, "9" * 18, body) == 200
        for value in ("-1", "1.5", "soon", "", "9" * 19):
            assert status(route, value, body) == 400
    plain = raw.post(f"/v1/table/{table.name}/count_rows", headers={"x-request-timeout-ms": "0"})
    assert plain.status_code == 200, "the header has no meaning in the specification"


@EMBEDDED
def test_namespace_client_of_a_remote_connection_gets_the_specifications_answers(
    raw: Any, server: Any, remote: Any
) -> None:
    world, client = World(raw, server.options), remote.namespace_client()
    called = set()
    for case in CASES:
        if case.operation == "AlterTransaction":
            continue  # this client drops what is in an action on its way
        fields = case.prepare(world)
        try:
            response = call_rust(client, case, fields)
        except NoSuchCallError:
            continue
        case.check(world, fields, response)
        called.add(case.operation)
    assert called >= {"ListTableTags", "DescribeTable", "UpdateTable", "QueryTable", "ListTables", "CreateTableIndex"}
