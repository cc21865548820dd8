"""SQL by the JDBC driver of Arrow Flight SQL: a Java program, whose output is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.access.scenes import send
from tests.flight.adbc_calls import TYPES
from tests.flight.jdbc_calls import CALLS, jdbc_answers
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from pathlib import Path

    from tests.flight.conftest import SqlServer

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def answers(sql: SqlServer, driver: Path) -> dict[str, str]:
    """What the program has read, by name."""
    url = f"jdbc:arrow-flight-sql://127.0.0.1:{sql.port}/?useEncryption=false"
    sql.lancedb().create_table("types", TYPES)
    grant = {"object_kind": "server", "grantee": "ann", "privileges": ["create"]}
    with sql.secured.http("administrator") as http:
        assert send(http, operations()["GrantPrivileges"], grant).status_code < 300
        read = jdbc_answers(driver, url, sql.secured.keys["ann"], sql.secured.keys["bob"])
        assert send(http, operations()["RevokePrivileges"], grant).status_code < 300
    return read


def test_every_call_ends_as_the_table_of_the_docs_says(answers: dict[str, str]) -> None:
    seen = [call.observe(answers) for call in CALLS]
    assert [f"{call.what}: {call.outcome}" for call in seen if not call.is_expected] == []


def test_each_kind_of_credentials_connects(answers: dict[str, str]) -> None:
    assert answers["connect by password"] == answers["connect by token"] == "[[1]]"
    assert "not one of this user" in answers["connect by password of another"]
    assert "unknown" in answers["connect by wrong password"]
    assert "requires authentication" in answers["connect by no credentials"]


def test_queries_with_and_without_parameters(answers: dict[str, str]) -> None:
    assert answers["select"] == "[[1, Alien], [2, Brazil]]"
    assert answers["many"] == "200000 19999900000"
    assert (answers["parameters"], answers["columns of the prepared"]) == ("3", "2")
    assert answers["prepared"] == "[[Brazil, 5], [Dune, 5]]"
    assert answers["prepared again"] == "[[Dune, 5]]"
    assert answers["types of parameters"] == f"{1 << 40} true 2024-02-29 null 2"


def test_statements_on_materialized_views_run_as_queries_and_as_updates(answers: dict[str, str]) -> None:
    assert answers["create view"] == "[[v, rebuild, 6, 2]]"
    assert answers["refresh view"] in ("0", "-1")
    assert (answers["views"], answers["views at last"]) == ("[[v]]", "[]")


def test_metadata_describes_the_catalog(answers: dict[str, str]) -> None:
    assert answers["failed questions"] == "[]", "each question about the server has an answer"
    assert (answers["product"], answers["read only"], answers["catalogs"]) == ("Tiltyard", "false", "[[tiltyard]]")
    assert answers["schemas"] == "[public, sales]"
    names = ("public films", "public numbers", "public types", "sales ratings")
    assert answers["tables"] == f"[{', '.join(f'{name} BASE TABLE' for name in names)}]"
    assert answers["tables of a schema"] == "[ratings]"
    assert answers["columns"] == "[id BIGINT -5, title VARCHAR 12, owner VARCHAR 12, budget DOUBLE 8]"
    assert answers["table types"] == "[[BASE TABLE], [VIEW]]"
    assert {answers[name] for name in ("primary keys", "imported keys", "exported keys", "cross reference")} == {"[]"}


def test_failure_says_why(answers: dict[str, str]) -> None:
    assert "Table not found: nothing" in answers["missing table"]
    assert "Expected: an SQL statement" in answers["syntax"]
    assert "Divide by zero" in answers["division"]
    assert "only read" in answers["change"]
