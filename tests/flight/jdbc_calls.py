"""What people do by the JDBC driver of Arrow Flight SQL, and what is expected of each call: of tests and
docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.observations import WORKS, ObservedCall, outcome_of
from tests.services.jdbc import run_with_driver

PROGRAM = Path(__file__).parent / "jdbc" / "JdbcProgram.java"
READ_ONLY = "Queries only read"


@dataclass(frozen=True, slots=True)
class JdbcCall:
    """A call that JdbcProgram.java makes by this name: what it prints, or a part of its error.

    `known` names a fault of the driver, which prints something wrong, or fails.
    """

    name: str
    written: str
    expected: str = ""
    refusal: str = ""
    known: str = ""
    end: str = ""
    """A part of the error by which it ends as it should."""

    def observe(self, answers: Mapping[str, str]) -> ObservedCall:
        text = answers.get(self.name, "error: it was not called")
        is_error = text.startswith("error: ")
        if self.end:
            outcome = WORKS if is_error and self.end in text else f"fails: {text}"
            return ObservedCall(self.name, self.written, outcome, ())
        if self.known and not is_error and text == self.expected:
            return ObservedCall(self.name, self.written, outcome_of({"error": text}, None, text, self.known), ())
        if self.known and not is_error:
            return ObservedCall(self.name, self.written, f"fails: {text}, not by {self.known}", ())
        response: dict[str, Any] = {"error": text} if is_error else {"rows": [[text]]}
        rows = [[self.expected]] if self.expected else None
        return ObservedCall(self.name, self.written, outcome_of(response, rows, self.refusal, self.known), ())


def jdbc_answers(driver: Path, url: str, key: str, bobs_key: str) -> dict[str, str]:
    """Run JdbcProgram.java; return what it has printed, by name. Raises AssertionError if it fails."""
    run = run_with_driver(driver, PROGRAM, url, key, bobs_key)
    assert run.returncode == 0, run.stderr
    return dict(line.split("\t", 1) for line in run.stdout.splitlines() if "\t" in line)


ZONE = "the driver takes it as of UTC, and shifts it to the zone of the process"
CALLS = (
    JdbcCall("select", "statement.executeQuery(query)", "[[1, Alien], [2, Brazil]]"),
    JdbcCall("many", "statement.executeQuery(query), 200,000 rows", "200000 19999900000"),
    JdbcCall("nulls", "result.getInt(1), .wasNull()", "-7 false 0 true"),
    JdbcCall("decimals", "result.getBigDecimal(1)", "1.10 null"),
    JdbcCall("bytes", "result.getBytes(1)", "2"),
    JdbcCall("dates", "result.getDate(1)", "2024-02-29"),
    JdbcCall("timestamps as local ones", "result.getObject(1, LocalDateTime.class)", "2024-02-29T12:00:00.250"),
    JdbcCall("timestamps without a zone", "result.getTimestamp(1)", "2024-02-29 11:00:00.25", known=ZONE),
    JdbcCall(
        "timestamps without a zone, of UTC",
        "result.getTimestamp(1, calendarOfUtc)",
        "2024-02-29 12:00:00.25",
    ),
    JdbcCall("times", "result.getTime(1)", "13:00:00.250", known=ZONE),
    JdbcCall("timestamps with a zone", "result.getObject(1, Instant.class)", "2024-02-29T12:00:00.250Z"),
    JdbcCall(
        "timestamps with a zone as objects",
        "result.getObject(1)",
        refusal="not implemented",
        known="it has no object for them: name a class",
    ),
    JdbcCall("lists", "result.getArray(1).getArray()", "[x, y]"),
    JdbcCall("vectors", "result.getArray(1).getArray()", "[1.0, 0.5]"),
    JdbcCall("structs", "result.getString(1)", '{"a":1,"b":"x"}'),
    JdbcCall(
        "structs as java.sql.Struct",
        "result.getObject(1, Struct.class)",
        refusal="Cannot cast",
        known="a struct is a map to it",
    ),
    JdbcCall("fields of structs and lists", "SELECT place['b'], tags[1], vector[1] …", "[[x, x, 1.0]]"),
    JdbcCall(
        "vectors of half floats", "result.getString(1)", "[15360,14336]", known="it reads their bits as whole numbers"
    ),
    JdbcCall(
        "vectors of half floats, cast",
        "SELECT arrow_cast(half, 'FixedSizeList(2, Float32)') …",
        "[[[1.0,0.5]]]",
    ),
    JdbcCall("dictionaries", "result.getString(1)", "0", known="it reads the number of a value, not the value"),
    JdbcCall("dictionaries, cast", "SELECT CAST(kind AS VARCHAR) …", "[[k]]"),
    JdbcCall("a cast to text", "SELECT CAST(price AS VARCHAR) …", "[[1.10]]"),
    JdbcCall("prepared", "prepared.setInt(1, 5) …, .executeQuery()", "[[Brazil, 5], [Dune, 5]]"),
    JdbcCall("parameter: decimal", "prepared.setBigDecimal(1, …), WHERE price = ?", "[[1]]"),
    JdbcCall("parameter: date", "prepared.setDate(1, …), WHERE day = ?", "[[1]]"),
    JdbcCall("parameter: timestamp", "prepared.setTimestamp(1, …), WHERE at = ?", "[[1]]"),
    JdbcCall(
        "parameter: timestamp with a zone",
        "prepared.setTimestamp(1, …), WHERE zoned = ?",
        "[]",
        known="it binds the clock of the process's zone as one of UTC",
    ),
    JdbcCall("parameter: bytes", "prepared.setBytes(1, …), WHERE payload = ?", "[[1]]"),
    JdbcCall("parameter: cast to text", "prepared.setString(1, …), CAST(? AS VARCHAR)", "[[x]]"),
    JdbcCall("parameter: cast to a decimal", "prepared.setBigDecimal(1, …), CAST(? AS DECIMAL(10, 2))", "[[1.10]]"),
    JdbcCall("parameter: cast to a timestamp", "prepared.setTimestamp(1, …), CAST(? AS TIMESTAMP)", "[[1]]"),
    JdbcCall(
        "parameter: array",
        "prepared.setArray(1, …)",
        refusal="not yet supported",
        known="it binds no arrays to a text",
    ),
    JdbcCall(
        "parameter: java.time",
        "prepared.setObject(1, LocalDate.of(…))",
        refusal="not yet supported",
        known="it binds no classes of java.time",
    ),
    JdbcCall("policies", "executeQuery(…), as whom a policy binds", "[[Brazil, null], [Dune, null]]"),
    JdbcCall("policies, plan", 'executeQuery("EXPLAIN …"), as whom a policy binds', refusal="its plan is not shown"),
    JdbcCall("catalogs", "metaData.getCatalogs()", "[[tiltyard]]"),
    JdbcCall("schemas", "metaData.getSchemas()", "[public, sales]"),
    JdbcCall("tables of a schema", 'metaData.getTables(null, "sales", "%", …)', "[ratings]"),
    JdbcCall(
        "columns",
        'metaData.getColumns(null, "public", "films", "%")',
        "[id BIGINT -5, title VARCHAR 12, owner VARCHAR 12, budget DOUBLE 8]",
    ),
    JdbcCall("precision of a decimal", "metaData.getColumns(…): COLUMN_SIZE, DECIMAL_DIGITS", "[price DECIMAL 10 2]"),
    JdbcCall("primary keys", "metaData.getPrimaryKeys(…)", "[]"),
    JdbcCall("a database", "jdbc:arrow-flight-sql://…&database=sales", "[[4]]"),
    JdbcCall("a default namespace", "jdbc:arrow-flight-sql://…&namespace-path=sales", "[[4]]"),
    JdbcCall("a catalog", "jdbc:arrow-flight-sql://…&catalog=tiltyard", refusal="There are no sessions"),
    JdbcCall("autocommit", "connection.setAutoCommit(false), .commit(), .rollback()", "true"),
    JdbcCall("BEGIN", 'statement.execute("BEGIN")', refusal=READ_ONLY),
    JdbcCall("insert", 'statement.executeUpdate("INSERT INTO films VALUES (7)")', refusal=READ_ONLY),
    JdbcCall("prepared insert", 'prepareStatement("INSERT INTO films VALUES (?)")', refusal="while preparing"),
    JdbcCall(
        "batch", "statement.addBatch(…), .executeBatch()", refusal="updateCounts", known="it fails before it sends any"
    ),
    JdbcCall("change", 'statement.executeUpdate("DROP TABLE films")', refusal=READ_ONLY),
    JdbcCall("create view", "CREATE MATERIALIZED VIEW …", "[[v, rebuild, 6, 2]]"),
    JdbcCall("most rows", "statement.setMaxRows(2)", "2"),
    JdbcCall("time limit", "statement.setQueryTimeout(1)", end="timed out after 1 SECONDS"),
    JdbcCall("cancel while rows are read", "statement.cancel()", end="canceled"),
    JdbcCall("leave rows unread", "result.close()", "closed"),
)
"""The calls by their names. A statement that has no rows yet is not in it: the driver's cancel does not reach it, and
waits for its end; `setQueryTimeout` does.
"""
