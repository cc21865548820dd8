"""Statements in a Spark session of its own version, for `tests.conformance.lance_spark`, and what came of each.

    python spark_statements.py '{"spark.jars.packages": "…"}'

A line of standard input is a JSON object: `sql`, or `frame` (a name in FRAMES) with `table`. The answer to each is a
line of standard output that begins with MARK: `rows`, or `error` with its class in front. Imports nothing of the tests:
the interpreter that runs it has another PySpark.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

MARK = "\x1e"

FRAMES = {
    "create": lambda rows, table: rows.writeTo(table).create(),
    "append": lambda rows, table: rows.writeTo(table).append(),
    "overwrite": lambda rows, table: rows.writeTo(table).overwrite(F.lit(True)),
    "create_or_replace": lambda rows, table: rows.writeTo(table).createOrReplace(),
    "save_as_table": lambda rows, table: rows.write.format("lance").mode("append").saveAsTable(table),
    "insert_into": lambda rows, table: rows.write.insertInto(table),
    "count": lambda rows, table: [[rows.sparkSession.table(table).count()]],
    "first_version": lambda rows, table: [[rows.sparkSession.read.option("version", "1").table(table).count()]],
    "top": lambda rows, table: rows.sparkSession.table(table).orderBy(F.desc("id")).limit(2).collect(),
}
"""What is done with ten rows (id 0 to 9, name 'x') and a table."""


def answer(session: SparkSession, request: dict[str, str]) -> dict[str, Any]:
    try:
        if "sql" in request:
            rows_of_result = session.sql(request["sql"]).collect()
        else:
            rows = session.range(10).withColumn("name", F.lit("x"))
            rows_of_result = FRAMES[request["frame"]](rows, request["table"]) or []
    except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {"rows": [list(row) for row in rows_of_result]}


def main() -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    print(f"{MARK}{json.dumps({'rows': [[session.version]]})}", flush=True)  # noqa: T201  # the channel to the parent
    for line in sys.stdin:
        print(f"{MARK}{json.dumps(answer(session, json.loads(line)), default=str)}", flush=True)  # noqa: T201
    session.stop()


if __name__ == "__main__":
    main()
