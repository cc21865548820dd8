"""Quotas of principals hold for SQL over Flight: the memory of their queries, and statements as requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.access.scenes import send
from tests.faults.conftest import wait_until
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from tests.flight.conftest import SqlServer

COUNT = "SELECT count(*) AS n FROM films"


def call(sql: SqlServer, operation: str, **fields: Any) -> Any:
    with sql.secured.http("administrator") as http:
        response = send(http, operations()[operation], fields)
        assert response.status_code == 200, response.text
        return response.json()


def refused(sql: SqlServer, name: str) -> grpc.RpcError:
    with sql.channel(name) as wire, pytest.raises(grpc.RpcError) as caught:
        wire.poll(COUNT)
    return caught.value


def test_memory_of_sql_queries_is_a_quota_of_their_principal(sql: SqlServer) -> None:
    call(sql, "SetQuota", principal="bob", resource="sql_memory", soft=1, hard=2)
    error: Any = refused(sql, "bob")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "of 2 bytes of memory for SQL queries: narrow the query, or ask an administrator" in error.details()
    with sql.channel("ann") as wire:
        wire.poll(COUNT)
    call(sql, "SetQuota", principal="bob", resource="sql_memory", hard=1 << 30)
    with sql.channel("bob") as wire:
        wire.poll(COUNT)
    call(sql, "DropQuota", principal="bob", resource="sql_memory")
    with sql.secured.http("administrator") as http:
        fields = {"namespace": ["sales"], "resource": "sql_memory", "hard": 1}
        assert "its memory is a principal's" in send(http, operations()["SetQuota"], fields).text


def test_statements_count_as_requests_of_their_principal(sql: SqlServer) -> None:
    def used() -> int:
        days = call(sql, "ListUsage", principal="bob")["days"]
        return sum(each["requests"] for each in days)

    before = used()
    with sql.channel("bob") as wire:
        wire.poll(COUNT)
    wait_until(lambda: used() > before, "the statement is counted")
    call(sql, "SetQuota", principal="bob", resource="requests_per_day", hard=1)
    deadline = time.monotonic() + 20
    try:
        while True:
            assert time.monotonic() < deadline
            with sql.channel("bob") as wire:
                try:
                    wire.poll(COUNT)
                except grpc.RpcError as error:
                    refusal: Any = error
                    break
            time.sleep(0.2)
        assert refusal.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "of 1 requests of today sent: go on after midnight UTC" in refusal.details()
    finally:
        call(sql, "DropQuota", principal="bob", resource="requests_per_day")
