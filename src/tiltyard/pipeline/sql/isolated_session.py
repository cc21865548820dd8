"""The session that SQL of callers runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDING = ("ConstantFolding", "ConvertToLocalRelation")
FIXED: Mapping[str, str] = {
    "spark.sql.variable.substitute": "false",  # ${env:…} would be replaced before anything is parsed
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.session.timeZone": "UTC",
    # What these rules evaluate they evaluate in the driver, where nobody can cancel it; tasks do it as well.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _FOLDING
    ),
}
"""What no property of a job, and none of the operator's, changes."""


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session beside `spark` for SQL of callers: nobody else sees the names of its tables.

    Through Spark Connect it is `spark` itself, with what can be set there.
    """
    if is_connect(spark):
        spark.conf.set("spark.sql.variable.substitute", "false")
        return spark
    own = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.") and own.conf.isModifiable(name):
            own.conf.set(name, value)
    for name, value in FIXED.items():
        own.conf.set(name, value)
    return own


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark SQL, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
