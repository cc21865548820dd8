"""Queries whose reader may not read their tables any more: nothing more of them is handed over."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.flight.conftest import SqlServer
from tiltyard.flight.messages import MESSAGES
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = pa.table({"id": range(1000), "text": [f"row {number}" for number in range(1000)]})
SCAN, POINT = "SELECT text FROM secrets ORDER BY id", "SELECT text FROM secrets WHERE id = 7"
GRANT = {"object_kind": "table", "id": ["secrets"], "grantee": "cy", "privileges": ["read"]}
POLICY = {"id": ["secrets"], "name": "few", "filter": "id < 5"}


@contextmanager
def table_of(sql: SqlServer) -> Iterator[Any]:
    """A table that cy may read; yields what calls operations as the administrator."""
    db = sql.lancedb()
    with sql.secured.http("administrator") as http:

        def call(operation: str, **fields: Any) -> None:
            response = send(http, operations()[operation], fields)
            assert response.status_code < 300, response.text

        db.create_table("secrets", ROWS, mode="overwrite")
        db.open_table("secrets").create_scalar_index("id", wait_timeout=timedelta(seconds=60))
        call("GrantPrivileges", **GRANT)
        yield call
        db.drop_table("secrets")


def submitted(wire: Any, query: str) -> Any:
    """A query that has ended, with rows that wait for their reader."""
    polled = wire.poll(query)
    while polled.HasField("flight_descriptor"):
        polled = wire.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")
    return polled


def check_refused(wire: Any, polled: Any, reason: str, *, is_described: bool) -> None:
    """Neither a poll nor a reader gets anything, and so it stays."""
    ticket = polled.info.endpoint[0].ticket
    if is_described:
        descriptor = MESSAGES["FlightDescriptor"](type=2, cmd=ticket.ticket)
        with pytest.raises(grpc.RpcError, match=reason):
            wire.call("PollFlightInfo", descriptor, "PollInfo")
    for _ in range(2):
        with pytest.raises(grpc.RpcError, match=reason):
            wire.stream("DoGet", ticket)


@pytest.mark.parametrize("query", [SCAN, POINT], ids=["scan", "point"])
@pytest.mark.parametrize("is_described", [True, False], ids=["poll", "get"])
def test_query_is_not_handed_over_once_its_grant_is_revoked(sql: SqlServer, query: str, *, is_described: bool) -> None:
    with table_of(sql) as call, sql.channel("cy") as cy:
        polled = submitted(cy, query)
        call("RevokePrivileges", **GRANT)
        check_refused(cy, polled, "not found|privilege|needs", is_described=is_described)


@pytest.mark.parametrize("query", [SCAN, POINT], ids=["scan", "point"])
def test_query_is_not_handed_over_after_a_policy_was_set_or_changed(sql: SqlServer, query: str) -> None:
    with table_of(sql) as call, sql.channel("cy") as cy:
        polled = submitted(cy, query)
        call("SetTablePolicy", **POLICY)
        check_refused(cy, polled, "A policy of the table secrets has changed", is_described=True)
        again = submitted(cy, SCAN)
        call("SetTablePolicy", **{**POLICY, "filter": "id < 3"})
        check_refused(cy, again, "A policy of the table secrets has changed", is_described=False)
        latest = submitted(cy, SCAN)
        assert len(cy.stream("DoGet", latest.info.endpoint[0].ticket)) == 2


def test_query_is_not_handed_over_once_a_column_is_classified_that_a_policy_masks(sql: SqlServer) -> None:
    with table_of(sql) as call, sql.channel("cy") as cy:
        call("SetClassificationPolicy", name="texts", key="pii", mask="expression", expression="left(value(), 3)")
        polled = submitted(cy, SCAN)
        call("SetClassification", id=["secrets"], object_kind="column", column="text", key="pii")
        check_refused(cy, polled, "A policy of the table secrets has changed", is_described=True)
        (first, *_) = cy.stream("DoGet", submitted(cy, SCAN).info.endpoint[0].ticket)
        assert first is not None
        assert sql.lancedb("cy").open_table("secrets").search().limit(1).to_list()[0]["text"] == "row"
        call("DropClassificationPolicy", name="texts")


def test_query_is_not_handed_over_after_another_table_took_its_name(sql: SqlServer) -> None:
    with table_of(sql) as call, sql.channel("cy") as cy:
        polled = submitted(cy, SCAN)
        sql.lancedb().drop_table("secrets")
        sql.lancedb().create_table("secrets", ROWS)
        call("GrantPrivileges", **GRANT)
        check_refused(cy, polled, "is another one than", is_described=True)


def test_query_of_a_view_is_not_handed_over_after_the_grant_on_its_table_was_revoked(sql: SqlServer) -> None:
    with table_of(sql) as call, sql.channel("cy") as cy:
        sql.lancedb().create_view("readable", SCAN)
        view = {**GRANT, "id": ["readable"]}
        call("GrantPrivileges", **view)
        polled = submitted(cy, "SELECT text FROM readable")
        call("RevokePrivileges", **GRANT)
        check_refused(cy, polled, "not found|privilege|needs", is_described=False)
        call("RevokePrivileges", **view)
        sql.lancedb().drop_view("readable")


def test_query_that_still_runs_ends_with_its_grant(sql: SqlServer) -> None:
    endless = """SELECT a.text, c.text AS other
        FROM secrets a JOIN secrets b ON a.id % 7 = b.id % 7 JOIN secrets c ON b.id % 7 = c.id % 7"""
    with table_of(sql) as call, sql.channel("cy") as cy:
        polled = cy.poll(endless)
        assert polled.HasField("flight_descriptor")
        call("RevokePrivileges", **GRANT)
        check_refused(cy, polled, "not found|privilege|needs", is_described=True)
        call("GrantPrivileges", **GRANT)
        assert len(cy.stream("DoGet", submitted(cy, SCAN).info.endpoint[0].ticket)) == 2
