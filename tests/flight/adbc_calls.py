"""What people do by ADBC, and by pandas over it, and what is expected of each call."""

from __future__ import annotations

import datetime as dt
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pandas as pd
import pyarrow as pa

from tests.conformance.observations import ObservedCall, outcome_of
from tests.flight.conftest import ENDLESS

ZONED = dt.datetime(2024, 2, 29, 12, 0, 0, 250_000, tzinfo=dt.UTC)
NOON = ZONED.replace(tzinfo=None)
TYPES = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "small": pa.array([-7, None], pa.int8()),
        "price": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(2024, 2, 29), None]),
        "time": pa.array([dt.time(12, 0, 0, 250_000), None], pa.time64("us")),
        "at": pa.array([NOON, None], pa.timestamp("us")),
        "zoned": pa.array([ZONED, None], pa.timestamp("us", "Europe/Berlin")),
        "payload": pa.array([b"ab", None]),
        "tags": pa.array([["x", "y"], None], pa.list_(pa.string())),
        "place": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "vector": pa.array([[1.0, 0.5], [0.0, 1.0]], pa.list_(pa.float32(), 2)),
        "half": pa.array([[1.0, 0.5], [0.0, 1.0]], pa.list_(pa.float16(), 2)),
        "kind": pa.array(["k", None]).dictionary_encode(),
    }
)
"""A row of values and one of nulls, but for vectors, where lancedb takes none."""
COUNTLESS = f"SELECT count(*) FROM ({ENDLESS}) WHERE text <> other"
READ_ONLY = "Queries only read"
NOT_INGESTED = "Rows are not ingested by SQL"


@dataclass(frozen=True, slots=True)
class SqlCall:
    """A call: its purpose, its code, its function, and its rows or a part of its error; `known` is a client's fault."""

    what: str
    written: str
    function: Callable[[], Any]
    rows: list[Any] | None = None
    refusal: str = ""
    known: str = ""

    def observe(self) -> ObservedCall:
        try:
            result = self.function()
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
            response: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
        else:
            response = {"rows": [list(row) for row in result] if isinstance(result, list) else []}
        return ObservedCall(self.what, self.written, outcome_of(response, self.rows, self.refusal, self.known), ())


