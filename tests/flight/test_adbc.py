"""SQL by ADBC's driver for Flight SQL."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import grpc
import pyarrow as pa
import pytest

from tests.flight.adbc_calls import TYPES, AdbcCaller, adbc_calls, pandas_calls
from tests.flight.conftest import NUMBERS
from tiltyard.flight.messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flight.conftest import SqlServer

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")


@contextmanager
def connect(sql: SqlServer, name: str = "administrator") -> Iterator[Any]:
    header = {"adbc.flight.sql.rpc.call_header.x-api-key": sql.secured.keys[name]}
    with adbc.connect(f"grpc://127.0.0.1:{sql.port}", db_kwargs=header) as connection:
        yield connection


def test_queries_with_and_without_parameters(sql: SqlServer) -> None:
    with connect(sql, "ann") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, title FROM films WHERE id < 3 ORDER BY id")
        assert cursor.fetchall() == [(1, "Alien"), (2, "Brazil")]
        cursor.execute("SELECT id, ? AS p FROM films WHERE budget > ? AND owner = ? ORDER BY id", (1.5, 7, "bob"))
        assert cursor.fetchall() == [(2, 1.5), (4, 1.5)]
        cursor.execute("SELECT * FROM numbers")
        assert cursor.fetch_arrow_table().sort_by("n") == NUMBERS


def test_words_of_other_dialects_are_understood_with_parameters(sql: SqlServer) -> None:
    with connect(sql, "ann") as connection, connection.cursor() as cursor:
        document = '{"a": {"b": [1, 2]}}'
        cursor.execute(
            "SELECT ? -> 'a' ->> ?, json_extract(?, '$.a.b[1]') FROM films WHERE id = 1", (document, "b", document)
        )
        assert cursor.fetchall() == [("[1,2]", "2")]
        cursor.execute("SELECT arg_max(title, budget), count_if(id > ?) FROM films", (2,))
        assert cursor.fetchall() == [("Dune", 4)]
        cursor.execute("FROM films SELECT id WHERE title ILIKE 'a%'")
        assert cursor.fetchall() == [(1,)]
        with pytest.raises(adbc_driver_manager.Error, match="ORDER BY 1, 2"):
            cursor.execute("SELECT title FROM films ORDER BY ALL")


def test_user_connects_with_a_key_as_password(sql: SqlServer) -> None:
    with connect_as(sql, "ann", sql.secured.keys["ann"]) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM films")
        assert cursor.fetchall() == [(6,)]
    with pytest.raises(adbc_driver_manager.Error, match="user"), connect_as(sql, "bob", sql.secured.keys["ann"]):
        pass


def connect_as(sql: SqlServer, user: str, password: str) -> Any:
    return adbc.connect(f"grpc://127.0.0.1:{sql.port}", db_kwargs={"username": user, "password": password})


def test_catalog_has_what_the_caller_sees(sql: SqlServer) -> None:
    with connect(sql) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "Tiltyard"
        assert connection.adbc_get_table_types() == ["BASE TABLE", "VIEW"]
        assert tables(connection) == {("public", "films"), ("public", "numbers"), ("sales", "ratings")}
        assert tables(connection, db_schema_filter="sal%") == {("sales", "ratings")}
        assert tables(connection, table_name_filter="n_mbers") == {("public", "numbers")}
        assert connection.adbc_get_table_schema("numbers") == NUMBERS.schema
    with connect(sql, "bob") as connection:
        assert tables(connection) == {("public", "films")}
    with connect(sql, "cy") as connection:
        assert tables(connection) == set()


def tables(connection: Any, **filters: str) -> set[tuple[str, str]]:
    (catalog,) = connection.adbc_get_objects(depth="all", **filters).read_all().to_pylist()
    return {
        (schema["db_schema_name"], table["table_name"])
        for schema in catalog["catalog_db_schemas"] or ()
        for table in schema["db_schema_tables"] or ()
    }


def test_names_are_of_the_database_of_the_metadata(sql: SqlServer) -> None:
    prefix = "adbc.flight.sql.rpc.call_header."
    headers = {f"{prefix}x-api-key": sql.secured.keys["administrator"], f"{prefix}database": "sales"}
    with adbc.connect(f"grpc://127.0.0.1:{sql.port}", db_kwargs=headers) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM ratings WHERE stars > ?", (3,))
            assert cursor.fetchall() == [(3,)]
            with pytest.raises(adbc_driver_manager.Error, match="not found"):
                cursor.execute("SELECT * FROM films")
        assert tables(connection) == {("public", "ratings")}
    headers = {f"{prefix}x-api-key": sql.secured.keys["administrator"], f"{prefix}namespace-path": "sales"}
    with (
        adbc.connect(f"grpc://127.0.0.1:{sql.port}", db_kwargs=headers) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM ratings")
        assert cursor.fetchall() == [(4,)]


def test_rows_are_within_policies(sql: SqlServer) -> None:
    with connect(sql, "bob") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT title, budget FROM films WHERE id > ? ORDER BY id", (1,))
        assert cursor.fetchall() == [("Brazil", None), ("Dune", None), ("Fargo", None)]


def test_what_changes_is_refused(sql: SqlServer) -> None:
    with connect(sql) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc_driver_manager.NotSupportedError, match="only read"):
            cursor.execute("DROP TABLE films")
        with pytest.raises(adbc_driver_manager.Error):
            cursor.executemany("INSERT INTO films VALUES (?)", [(1,)])
        with pytest.raises(adbc_driver_manager.NotSupportedError):
            cursor.adbc_ingest("new", pa.table({"a": [1]}))


def test_every_call_ends_as_the_table_of_the_docs_says(sql: SqlServer) -> None:
    db = sql.lancedb()
    db.create_table("types", TYPES)
    caller = AdbcCaller(f"grpc://127.0.0.1:{sql.port}", sql.secured.keys, {})
    seen = [call.observe() for call in (*adbc_calls(caller), *pandas_calls(caller))]
    assert [f"{call.call}: {call.outcome}" for call in seen if not call.is_expected] == []
    assert db.open_table("films").count_rows() == 6, "what was refused has changed nothing"
    db.drop_table("types")


def test_parameters_are_of_types_that_every_driver_binds(sql: SqlServer) -> None:
    casts = "CAST(? AS DECIMAL(10, 2)), CAST(? AS TIME), CAST(? AS TIMESTAMP), CAST(? AS VARCHAR)"
    with connect(sql) as connection, connection.cursor() as cursor:
        types = cursor.adbc_prepare(f"SELECT {casts}").types
        assert types == [pa.decimal128(10, 2), pa.time32("ms"), pa.timestamp("ms"), pa.string()]
        cursor.execute("SELECT CAST(id AS VARCHAR), left(title, 2), CAST(title AS BYTEA) FROM films WHERE id = 1")
        assert cursor.fetch_arrow_table().schema.types == [pa.string(), pa.string(), pa.binary()]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "only read"),
        ("UPDATE films SET nothing = 1", "only read"),
        ("COPY films TO 'films'", "only read"),
        ("SHOW ALL", "all that there is to show"),
        ("SHOW FUNCTIONS", "all that there is to show"),
    ],
)
def test_statement_that_is_not_served_is_refused_by_what_it_is(sql: SqlServer, query: str, message: str) -> None:
    with (
        connect(sql) as connection,
        connection.cursor() as cursor,
        pytest.raises(adbc_driver_manager.NotSupportedError, match=message),
    ):
        cursor.execute(query)


@pytest.mark.parametrize(("action", "message"), [("BeginTransaction", "transactions"), ("CloseSession", "sessions")])
def test_action_that_is_not_served_says_why(sql: SqlServer, action: str, message: str) -> None:
    with sql.channel() as wire, pytest.raises(grpc.RpcError, match=f"There are no {message}"):
        wire.stream("DoAction", MESSAGES["Action"](type=action), "Result")


def test_wrong_key_is_refused(sql: SqlServer) -> None:
    header = {"adbc.flight.sql.rpc.call_header.x-api-key": "tilt_no"}
    uri = f"grpc://127.0.0.1:{sql.port}"
    with (
        pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauth"),
        adbc.connect(uri, db_kwargs=header) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1")
