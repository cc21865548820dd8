"""The functions that users' SQL may call, compared with the running Spark: each of its functions is on one list."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.model.jobs import DRIVER_VARIABLE
from tiltyard.pipeline.plans.rows import _query
from tiltyard.pipeline.session import isolate_session
from tiltyard.pipeline.spark_sql.allow_list import ALLOWED, ALLOWED_NAMES, REFUSED, REFUSED_REASONS
from tiltyard.pipeline.spark_sql.checks import analyze_sql, check_analyzed_query, check_parsed_query
from tiltyard.pipeline.spark_sql.spark_plans import to_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILMS = """
SELECT 1L id, 'a b' text, array(1.0f) vector, map('a', 1) m, named_struct('x', 1, 'y', array(named_struct('z', 1))) st,
timestamp '2020-01-01' ts, date '2020-01-01' d, cast(1 as decimal(10, 2)) dec, x'00' bin
"""

WITH_OPTIONS = {"from_csv", "from_json", "schema_of_csv", "schema_of_json", "to_csv", "to_json"}
"""Functions whose examples in Spark have options, which a query may not use."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Return a session with a table of one row."""
    isolated = isolate_session(spark)
    isolated.sql(FILMS).createOrReplaceTempView("films")
    return isolated


def registered(spark: SparkSession, registry: str) -> dict[str, Any]:
    """Return Spark's functions, by name."""
    function_registry = getattr(spark._jsparkSession.sessionState(), registry)()
    names = {str(identifier.funcName()): identifier for identifier in to_list(function_registry.listFunction())}
    return {name: function_registry.lookupFunction(identifier).get() for name, identifier in names.items()}


def test_every_function_of_this_spark_is_allowed_or_refused_with_a_reason(session: SparkSession) -> None:
    names = registered(session, "functionRegistry").keys()
    unknown = names - ALLOWED_NAMES - REFUSED_REASONS.keys()
    assert not unknown, f"review what these do, and put each on a list in sql/allow_list.py: {sorted(unknown)}"
    assert not (ALLOWED_NAMES | REFUSED_REASONS.keys()) - names, "the lists name functions that Spark lacks"
    assert not ALLOWED_NAMES & REFUSED_REASONS.keys()
    assert all(group.reason and group.names for group in (*ALLOWED, *REFUSED))


def test_every_function_that_makes_a_table_is_refused(session: SparkSession) -> None:
    for name in registered(session, "tableFunctionRegistry"):
        with pytest.raises(InvalidInputError, match="UnresolvedTableValuedFunction"):
            check_parsed_query(session, f"SELECT * FROM {name}(1)", [])


def test_every_function_that_is_refused_is_refused_by_its_reason_however_it_is_called(session: SparkSession) -> None:
    for name, reason in REFUSED_REASONS.items():
        for query in (f"SELECT {name}(1)", f"SELECT `{name.upper()}`(1)", f"SELECT 1 LIMIT {name}('a', 'b')"):
            with pytest.raises(InvalidInputError, match=re.escape(reason[:40])):
                check_parsed_query(session, query, [])
        with pytest.raises(InvalidInputError, match="may not call"):
            check_parsed_query(session, f"SELECT system.builtin.{name}(1)", [])
        with pytest.raises(InvalidInputError, match="may not call"):
            check_parsed_query(session, f"SELECT x FROM films LATERAL VIEW {name}(1) t AS x", ["films"])


def test_function_on_no_list_is_refused(session: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match="may not call of_a_new_spark"):
        check_parsed_query(session, "SELECT of_a_new_spark(1)", [])


@pytest.mark.extended
@pytest.mark.timeout(900)  # hundreds of queries, each node of which is asked for over a socket
def test_an_example_of_every_allowed_function_passes_both_checks(session: SparkSession) -> None:
    failures, passed = [], set()
    for name, info in registered(session, "functionRegistry").items():
        if name not in ALLOWED_NAMES:
            continue
        for query in re.findall(r"> (SELECT .*?);\s*$", info.getExamples() or "", re.MULTILINE):
            try:
                check_parsed_query(session, query, [])
                check_analyzed_query(analyze_sql(session, query))
            except InvalidInputError as error:
                if "Spark cannot" not in str(error):
                    failures.append(f"{name}: {query}: {error}")
                    break
                # The example needs a setting of Spark, or is cut in its documentation: the next one may be whole.
            else:
                passed.add(name)
                break
    assert len(passed) > 400, sorted(ALLOWED_NAMES - passed)
    unexpected = [failure for failure in failures if failure.split(":")[0] not in WITH_OPTIONS]
    assert not unexpected, "\n".join(unexpected)


def test_sql_of_a_pipeline_is_checked_on_a_worker_and_unchecked_in_a_process_of_the_caller(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT version() AS a FROM range(3)"
    assert _query(session, query, []).columns == ["a"]
    monkeypatch.setenv(DRIVER_VARIABLE, "worker")
    for text in (query, "SELECT java_method('java.lang.System', 'getenv', 'HOME')", "SELECT * FROM parquet.`/etc`"):
        with pytest.raises(InvalidInputError, match="query"):
            _query(session, text, [])
    assert _query(session, "SELECT upper(text) AS a FROM films", ["films"]).columns == ["a"]
