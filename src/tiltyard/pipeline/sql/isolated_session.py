"""The isolated session in which users' SQL runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONSTANT_FOLDING_RULES = ("ConstantFolding", "ConvertToLocalRelation")
FIXED_PROPERTIES: Mapping[str, str] = {
    "spark.sql.variable.substitute": "false",  # ${env:…} would be replaced before anything is parsed
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.session.timeZone": "UTC",
    # These rules would evaluate constants in the driver, where they cannot be canceled; tasks evaluate them as well.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _CONSTANT_FOLDING_RULES
    ),
}
"""Properties that neither a job nor the operator can change."""


def isolate_session(spark: SparkSession) -> SparkSession:
    """Return a new session for users' SQL: no other session sees the names of its tables.

    On Spark Connect it is `spark` itself, with the properties that can be set there.
    """
    if is_connect(spark):
        spark.conf.set("spark.sql.variable.substitute", "false")
        return spark
    isolated = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.") and isolated.conf.isModifiable(name):
            isolated.conf.set(name, value)
    for name, value in FIXED_PROPERTIES.items():
        isolated.conf.set(name, value)
    return isolated


def quote_identifier(name: str) -> str:
    """Return a name as a quoted identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
