"""What Spark says of the application that a job runs in: who looks at the job finds the way to Spark's own pages."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tiltyard.pipeline.java import SparkMissingError, check_java
from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def application_facts(spark: SparkSession | None) -> dict[str, str]:
    """The application's id, the address of its pages while it runs, and its event log, as far as there are any.

    A Spark Connect session tells only its own id.
    """
    if spark is None:
        return {}
    if is_connect(spark):
        return {"spark_session": spark.session_id}  # type: ignore[attr-defined]  # Connect's session alone has one
    context = spark.sparkContext
    facts = {"spark_application": context.applicationId, "spark_version": context.version}
    if context.uiWebUrl:
        facts["spark_ui"] = context.uiWebUrl
    conf = context.getConf()
    if conf.get("spark.eventLog.enabled", "false") == "true":
        folder = conf.get("spark.eventLog.dir") or ""
        facts["spark_event_log"] = f"{folder.rstrip('/')}/eventlog_v2_{context.applicationId}"
        if conf.get("spark.eventLog.rolling.enabled", "true") == "false":
            facts["spark_event_log"] = f"{folder.rstrip('/')}/{context.applicationId}"
    return facts


def check_spark(master: str) -> None:
    """Raise SparkMissingError, which says what to install, unless sessions can be started here."""
    if find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed: pip install 'tiltyard[spark]'.")
    if not master.startswith("sc://"):
        check_java()
