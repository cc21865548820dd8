"""Options of Spark's JVMs in tests: most live for seconds, too short for the optimizing compiler to be worth it.

Half of what a JVM with Spark computes in such a time is the loading of its classes. An archive of loaded classes
(Java's class data sharing) takes that away; it is made once, in pytest's cache, and Java ignores one that does not fit.

    python -m tests.services.jvm

makes it where it is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).resolve().parents[2]
CACHE = HOME / ".pytest_cache"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def _archive() -> Path:
    """Return the path of the archive of this Java and this Spark."""
    java = Path(shutil.which("java") or "java").resolve()
    spark = importlib.util.find_spec("pyspark")
    place = spark.origin if spark is not None else None
    key = hashlib.sha256(f"{java} {place} {version('pyspark')}".encode()).hexdigest()[:12]
    return CACHE / f"spark-{key}.jsa"


ARCHIVE = _archive()
# Warnings of an archive that does not fit would go to standard output.
WITH_ARCHIVE = f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
LIGHT_EXECUTORS = {"spark.executor.extraJavaOptions": WITH_ARCHIVE}
"""Spark's properties that give the executors of a cluster these options, too."""


def use_light_jvms() -> None:
    """Make these options the defaults of every driver of Spark that a test starts, in whichever process.

    Not by a folder of Spark's configuration: it would be the first of the class path, and no archive would fit.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", WITH_ARCHIVE)


def make_archive() -> None:
    """Make the archive, or wait for the process that makes it; once it is there, nothing."""
    if ARCHIVE.exists():
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ARCHIVE.exists():
            return
        with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
            file = Path(folder) / ARCHIVE.name
            command = [sys.executable, "-m", "tests.services.jvm", str(file)]
            without_defaults = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
            subprocess.run(command, cwd=HOME, check=True, timeout=600, stdout=subprocess.DEVNULL, env=without_defaults)
            file.rename(ARCHIVE)


def _use_spark(spark: SparkSession) -> None:
    """Have Spark load what most jobs need."""
    numbers = spark.createDataFrame([(1, "a", [1.0])], "id long, name string, vector array<float>").filter("id > 0")
    numbers.createOrReplaceTempView("numbers")
    spark.sql("SELECT id, count(*) AS n FROM numbers JOIN numbers USING (id) GROUP BY id ORDER BY n").toArrow()


def _record(archive: Path) -> None:
    """Run a session of Spark whose JVM writes an archive of its classes as it ends."""
    from tiltyard.pipeline.session import spark_session

    options = {"spark.driver.extraJavaOptions": f"{OPTIONS} -XX:ArchiveClassesAtExit={archive}"}
    os.environ.setdefault("PYTHONPATH", str(HOME))
    spark = spark_session("local[2]", config={"spark.ui.enabled": "false", **options})
    gateway = spark.sparkContext._gateway
    _use_spark(spark)
    spark.stop()
    gateway.proc.stdin.close()  # the JVM ends by itself, and writes the archive
    gateway.proc.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _record(Path(sys.argv[1]))
    else:
        make_archive()
