"""Whether PySpark and Java are there, which no session starts without.

Apart from `session`, which Spark's Python workers import: errors of the namespace bring its client along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lance_namespace.errors import InvalidInputError

JAVA_NEEDED = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class SparkMissingError(InvalidInputError):
    """PySpark or Java is not there; the message is one sentence that says how to get it."""


def check_java() -> None:
    """Raise SparkMissingError if there is no Java 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_NEEDED} or newer"
    get = f"install it (Debian: `apt install openjdk-{JAVA_NEEDED}-jre-headless`) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        raise SparkMissingError(f"{needed}, and there is none: {get}.")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # the operator's own Java
    found = _VERSION.search(told)
    if found is None or int(found[1]) < JAVA_NEEDED:
        raise SparkMissingError(f"{needed}, and {java} is {found[1] if found else 'none'}: {get}.")


def pyspark_sql() -> Any:
    """PySpark's module for sessions. Raises SparkMissingError."""
    try:
        from pyspark import sql  # noqa: PLC0415  # an extra: the rest of the package does without
    except ImportError as error:
        raise SparkMissingError("PySpark is not installed: pip install 'tiltyard[spark]'.") from error
    return sql
