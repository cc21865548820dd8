"""The session of local mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.jvm import ARCHIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_local_session_listens_on_loopback_alone(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") in ("localhost", "127.0.0.1")  # by its name, where that has one
    assert spark.sparkContext.master == "local[2,4]"


def test_jvm_of_tests_has_its_classes_out_of_the_archive(spark: SparkSession) -> None:
    """Java says nothing of an archive that it does not use, and every JVM of a test then costs 8 s more."""
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(ARCHIVE) in Path(f"/proc/{pid}/maps").read_text()
