"""A Spark session of another version, with a connector of others, which times SQL statements.

python -m bench.spark.peer_session '{"spark.jars.packages": "…"}'

Its PySpark is found by PYTHONPATH (bench/spark/peers.py): nothing of Tiltyard is imported here.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from bench.spark.line_processes import answer, reserve_output


def main() -> None:
    """Answer orders until the standard input ends."""
    reserve_output()  # Spark's launcher prints what it fetches
    warehouse = tempfile.TemporaryDirectory(prefix="tiltyard-bench-")  # else a folder of the current one
    builder = SparkSession.builder.master("local[2]").config("spark.sql.warehouse.dir", warehouse.name)
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")

    def timed(statements: Sequence[str]) -> float:
        """Run statements; return the seconds of all."""
        started_at = time.perf_counter()
        for statement in statements:
            session.sql(statement).collect()
        return time.perf_counter() - started_at

    def rows(statement: str) -> list[list[Any]]:
        return [list(row) for row in session.sql(statement).collect()]

    answer({"time": timed, "rows": rows})
    session.stop()
    warehouse.cleanup()


if __name__ == "__main__":
    main()
