"""Whether PySpark and Java are there, which no session starts without.

Apart from `session`, which Spark's Python workers import: errors of the namespace bring its client along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from tiltyard.pipeline.runs import RunCanceledError

MIN_JAVA_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class SparkMissingError(InvalidInputError):
    """PySpark or Java is not there; the message is one sentence that says how to get it."""


class SparkEndedError(ServiceUnavailableError):
    """Spark's JVM is gone: this process can drive no job with it any more, and another one may."""

    attempts = 2
    """After how many of them a job fails: one that ended the JVM itself would end the next one, too."""


@contextmanager
def detect_jvm_end() -> Iterator[None]:
    """Raise SparkEndedError for whatever fails in the block because the JVM of this process has ended."""
    try:
        yield
    except RunCanceledError:
        raise
    except Exception as error:
        if _is_jvm_alive():
            raise
        raise SparkEndedError(
            "Spark's JVM ended while the job ran, most likely for want of memory: let the job make less at once, or "
            "let the operator give its drivers more (the setting spark_memory)."
        ) from error


def _is_jvm_alive() -> bool:
    """Tell whether the JVM of this process, if it has one, still does what it is told."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; an extra
    from pyspark import SparkContext  # noqa: PLC0415  # an extra: the rest of the package does without

    jvm, context = SparkContext._jvm, SparkContext._active_spark_context
    if jvm is None:
        return True
    try:
        jvm.java.lang.System.nanoTime()
        return context is None or not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def check_java() -> None:
    """Raise SparkMissingError if there is no Java 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needed = f"Spark needs Java {MIN_JAVA_VERSION} or newer"
    get = f"install it (Debian: `apt install openjdk-{MIN_JAVA_VERSION}-jre-headless`) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        raise SparkMissingError(f"{needed}, and there is none: {get}.")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # the operator's own Java
    found = _VERSION.search(told)
    if found is None or int(found[1]) < MIN_JAVA_VERSION:
        raise SparkMissingError(f"{needed}, and {java} is {found[1] if found else 'none'}: {get}.")


def pyspark_sql() -> Any:
    """PySpark's module for sessions. Raises SparkMissingError."""
    try:
        from pyspark import sql  # noqa: PLC0415  # an extra: the rest of the package does without
    except ImportError as error:
        raise SparkMissingError("PySpark is not installed: pip install 'tiltyard[spark]'.") from error
    return sql
