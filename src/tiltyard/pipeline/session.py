"""Get the Spark session that jobs run in: `local[*]` by default, a cluster or Spark Connect by configuration.

Users' SQL runs in a session of its own (`isolate_session`).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.model.settings.spark_properties import to_java_properties
from tiltyard.pipeline.private_variables import withhold_variables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
TASK_ATTEMPTS = 4
"""Attempts of a task in local mode, where Spark's default is one: the death of a worker does not fail the job."""

DEFAULTS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # of Arrow batches from Python, whatever the machine's zone
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.timeType.enabled": "true",  # else aggregates over a table with a column of times fail, of others too
    "spark.sql.legacy.jdbc.timeMapping.enabled": "true",  # `tiltyard.Jdbc` tells times of day by their mapping
    "spark.sql.variable.substitute": "false",  # else SQL reads the driver's environment: ${env:…}
}
_LOCAL_MASTER = re.compile(r"local(\[([^,\]]+)\])?")


def spark_session(
    master: str | None = None,
    *,
    remote: str | None = None,
    name: str = "tiltyard",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Get the session of this process, or start one.

    `master` is what Spark takes (`local[*]`, `spark://…`, `yarn`, `k8s://…`), `remote` a Spark Connect server
    (`sc://…`); without either, SPARK_REMOTE and spark-submit's configuration decide, and then it is `local[*]`.
    `config` are Spark's own properties. Raises SparkMissingError.
    """
    from tiltyard.pipeline.java import check_java, pyspark_sql  # noqa: PLC0415  # tasks import this module

    sql = pyspark_sql()
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    is_new = False
    builder = sql.SparkSession.builder.appName(name)
    if remote:
        builder = builder.remote(remote)
    else:
        is_new = sql.SparkSession.getActiveSession() is None  # an existing session keeps its log level
        if is_new:
            with withhold_variables():
                check_java()
        master = _with_retries(master or _submitted_master() or LOCAL_MASTER)
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else "python3", of whatever environment
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else the machine's name, if it can be looked up
        if master != _SUBMITTED:
            builder = builder.master(master)
        builder = builder.config(map=dict(DEFAULTS))
        if is_new:
            _start_jvm({**({"spark.master": master} if master != _SUBMITTED else {}), **DEFAULTS, **(config or {})})
    session: SparkSession = builder.config(map=dict(config or {})).getOrCreate()
    if is_new:
        session.sparkContext.setLogLevel("ERROR")
    return session


class LazySession:
    """A session that starts when it is first needed: small work is done by threads, without Spark."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self.on_start: Callable[[SparkSession], None] | None = None

    def get(self) -> SparkSession:
        """Return the session; start it the first time. Raises SparkMissingError."""
        if self._session is None:
            self._session = self._start()
            if self.on_start is not None:
                self.on_start(self._session)
        return self._session


def started(spark: SparkSession | LazySession) -> SparkSession:
    """Return a session that has started. Raises SparkMissingError."""
    return spark.get() if isinstance(spark, LazySession) else spark


def _start_jvm(config: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it exists, with its properties in a file that is deleted once it runs.

    PySpark itself would put them on its command line, which everybody on the machine can read.
    """
    from pyspark import SparkContext  # noqa: PLC0415  # an extra

    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    if SparkContext._gateway is not None or _submitted_master() or "--properties-file" in arguments:
        return
    with (
        withhold_variables(),
        tempfile.TemporaryDirectory(prefix="tiltyard-spark-") as folder,
        _restored("PYSPARK_SUBMIT_ARGS"),
    ):
        file = Path(folder) / "spark.properties"
        file.touch(0o600)
        file.write_text(to_java_properties(_with_quiet_log(config, Path(folder))))
        properties_argument = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{properties_argument} {arguments}"
        with warnings.catch_warnings():  # the JVM's process is forked, and runs none of Lance
            warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
            SparkContext._ensure_initialized()


_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET_LOG = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""The driver's log from its start on, as `spark_session` sets its level later: without what Spark says of itself."""


def _with_quiet_log(config: Mapping[str, str], folder: Path) -> Mapping[str, str]:
    """Return properties by which the JVM logs errors alone from its start on, unless its log is set up otherwise.

    The log is set up as the JVM starts, before `folder` is deleted.
    """
    options = config.get(_JAVA_OPTIONS, "")
    conf_folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    if "log4j" in options or (Path(conf_folder) / "log4j2.properties").exists():
        return config
    file = folder / "log4j2.properties"
    file.write_text(_QUIET_LOG)
    return {**config, _JAVA_OPTIONS: f"-Dlog4j2.configurationFile=file:{file} {options}".strip()}


@contextmanager
def _restored(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has no `sparkContext`."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def task_slots(spark: SparkSession | LazySession | None) -> int:
    """Return how many tasks run at once, at least one; without a session, the machine's CPUs.

    On Spark Connect, a small query finds out.
    """
    if spark is None:
        return os.cpu_count() or 1
    spark = started(spark)
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own custom; this module loads without it

    parts = spark.range(1 << 20).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part").alias("last")).toArrow().column("last")[0].as_py()) + 1


def describe_application(spark: SparkSession | None) -> dict[str, str]:
    """Return figures of a job that lead to Spark's own pages: the application's id, its UI's address, its event log.

    Each is there as far as Spark has it. A Spark Connect session has only its own id.
    """
    if spark is None:
        return {}
    if is_connect(spark):
        return {"spark_session": spark.session_id}  # type: ignore[attr-defined]  # Connect's session alone has one
    context = spark.sparkContext
    figures = {"spark_application": context.applicationId, "spark_version": context.version}
    if context.uiWebUrl:
        figures["spark_ui"] = context.uiWebUrl
    conf = context.getConf()
    if conf.get("spark.eventLog.enabled", "false") == "true":
        folder = conf.get("spark.eventLog.dir") or ""
        figures["spark_event_log"] = f"{folder.rstrip('/')}/eventlog_v2_{context.applicationId}"
        if conf.get("spark.eventLog.rolling.enabled", "true") == "false":
            figures["spark_event_log"] = f"{folder.rstrip('/')}/{context.applicationId}"
    return figures


_SUBMITTED = "submitted"


def _submitted_master() -> str | None:
    """Return a marker where spark-submit started the process, as its variable says: the master is chosen already."""
    return _SUBMITTED if os.environ.get("PYSPARK_GATEWAY_PORT") else None


def _with_retries(master: str) -> str:
    """Return a local master with attempts per task."""
    match = _LOCAL_MASTER.fullmatch(master)
    return f"local[{match[2] or 1},{TASK_ATTEMPTS}]" if match else master


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