@dataclass(frozen=True)
class AdbcCaller:
    """Connections of ADBC to one server, as whoever has a key; `options` are those of TLS."""

    uri: str
    keys: Mapping[str, str]
    options: Mapping[str, str]

    @contextmanager
    def connection(self, name: str = "administrator", **metadata: str) -> Iterator[Any]:
        headers = {"x-api-key": self.keys[name], **metadata}
        named = {f"adbc.flight.sql.rpc.call_header.{header}": value for header, value in headers.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Cannot disable autocommit")
            with adbc.connect(self.uri, db_kwargs={**named, **self.options}) as connection:
                yield connection

    def rows(self, query: str, parameters: Any = None, name: str = "administrator", **metadata: str) -> list[Any]:
        with self.connection(name, **metadata) as connection, connection.cursor() as cursor:
            cursor.execute(query, parameters)
            rows: list[Any] = cursor.fetchall()
            return rows

    def with_cursor(self, function: Callable[[Any], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with self.connection() as connection, connection.cursor() as cursor:
                return function(cursor)

        return call

    def with_connection(self, function: Callable[[Any], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with self.connection() as connection:
                return function(connection)

        return call

    def read_cancelled(self, query: str, *, reads: bool) -> None:
        """Run a query, and cancel it once its first rows were read, or half a second after it was sent."""
        with self.connection() as connection, connection.cursor() as cursor:
            if not reads:
                cursor.execute("SELECT 1")
                threading.Timer(0.5, cursor.adbc_cancel).start()
            cursor.execute(query)
            rows = cursor.fetch_record_batch()
            rows.read_next_batch()
            cursor.adbc_cancel()
            for _ in rows:
                pass

    def read_within_half_a_second(self) -> None:
        limits = dict.fromkeys(("query", "fetch"), "0.5")
        options = {f"adbc.flight.sql.rpc.timeout_seconds.{call}": seconds for call, seconds in limits.items()}
        with self.connection() as connection, connection.cursor(adbc_stmt_kwargs=options) as cursor:
            cursor.execute(COUNTLESS)
            cursor.fetchall()


def adbc_calls(caller: AdbcCaller) -> list[SqlCall]:
    """Return the calls of ADBC. They have the tables of `tests.flight.conftest`, and `types`."""
    return [*_reading(caller), *_binding(caller), *_describing(caller), *_stopping(caller), *_changing(caller)]


def _query(caller: AdbcCaller, what: str, query: str, rows: list[Any], *parameters: Any, **known: str) -> SqlCall:
    written = f'cursor.execute("{query}"{", (…,)" if parameters else ""})'
    return SqlCall(what, written, lambda: caller.rows(query, parameters or None), rows, **known)


def _reading(caller: AdbcCaller) -> list[SqlCall]:
    as_bob = "SELECT title, budget FROM films WHERE id < 5 ORDER BY id"
    return [
        _query(
            caller, "numbers, decimals and nulls", "SELECT small, price FROM types", [[-7, Decimal("1.10")], [None] * 2]
        ),
        _query(caller, "a timestamp without a zone", "SELECT at FROM types WHERE id = 1", [[NOON]]),
        _query(
            caller,
            "a timestamp with a zone",
            "SELECT zoned = '2024-02-29T12:00:00.250Z', zoned FROM types WHERE id = 1",
            [[True, TYPES["zoned"][0].as_py()]],
        ),
        _query(
            caller,
            "dates, times, bytes",
            "SELECT day, time, payload FROM types WHERE id = 1",
            [[dt.date(2024, 2, 29), dt.time(12, 0, 0, 250_000), b"ab"]],
        ),
        _query(
            caller,
            "lists, structs, vectors, dictionaries",
            "SELECT tags, place, vector, half, kind FROM types",
            [
                [["x", "y"], {"a": 1, "b": "x"}, [1.0, 0.5], [1.0, 0.5], "k"],
                [None, None, [0.0, 1.0], [0.0, 1.0], None],
            ],
        ),
        _query(caller, "a cast to text", "SELECT CAST(price AS VARCHAR) FROM types WHERE id = 1", [["1.10"]]),
        SqlCall(
            "Arrow, batch by batch",
            "cursor.fetch_record_batch()",
            caller.with_cursor(_count_numbers),
            [[200_000]],
        ),
        SqlCall(
            "partitions",
            "cursor.adbc_execute_partitions(…), .adbc_read_partition(…)",
            caller.with_cursor(_read_partitions),
            [[1], [2]],
        ),
        SqlCall(
            "within a row policy and a mask",
            f'cursor.execute("{as_bob}")',
            lambda: caller.rows(as_bob, name="bob"),
            [["Brazil", None], ["Dune", None]],
        ),
        SqlCall(
            "the plan of such a query",
            'cursor.execute("EXPLAIN …")',
            lambda: caller.rows("EXPLAIN SELECT id FROM films", name="bob"),
            refusal="its plan is not shown",
        ),
        SqlCall(
            "a database, by metadata",
            'adbc.flight.sql.rpc.call_header.database = "sales"',
            lambda: caller.rows("SELECT count(*) FROM ratings", database="sales"),
            [[4]],
        ),
        SqlCall(
            "a database, by the connection",
            'connection.adbc_current_db_schema = "sales"',
            caller.with_connection(lambda connection: setattr(connection, "adbc_current_db_schema", "sales")),
            refusal="There are no sessions",
        ),
    ]


def _count_numbers(cursor: Any) -> list[Any]:
    cursor.execute("SELECT n FROM numbers")
    return [[sum(batch.num_rows for batch in cursor.fetch_record_batch())]]


def _read_partitions(cursor: Any) -> list[Any]:
    partitions, _ = cursor.adbc_execute_partitions("SELECT id FROM types")
    rows = []
    for partition in partitions:
        cursor.adbc_read_partition(partition)
        rows += cursor.fetchall()
    return rows


def _binding(caller: AdbcCaller) -> list[SqlCall]:
    calls = [
        _query(caller, f"a parameter: {what}", f"SELECT id FROM types WHERE {column} = ?", [[1]], value)
        for what, column, value in (
            ("a decimal", "price", Decimal("1.10")),
            ("a date", "day", dt.date(2024, 2, 29)),
            ("a timestamp without a zone", "at", NOON),
            ("a timestamp with a zone", "zoned", ZONED),
            ("bytes", "payload", b"ab"),
            ("a text", "kind", "k"),
        )
    ]
    several = pa.table({"a": [1, 2]})
    return [
        *calls,
        _query(caller, "a parameter: null", "SELECT id FROM types WHERE kind IS NOT DISTINCT FROM ?", [[2]], None),
        _query(caller, "a parameter: a list", "SELECT id FROM types WHERE id = ANY(?)", [[1], [2]], [1, 2]),
        _query(caller, "parameters by number", "SELECT id FROM types WHERE id > $1 AND id < $2", [[2]], 1, 3),
        SqlCall(
            "parameters by name",
            'cursor.execute("… WHERE id > $low", {"low": 1})',
            lambda: caller.rows("SELECT id FROM types WHERE id > $low", {"low": 1}),
            refusal="$ without a number",
        ),
        SqlCall(
            "several rows of parameters",
            'cursor.execute("… WHERE id = ?", table)',
            lambda: caller.rows("SELECT id FROM types WHERE id = ?", several),
            refusal="Bind one row",
        ),
        SqlCall(
            "prepare",
            'cursor.adbc_prepare("SELECT id FROM types WHERE id > ?")',
            caller.with_cursor(lambda cursor: [[str(kind) for kind in _prepare(cursor).types]]),
            [["int64"]],
        ),
    ]


def _prepare(cursor: Any) -> pa.Schema:
    parameters: pa.Schema = cursor.adbc_prepare("SELECT id FROM types WHERE id > ?")
    return parameters


def _describing(caller: AdbcCaller) -> list[SqlCall]:
    return [
        SqlCall(
            "catalogs, schemas, tables, columns",
            'connection.adbc_get_objects(depth="all", table_name_filter="rat%")',
            caller.with_connection(_columns),
            [["tiltyard", "sales", "ratings", "film"], ["tiltyard", "sales", "ratings", "stars"]],
        ),
        SqlCall(
            "kinds of tables",
            "connection.adbc_get_table_types()",
            caller.with_connection(lambda connection: [connection.adbc_get_table_types()]),
            [["BASE TABLE", "VIEW"]],
        ),
        SqlCall(
            "the schema of a table",
            'connection.adbc_get_table_schema("types")',
            caller.with_connection(
                lambda connection: [[connection.adbc_get_table_schema("types").equals(TYPES.schema)]]
            ),
            [[True]],
        ),
        SqlCall(
            "the schema of a query",
            "cursor.adbc_execute_schema(…)",
            caller.with_cursor(lambda cursor: [cursor.adbc_execute_schema("SELECT id, price FROM types").names]),
            [["id", "price"]],
        ),
        SqlCall(
            "statistics",
            "connection.adbc_get_statistics()",
            caller.with_connection(lambda connection: connection.adbc_get_statistics()),
            refusal="not supported",
            known="the driver has no statistics",
        ),
    ]


def _columns(connection: Any) -> list[Any]:
    objects = connection.adbc_get_objects(depth="all", table_name_filter="rat%").read_all().to_pylist()
    return [
        [catalog["catalog_name"], schema["db_schema_name"], table["table_name"], column["column_name"]]
        for catalog in objects
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
        for column in table["table_columns"]
    ]


def _stopping(caller: AdbcCaller) -> list[SqlCall]:
    return [
        SqlCall(
            "cancel a query that has no rows yet",
            "cursor.adbc_cancel(), in another thread",
            lambda: _ended_by("context canceled", lambda: caller.read_cancelled(COUNTLESS, reads=False)),
            [["ended"]],
        ),
        SqlCall(
            "cancel a query whose rows are read",
            "cursor.adbc_cancel()",
            lambda: _ended_by("context canceled", lambda: caller.read_cancelled(ENDLESS, reads=True)),
            [["ended"]],
        ),
        SqlCall(
            "a time limit",
            'cursor(adbc_stmt_kwargs={"adbc.flight.sql.rpc.timeout_seconds.fetch": "0.5", …})',
            lambda: _ended_by("deadline exceeded", caller.read_within_half_a_second),
            [["ended"]],
        ),
    ]


def _ended_by(reason: str, function: Callable[[], None]) -> list[Any]:
    """Return that a call ended by an error with this reason. Raises any other error."""
    try:
        function()
    except Exception as error:
        if reason not in str(error).lower():  # the client's words for it, or the server's
            raise
        return [["ended"]]
    return [["went on"]]


def _changing(caller: AdbcCaller) -> list[SqlCall]:
    rows = pa.table({"id": [7]})
    statements = ("INSERT INTO films VALUES (7)", "CREATE TABLE more AS SELECT 1", "BEGIN")
    return [
        *(
            SqlCall(
                "a statement that changes something",
                f'cursor.execute("{text}")',
                lambda text=text: caller.rows(text),  # type: ignore[misc]  # bound at once
                refusal=READ_ONLY,
            )
            for text in statements
        ),
        SqlCall(
            "many rows of INSERT",
            'cursor.executemany("INSERT INTO films VALUES (?)", rows)',
            caller.with_cursor(lambda cursor: cursor.executemany("INSERT INTO films VALUES (?)", [(7,), (8,)])),
            refusal=READ_ONLY,
        ),
        *(
            SqlCall(
                "bulk ingestion",
                f'cursor.adbc_ingest("films", table, mode="{mode}")',
                caller.with_cursor(lambda cursor, mode=mode: cursor.adbc_ingest("films", rows, mode=mode)),
                refusal=NOT_INGESTED,
            )
            for mode in ("create", "append", "replace", "create_append")
        ),
        SqlCall(
            "commit, roll back",
            "connection.commit(), .rollback()",
            caller.with_connection(lambda connection: [[connection.commit(), connection.rollback()]]),
            [[None, None]],
        ),
    ]


def pandas_calls(caller: AdbcCaller) -> list[SqlCall]:
    """Return the calls of pandas, which takes a connection of ADBC."""
    frame = pd.DataFrame({"id": [7]})

    def read(what: str, written: str, rows: list[Any] | None, *query: Any, **options: Any) -> SqlCall:
        refusal, known = options.pop("refusal", ""), options.pop("known", "")
        function = options.pop("function", pd.read_sql)

        def call(connection: Any) -> list[Any]:
            read: list[Any] = function(*query, connection, **options).astype(object).to_numpy().tolist()
            return read

        return SqlCall(what, written, caller.with_connection(call), rows, refusal, known)

    titles, two = "SELECT id, title FROM films WHERE id < 3 ORDER BY id", [[1, "Alien"], [2, "Brazil"]]
    return [
        read("a query", "pd.read_sql(query, connection)", two, titles),
        read("an index", 'pd.read_sql(…, index_col="id")', [["Alien"], ["Brazil"]], titles, index_col="id"),
        read(
            "types of Arrow",
            'pd.read_sql(…, dtype_backend="pyarrow")',
            [[-7, Decimal("1.10")]],
            "SELECT small, price FROM types WHERE id = 1",
            dtype_backend="pyarrow",
        ),
        read("a table", 'pd.read_sql("types", connection)', None, "types"),
        read(
            "a table of a schema",
            'pd.read_sql_table("ratings", connection, schema="sales", columns=…)',
            None,
            "ratings",
            function=pd.read_sql_table,
            schema="sales",
            columns=["film"],
            refusal="Table not found: ratings",
            known="pandas leaves the schema out: use a query",
        ),
        read(
            "parameters",
            "pd.read_sql(…, params=(3,))",
            None,
            "SELECT id FROM films WHERE id < ?",
            params=(3,),
            refusal="not implemented",
            known="pandas has no parameters by ADBC: use a cursor",
        ),
        read(
            "in pieces",
            "pd.read_sql(…, chunksize=2)",
            None,
            titles,
            chunksize=2,
            refusal="not implemented",
            known="pandas has no pieces by ADBC: use `fetch_record_batch`",
        ),
        *(
            SqlCall(
                "write a frame",
                f'frame.to_sql("{name}", connection, if_exists="{exists}")',
                caller.with_connection(
                    lambda connection, name=name, exists=exists: frame.to_sql(name, connection, if_exists=exists)
                ),
                refusal=refusal,
            )
            for name, exists, refusal in (
                ("new", "fail", NOT_INGESTED),
                ("films", "append", NOT_INGESTED),
                ("films", "replace", READ_ONLY),
            )
        ),
    ]
