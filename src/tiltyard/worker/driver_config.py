"""Configuration of a driver process: its command line, its orders (the catalog, where Spark runs), and its environment.

Whatever is in a driver's environment is in that of its JVM, of Spark's Python workers, and in `/proc` for as long as
they live. So a driver inherits what it needs to start, by an allow list; all other variables of the worker (the
catalog's database, keys of clouds, passwords of proxies) come with its orders, and are in its memory alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from tiltyard import __version__
from tiltyard.config import Settings
from tiltyard.model.jobs import DRIVER_VARIABLE
from tiltyard.model.settings.openlineage import OpenLineageSettings, read_key
from tiltyard.model.settings.spark_properties import check_spark_properties, to_java_properties
from tiltyard.storage.roots import SPARK_EVENTS_FOLDER
from tiltyard.store import TransactionRecord

_DRIVER = ("-m", "tiltyard.runtime.lazy_imports", "--with-pandas", "tiltyard.pipeline.driver.process")
_SUBMITTED_FILE = Path(__file__).parent.parent / "pipeline" / "driver" / "submitted" / "spark_driver.py"
"""The driver's code, which nothing here imports: it is a client, in a process of its own."""

_ORDERS_FILE, _PROPERTIES_FILE = "orders.json", "spark.properties"
"""Files for the driver of a single job, in a folder of its own."""

_EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"
_EXIT_ON_OOM = "-XX:+ExitOnOutOfMemoryError"
_WORKER_SETTINGS = frozenset(
    {
        "root", "jobs", "host", "port", "workers", "spark", "spark_conf", "spark_client", "spark_environment",
        "spark_limits", "spark_memory",
    }
)  # fmt: skip
"""Settings that a driver does not get, as they are the worker's own or come another way."""

_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|TERM|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
    r"|JAVA_\w+|JDK_JAVA_OPTIONS|SPARK_\w+|PYSPARK_\w+|HADOOP_\w+|YARN_\w+|KUBERNETES_\w+|KUBECONFIG|KRB5\w*|PYTHON\w*"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|XDG_\w+|MALLOC_\w+|OMP_NUM_THREADS|ARROW_\w+|LANCE_\w+"
    r"|RUST_LOG|RUST_BACKTRACE|COVERAGE_\w+|COV_\w+|TILTYARD_FAULT"
)
"""The variables by which a process finds its programs, its language, its temporary files and its cluster."""

_SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|(?:^|_)KEY(?:$|_)", re.IGNORECASE)
"""A variable that is not inherited even if its name begins like one that is (HADOOP_CREDSTORE_PASSWORD)."""

_INTERNAL_PREFIXES = ("TILTYARD_JOB_", "TILTYARD_HANDED_DOWN")
"""Variables between our own processes, which are not passed on."""


def spark_master(settings: Settings) -> str:
    """Return Spark's master URL."""
    return "local[*]" if settings.spark == "local" else settings.spark


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return Spark's properties for all jobs. The folder of event logs is created if it is local."""
    folder = settings.spark_events
    if not folder and "://" not in settings.root:
        folder = str(Path(settings.root).absolute() / SPARK_EVENTS_FOLDER)
    events = {}
    is_remote = spark_master(settings).startswith("sc://")
    # A JVM out of memory ends at once, and is replaced: half alive, it would fail every later job.
    jvm = {"spark.driver.memory": settings.spark_memory, "spark.driver.defaultJavaOptions": _EXIT_ON_OOM}
    if folder and not is_remote:
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            folder = Path(folder).absolute().as_uri()
        events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder}
    return {**({} if is_remote else jvm), **events, **settings.spark_conf}


def job_spark_conf(settings: Settings, record: TransactionRecord) -> dict[str, str]:
    """Return Spark's properties of a single job: those it was submitted with, and its image.

    A column's image, which was on the server's list when it was declared, is that of the executors on Kubernetes;
    elsewhere code runs in the Python that executors have.
    """
    conf = dict(record.payload.get("spark") or {})
    if (image := record.payload.get("image")) and spark_master(settings).startswith("k8s://"):
        conf |= {_EXECUTOR_IMAGE: image}
    return conf


