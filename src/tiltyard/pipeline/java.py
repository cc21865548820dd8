"""Check that PySpark and Java are available, without which no session starts; say why Spark failed, or has ended.

Separate from `session`, which Spark's Python workers import: the namespace's errors import its client.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from tiltyard.pipeline.runs import RunCanceledError
from tiltyard.runtime.child_process import run_command

MIN_JAVA_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class SparkMissingError(InvalidInputError):
    """PySpark or Java is missing; the message says how to install it."""


class SparkEndedError(ServiceUnavailableError):
    """Spark's JVM has ended: this process can drive no job with it any more, but another one can."""

    attempts = 2
    """Attempts after which a job fails: a job that ended the JVM would end the next one, too."""


@contextmanager
def detect_jvm_end() -> Iterator[None]:
    """Raise SparkEndedError for any error of the block that arises because this process's JVM has ended."""
    try:
        yield
    except RunCanceledError:
        raise
    except Exception as error:
        if _is_jvm_alive():
            raise
        raise SparkEndedError(
            "Spark's JVM ended while the job ran, most likely for lack of memory: let the job process less at once, or "
            "let the operator give its drivers more (the setting spark_memory)."
        ) from error


class SparkFailedError(InternalError):
    """Spark failed, and not because of an argument; the message says how, its cause has the details."""


_WORKER_ENDED = "Python worker exited unexpectedly"
_CAUSE = re.compile(r"^(?:Caused by: |: )([\w.$]+)(?:: (\[[A-Z_.]+\]))?", re.MULTILINE)
"""The class of an error of Java and of each of its causes, with the name of Spark's error, if it has one."""


def describe_java_error(error: Exception) -> LanceNamespaceError:
    """Return an error that says in a sentence why Spark failed, without values of rows, which Java's messages have."""
    text = str(error)
    if _WORKER_ENDED in text:
        return InvalidInputError(
            "The function ended the Python process that called it, in each attempt, as a segmentation fault or too "
            "little memory does. With memory_mb or batch_seconds it is called in a process of its own, and on_error "
            "says what becomes of a row that ends it."
        )
    causes = _CAUSE.findall(text)
    name, condition = causes[-1] if causes else (type(error).__name__, "")
    shown = f"{name.rpartition('.')[2]} {condition}".strip()
    return SparkFailedError(f"Spark failed in a task, in all of its attempts: {shown}. Spark's log has the details.")


def _is_jvm_alive() -> bool:
    """Return whether this process's JVM, if it has one, still responds."""
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
    hint = f"install it (Debian: `apt install openjdk-{MIN_JAVA_VERSION}-jre-headless`) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        raise SparkMissingError(f"{needed}, and there is none: {hint}.")
    version_text = run_command([java, "-version"], text=True).stderr
    match = _VERSION.search(version_text)
    if match is None or int(match[1]) < MIN_JAVA_VERSION:
        raise SparkMissingError(f"{needed}, and {java} is {match[1] if match else 'none'}: {hint}.")


def pyspark_sql() -> Any:
    """PySpark's module for sessions. Raises SparkMissingError."""
    try:
        from pyspark import sql  # noqa: PLC0415  # an extra: the rest of the package does without
    except ImportError as error:
        raise SparkMissingError("PySpark is not installed: pip install 'tiltyard[spark]'.") from error
    return sql


def check_spark(master: str) -> None:
    """Raise SparkMissingError, which says what to install, unless sessions of this master can be started here."""
    if find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed: pip install 'tiltyard[spark]'.")
    if not master.startswith("sc://"):
        check_java()
