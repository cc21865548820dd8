"""Columns of SQL: the server's own worker and Spark compute the same values, and fail on the same rows."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from lancedb.exceptions import JobFailedError

from tests.services.server import ServerProcess
from tiltyard.pipeline.backfill.job import backfill
from tiltyard.pipeline.catalog_client import connection, table
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = [1_709_251_199_999_999, -82_800_000_000, None] * 2  # microseconds, of 2024-02-29 and 1969-12-31
ROWS = pa.table(
    {
        "i": pa.array([1, -2, None, 9_000_000_000, 0, 7], pa.int64()),
        "b": pa.array([127, -128, None, 0, 1, 2], pa.int8()),
        "f": pa.array([0.5, float("nan"), None, float("inf"), -0.0, 1e300], pa.float64()),
        "d": pa.array([Decimal("12.34"), Decimal("-0.01"), None, Decimal("99999999.99"), Decimal(0), Decimal(1)],
                      pa.decimal128(10, 2)),
        "s": pa.array(["12", "Straße", None, "", " b ", "é🎈x"]),
        "t": pa.array(TIMES, pa.timestamp("us")),
        "z": pa.array(TIMES, pa.timestamp("us", "UTC")),
        "day": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1, 1, 1)] * 2),
        "flag": pa.array([True, False, None] * 2),
        "v": pa.array([[1.0, 2.0], [0.0, -1.0], None] * 2, pa.list_(pa.float32(), 2)),
        "words": pa.array([["a", None], [], None] * 2, pa.list_(pa.string())),
        "info": pa.array([{"x": 1, "y": "p"}, {"x": None, "y": "q"}, None] * 2),
    }
)  # fmt: skip

EXPRESSIONS = (
    "i + 1", "i * 3 - b", "i % 3", "-i", "abs(i)", "f * 2.0", "f / 3", "round(f)", "sqrt(f)", "power(f, 2)", "i / 2",
    "d + d", "d * d", "d / 3", "cast(d as int)", "cast(i as double)", "cast(b as string)", "cast(f as string)",
    "cast(i as decimal(20, 3))", "cast(t as date)", "cast(t as string)", "cast(z as string)", "cast(day as timestamp)",
    "cast(flag as int)", "upper(s)", "lower(s)", "length(s)", "octet_length(s)", "concat(s, '!')", "s || i",
    "reverse(s)", "replace(s, 'b', 'cc')", "starts_with(s, 'S')", "regexp_match(s, '[0-9]+')",
    "split_part(s, 'r', 1)", "lpad(s, 5, '*')", "coalesce(s, 'none')", "nullif(i, 0)", "i > 1 AND flag", "NOT flag",
    "s LIKE '%a%'", "i IN (1, 7)", "i BETWEEN -2 AND 1", "s IS NULL", "greatest(i, b)", "date_trunc('month', t)",
    "date_part('year', z)", "to_timestamp(i)", "md5(s)", "sha256(s)", "info.x + 1", "info.y",
    "array_length(words)", "words[1]", "array_to_string(words, ',')", "v[1]", "encode(s, 'hex')", "ascii(s)",
)  # fmt: skip

FAILING = ("10 / i", "cast(s as int)", "cast(i as tinyint)", "to_timestamp(s)", "cast(d as decimal(3, 2))")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("expressions"))
    yield server
    server.stop()


def refresh_both(server: ServerProcess, spark: SparkSession, name: str, column: str) -> list[Any]:
    """Refresh a column of two equal tables, one by the server and one by Spark; return the errors."""
    catalog, outcomes = connection(server.url), list[Any]()
    db = lancedb.connect("db://main", api_key="any", host_override=server.url)
    for refresh in (
        lambda: db.open_table(f"{name}_server").refresh_column_async(column).wait(),
        lambda: backfill(LocalRun(), catalog, spark, f"{name}_spark", column),
    ):
        try:
            refresh()
            outcomes.append(None)
        except (JobFailedError, InvalidInputError) as error:
            outcomes.append(type(error))
    return outcomes


def create_both(server: ServerProcess, name: str, expressions: tuple[str, ...]) -> list[Any]:
    """Create two equal tables of two fragments, with a column for each expression."""
    db = lancedb.connect("db://main", api_key="any", host_override=server.url)
    for suffix in ("server", "spark"):
        created = db.create_table(f"{name}_{suffix}", ROWS)
        created.add(ROWS)
        created.delete("i = 7")
        created.add_columns(computed={f"c{number}": text for number, text in enumerate(expressions)})
    catalog = connection(server.url)
    return [table(catalog, f"{name}_{suffix}") for suffix in ("server", "spark")]


def test_server_and_spark_compute_the_same_values(
    server: ServerProcess, spark: SparkSession, fresh: Callable[[str], str]
) -> None:
    expressions = EXPRESSIONS[::4]
    check_same(server, spark, fresh("same"), expressions)


@pytest.mark.extended
@pytest.mark.timeout(900)  # a Spark job for each expression
def test_server_and_spark_compute_the_same_values_of_all_expressions(
    server: ServerProcess, spark: SparkSession, fresh: Callable[[str], str]
) -> None:
    check_same(server, spark, fresh("all"), EXPRESSIONS)


def check_same(server: ServerProcess, spark: SparkSession, name: str, expressions: tuple[str, ...]) -> None:
    by_server, by_spark = create_both(server, name, expressions)
    outcomes = {text: refresh_both(server, spark, name, f"c{number}") for number, text in enumerate(expressions)}
    assert not {text: outcome for text, outcome in outcomes.items() if outcome != [None, None]}
    found = [other.dataset().to_table() for other in (by_server, by_spark)]
    for number, text in enumerate(expressions):
        one, other = (rows[f"c{number}"].combine_chunks() for rows in found)
        assert one.type == other.type and one.to_pylist().__repr__() == other.to_pylist().__repr__(), text
        assert len(one) == 10 and one.null_count < 10, text


def test_what_fails_in_spark_fails_in_the_server_and_changes_nothing(
    server: ServerProcess, spark: SparkSession, fresh: Callable[[str], str]
) -> None:
    name = fresh("failing")
    tables = create_both(server, name, FAILING)
    versions = [other.latest_version() for other in tables]
    for number, text in enumerate(FAILING):
        outcomes = refresh_both(server, spark, name, f"c{number}")
        assert outcomes in ([JobFailedError, InvalidInputError], [None, None]), text
        if outcomes[0]:
            assert [other.latest_version() for other in tables] == versions, text
        else:
            found = [other.dataset().to_table()[f"c{number}"].to_pylist() for other in tables]
            assert found[0] == found[1], text
            versions = [other.latest_version() for other in tables]


def test_spark_refreshes_where_the_setting_says_so(spark: SparkSession, tmp_path: Any) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_COLUMN_REFRESH_ROWS": "11"})
    try:
        small, large = (create_both(server, name, ("i + 1",))[0] for name in ("small", "large"))
        large.dataset().insert(ROWS)
        kinds = []
        for target in (small, large):
            request = upstream.AlterTableBackfillColumnsRequest(id=target.id, column="c0")
            job_id = target.client.alter_table_backfill_columns(request).job_id
            db = lancedb.connect("db://main", api_key="any", host_override=server.url)
            job = db.open_job(job_id)
            job.refresh()
            kinds.append(job.job_type)
        assert kinds == ["refresh_column", "backfill"]
    finally:
        server.stop()
