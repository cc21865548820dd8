"""`tiltyard.Jdbc` on a real PostgreSQL: each type, and times whatever the zones of Spark, its JVM and the database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tiltyard
from tests.services.jdbc import POSTGRESQL_DRIVER, jdbc_driver
from tests.services.postgres import PostgresServer, postgres_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

TABLE = """
    CREATE TABLE times (
        id int PRIMARY KEY, plain timestamp, zoned timestamptz, day date, opens time,
        exact numeric(20, 4), bytes bytea, yes boolean, small smallint, large bigint, single real, "double x" float8,
        name text, short varchar(10), key uuid, document jsonb, numbers int[], words text[], long interval
    )
"""
COLUMNS = """
    plain, zoned, day, opens, exact, bytes, yes, small, large, single, "double x", name, short, numbers, words
"""
MOMENTS = (
    *("2024-03-31 01:30:00.123456", "2024-03-31 02:30:00.123456", "2024-03-31 03:30:00.123456"),  # Berlin skips an hour
    *("2024-03-10 01:30:00", "2024-03-10 02:30:00", "2024-03-10 03:30:00"),  # New York does
    *("2024-10-27 01:30:00", "2024-10-27 02:30:00", "2024-10-27 03:30:00"),  # Berlin has an hour twice
    *("2024-11-03 01:30:00", "1890-01-01 00:00:01", "1582-10-10 12:00:00", "9999-12-31 23:59:59.999999"),
)
INSERT = """
    INSERT INTO times SELECT %(id)s, %(moment)s::timestamp, (%(moment)s || '+00')::timestamptz, %(moment)s::timestamp,
        %(moment)s::timestamp::time, 1.5, 'ab', true, 1, 1 << 40, 1.5, 2.5, 'a name', 'short',
        'c0a8e6a8-1f0c-4b52-8a4e-3b8f8d8b2f10', '{"a": 1}', '{1,2}', '{a,b}', '1 day'
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its zoned time in one zone, and its time as text, which Spark has no type for."""
    return row | {"zoned": row["zoned"] and row["zoned"].astimezone(UTC), "opens": row["opens"] and str(row["opens"])}


@pytest.mark.parametrize(("jvm", "session"), [("Europe/Berlin", "America/New_York"), ("America/New_York", "UTC")])
def test_jdbc_of_postgresql_reads_each_type_and_time_as_it_is(
    postgres: PostgresServer, tmp_path: Path, jvm: str, session: str
) -> None:
    jar, url = jdbc_driver(POSTGRESQL_DRIVER), postgres.new_database()
    address = f"jdbc:postgresql://{url.partition('@')[2]}"
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as database:
        database.execute(TABLE)
        for number, moment in enumerate(MOMENTS):
            database.execute(INSERT, {"id": number, "moment": moment})
        database.execute("INSERT INTO times (id) VALUES (-1)")
        expected = {row["id"]: comparable(row) for row in database.execute(f"SELECT id, {COLUMNS} FROM times")}  # type: ignore[arg-type]  # psycopg takes literals alone; these are constants
    tiltyard.Namespace(str(tmp_path)).close()
    process = [sys.executable, "-m", "tests.spark.jdbc_process", str(tmp_path), address, str(jar), jvm, session]
    done = subprocess.run(process, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = tiltyard.connect(tmp_path).table("read").to_arrow()
    others = {"key", "document", "long"}
    assert {row["id"]: comparable(row) for row in rows.drop(sorted(others)).to_pylist()} == expected
    texts = rows.filter(rows["id"].to_numpy(zero_copy_only=False) == 0).select(sorted(others)).to_pylist()
    assert texts == [{"document": '{"a": 1}', "key": "c0a8e6a8-1f0c-4b52-8a4e-3b8f8d8b2f10", "long": "1 day"}]
    assert str(rows.schema.field("plain").type) == "timestamp[us]"
    assert str(rows.schema.field("zoned").type) == "timestamp[us, tz=UTC]"
