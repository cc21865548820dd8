"""The session of local mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


@pytest.mark.extended
def test_start_of_a_session_says_nothing_of_log_levels_and_forks(environ: dict[str, str]) -> None:
    program = (
        "import lance\nfrom tiltyard.pipeline.session import spark_session\n"
        "session = spark_session('local[1]', config={'spark.ui.enabled': 'false', 'spark.driver.memory': '1g'})\n"
        "assert session.range(3).count() == 3\nsession.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environ, capture_output=True, check=True)
    lines = done.stderr.decode().splitlines()
    assert [line for line in lines if "incubator" not in line and "Picked up" not in line] == []
