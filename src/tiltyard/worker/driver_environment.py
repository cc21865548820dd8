"""Variables of driver processes: those that they inherit, and those that they are handed in private.

Whatever is in a driver's environment is in that of its JVM, of Spark's Python workers, and in `/proc` for as long as
they live. So a driver inherits what it needs to start, by an allow list; all else that the worker has (the catalog's
database, keys of clouds, passwords of proxies) it is handed with its orders, and has in its memory alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|TERM|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
    r"|JAVA_\w+|JDK_JAVA_OPTIONS|SPARK_\w+|PYSPARK_\w+|HADOOP_\w+|YARN_\w+|KUBERNETES_\w+|KUBECONFIG|KRB5\w*|PYTHON\w*"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|XDG_\w+|MALLOC_\w+|OMP_NUM_THREADS|ARROW_\w+|LANCE_\w+"
    r"|RUST_LOG|RUST_BACKTRACE|COVERAGE_\w+|COV_\w+|TILTYARD_FAULT"
)
"""What a process needs to find its programs, its language, its temporary files and its cluster."""

_SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|(?:^|_)KEY(?:$|_)", re.IGNORECASE)
"""What is no variable to inherit even if its name begins like one (HADOOP_CREDSTORE_PASSWORD)."""

_OURS = ("TILTYARD_JOB_", "TILTYARD_HANDED_DOWN")
"""What one process of ours tells another: not handed on."""


def inherited(variables: Mapping[str, str], further: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a driver inherits; `further` are names that the operator adds."""
    return {name: value for name, value in variables.items() if name in further or _is_inherited(name)}


def handed(variables: Mapping[str, str], further: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a driver is handed in private: all others."""
    left = {name: value for name, value in variables.items() if not (name in further or _is_inherited(name))}
    return {name: value for name, value in left.items() if not name.startswith(_OURS)}


def _is_inherited(name: str) -> bool:
    return bool(_INHERITED.fullmatch(name)) and not _SECRET.search(name)