def warm_command(settings: Settings) -> list[str]:
    """Return the command of a warm driver, which drives one job after the other."""
    return [sys.executable, *_DRIVER, *_code_flag(settings)]


def submit_command(settings: Settings, record: TransactionRecord, folder: Path) -> list[str]:
    """Return the spark-submit command for one job; its orders are in `folder`, since command lines are public."""
    installed = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    command = [installed or "spark-submit", "--master", spark_master(settings), "--name", f"tiltyard {record.kind}"]
    command += ["--properties-file", str(folder / _PROPERTIES_FILE), "--load-spark-defaults"]
    job = ["--job", record.id, "--owner", record.lease_owner or "", "--orders", str(folder / _ORDERS_FILE)]
    return [*command, str(_SUBMITTED_FILE), *job, *_code_flag(settings)]


def write_driver_files(settings: Settings, record: TransactionRecord, folder: Path) -> None:
    """Write the orders and the properties of a job's own driver into a folder that only this user can read.

    Raises InvalidInputError for a property that no caller may set: a server that did not check it may have queued it.
    """
    check_spark_properties(record.payload.get("spark") or {}, settings.spark_limits)
    conf = {**spark_conf(settings), **job_spark_conf(settings, record)}
    for name, text in {
        _ORDERS_FILE: driver_orders(settings, submitted=True),
        _PROPERTIES_FILE: to_java_properties(conf),
    }.items():
        (folder / name).touch(0o600)
        (folder / name).write_text(text)


def driver_orders(settings: Settings, *, submitted: bool) -> str:
    """Return a driver's orders as a line of JSON: the catalog, the variables that it does not inherit, and Spark."""
    variables = private_variables(os.environ, settings.spark_environment)
    settings_of_telemetry = "log_format", "trace_endpoint", "trace_sample"
    telemetry = {"version": __version__, **{name: getattr(settings, name) for name in settings_of_telemetry}}
    if settings.openlineage:
        key = read_key(settings.openlineage_key, os.environ)
        telemetry["openlineage"] = asdict(
            OpenLineageSettings(settings.openlineage, key, settings.openlineage_namespace)
        )
    orders: dict[str, Any] = {**_catalog(settings), "variables": variables, "telemetry": telemetry}
    if not submitted:
        orders |= {"master": spark_master(settings), "conf": spark_conf(settings)}
    return json.dumps(orders)


def driver_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a driver process, which its JVM inherits: no secret is in it."""
    python = {"PYSPARK_PYTHON": sys.executable} if settings.spark.startswith("local") else {}
    return {
        **inherited_variables(os.environ, settings.spark_environment),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **python,
        DRIVER_VARIABLE: "worker",
    }


def inherited_variables(variables: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a driver inherits; `allowed` are names that the operator adds."""
    return {name: value for name, value in variables.items() if name in allowed or _is_inherited(name)}


def private_variables(variables: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a driver gets with its orders: all that it does not inherit."""
    private = {name: value for name, value in variables.items() if not (name in allowed or _is_inherited(name))}
    return {name: value for name, value in private.items() if not name.startswith(_INTERNAL_PREFIXES)}


def _is_inherited(name: str) -> bool:
    return bool(_INHERITED.fullmatch(name)) and not _SECRET.search(name)


def _code_flag(settings: Settings) -> list[str]:
    return ["--udfs"] if settings.udfs else []


def _catalog(settings: Settings) -> Mapping[str, Any]:
    """Return the server that jobs call, or the catalog in their own process with all settings that are set."""
    if settings.spark_uri:
        return {"uri": settings.spark_uri, "properties": dict(settings.spark_client)}
    properties = {}
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        if spec.name not in _WORKER_SETTINGS and value != default:
            properties[spec.name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"uri": settings.root, "properties": properties}
