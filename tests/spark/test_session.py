"""The session of local mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_local_session_listens_on_loopback_alone(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") in ("localhost", "127.0.0.1")  # by its name, where that has one
    assert spark.sparkContext.master == "local[2,4]"
