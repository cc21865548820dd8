"""What Flight SQL's clients are told that the server can do (SqlInfo): each claim, with statements that prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import pyarrow as pa
import pytest

from tests.flight.conftest import command
from tests.flight.test_adbc import connect
from tests.flight.test_submission import read

if TYPE_CHECKING:
    from tests.flight.conftest import SqlServer

SERVED: dict[tuple[int, Any], tuple[str, ...]] = {
    (3, False): (
        "CREATE MATERIALIZED VIEW of_films AS SELECT id FROM films",
        "REFRESH MATERIALIZED VIEW of_films",
        "DROP MATERIALIZED VIEW of_films",
    ),
    (4, True): ("SELECT 1",),
    (504, '"'): ('SELECT "id" FROM "films"',),
    (513, "\\"): (r"SELECT id FROM films WHERE title LIKE 'A%' AND title NOT LIKE 'A\_%'",),
    (515, True): ("SELECT id AS other FROM films",),
    (516, True): ("SELECT 1 FROM films WHERE (NULL + 1) IS NULL",),
    (518, True): ("SELECT f.id FROM films AS f",),
    (520, True): ("SELECT id FROM films ORDER BY id + 1",),
    (521, True): ("SELECT id FROM films ORDER BY title",),
    (522, 0b11): ("SELECT count(*) FROM films GROUP BY owner", "SELECT owner, title FROM films GROUP BY title, owner"),
    (523, True): (r"SELECT id FROM films WHERE title LIKE 'A%' AND title NOT LIKE 'A\_%' ESCAPE '\'",),
    (528, 0b111): tuple(
        f"SELECT f.id FROM films f {kind} JOIN sales.ratings r ON f.id = r.film" for kind in ("LEFT", "RIGHT", "FULL")
    ),
    (532, True): ("SELECT id FROM tiltyard.public.films",),
    (538, 0b111): (
        "SELECT id FROM films WHERE id = (SELECT max(film) FROM sales.ratings)",
        "SELECT id FROM films WHERE EXISTS (SELECT 1 FROM sales.ratings)",
        "SELECT id FROM films WHERE id IN (SELECT film FROM sales.ratings)",
    ),
    (539, True): ("SELECT id FROM films f WHERE EXISTS (SELECT 1 FROM sales.ratings r WHERE r.film = f.id)",),
    (540, 0b11): ("SELECT 1 UNION SELECT 2", "SELECT 1 UNION ALL SELECT 1"),
}
REFUSED: dict[tuple[int, Any], tuple[str, ...]] = {
    (500, False): ("CREATE DATABASE other",),
    (501, False): ("CREATE SCHEMA other", "DROP SCHEMA sales"),
    (502, False): ("CREATE TABLE other (id INT)", "DROP TABLE films"),
    (536, False): ("SELECT id FROM films FOR UPDATE",),
    (537, False): ("CALL films()",),
    (563, False): ("BEGIN",),
    (573, False): ("SAVEPOINT a",),
}


def told(sql: SqlServer, numbers: tuple[int, ...] = ()) -> dict[int, Any]:
    """What a client that asks for these numbers is told."""
    with sql.channel() as wire:
        info = wire.call("GetFlightInfo", command("CommandGetSqlInfo", info=numbers), "FlightInfo")
        answer = read(wire.stream("DoGet", info.endpoint[0].ticket))
    return {row["info_name"]: row["value"] for row in answer.to_pylist()}


def test_claims_are_proved_by_statements(sql: SqlServer) -> None:
    all_claims = told(sql)
    for (number, claim), statements in SERVED.items():
        assert all_claims[number] == claim, number
        for statement in statements:
            with connect(sql) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                assert cursor.fetch_arrow_table().num_rows > 0, statement


def test_what_is_said_not_to_be_served_is_refused(sql: SqlServer) -> None:
    all_claims = told(sql, tuple(number for number, _ in REFUSED))
    assert list(all_claims.items()) == list(REFUSED)
    for statements in REFUSED.values():
        for statement in statements:
            with (
                connect(sql) as connection,
                connection.cursor() as cursor,
                pytest.raises(adbc_driver_manager.Error),
            ):
                cursor.execute(statement)
    with connect(sql) as connection, connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error):
        cursor.execute("SELECT id FROM films WHERE id > ALL (SELECT film FROM sales.ratings)")  # 538 has no quantifiers
    assert told(sql, (5, 10, 11)) == {5: False, 10: False, 11: False}
    with connect(sql) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc_driver_manager.NotSupportedError):
            cursor.adbc_ingest("new", pa.table({"a": [1]}))
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute(b"\x0a\x00")  # Substrait
