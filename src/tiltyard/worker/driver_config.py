"""What a driver process is told: how to reach the catalog, and where Spark runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import msgspec

from tiltyard.config import Settings
from tiltyard.model.java_properties import properties_text
from tiltyard.model.jobs import DRIVER as DRIVER_OF
from tiltyard.model.spark_properties import check_spark_properties
from tiltyard.store import TransactionRecord
from tiltyard.worker.driver_environment import handed, inherited

DRIVER = "tiltyard.pipeline.driver.process"
SUBMITTED = Path(__file__).parent.parent / "pipeline" / "driver" / "submitted" / "spark_driver.py"
"""Files and modules of a driver, which is a client in a process of its own: nothing here imports them."""

ORDERS, PROPERTIES = "orders.json", "spark.properties"
"""Files of a job's own driver, in a folder of its own."""

_EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"
_ENDS = "-XX:+ExitOnOutOfMemoryError"
_OWN = ("root", "jobs", "host", "port", "workers", "spark", "spark_conf", "spark_client")
_NOT_HANDED_DOWN = frozenset({*_OWN, "spark_environment", "spark_limits", "spark_memory"})


def master(settings: Settings) -> str:
    """Where Spark runs, as Spark calls it."""
    return "local[*]" if settings.spark == "local" else settings.spark


def spark_conf(settings: Settings) -> dict[str, str]:
    """Spark's properties for all jobs. Event logs have a folder, which is made if it is a local one."""
    folder = settings.spark_events
    if not folder and "://" not in settings.root:
        folder = str(Path(settings.root).absolute() / "_spark-events")
    events = {}
    remote = master(settings).startswith("sc://")
    # A JVM without memory ends at once, and is replaced: half alive it would fail every job that comes after.
    own = {} if remote else {"spark.driver.memory": settings.spark_memory, "spark.driver.defaultJavaOptions": _ENDS}
    if folder and not remote:
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            folder = Path(folder).absolute().as_uri()
        events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder}
    return {**own, **events, **settings.spark_conf}


def own_conf(settings: Settings, record: TransactionRecord) -> dict[str, str]:
    """Spark's properties of a job that it cannot share with others: those it was submitted with, and its image.

    A column's image, which was on the server's list when it was declared, is that of the executors on Kubernetes;
    elsewhere code runs in the Python that executors have.
    """
    found = dict(record.payload.get("spark") or {})
    if (image := record.payload.get("image")) and master(settings).startswith("k8s://"):
        found |= {_EXECUTOR_IMAGE: image}
    return found


def warm_command(settings: Settings) -> list[str]:
    """The process that drives job after job."""
    return [sys.executable, "-m", DRIVER, *_code(settings)]


def submit_command(settings: Settings, record: TransactionRecord, folder: Path) -> list[str]:
    """spark-submit for one job, whose orders and properties are in `folder`: a command line is for all to read."""
    beside = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    words = [beside or "spark-submit", "--master", master(settings), "--name", f"tiltyard {record.kind}"]
    words += ["--properties-file", str(folder / PROPERTIES), "--load-spark-defaults"]
    job = ["--job", record.id, "--owner", record.lease_owner or "", "--orders", str(folder / ORDERS)]
    return [*words, str(SUBMITTED), *job, *_code(settings)]


def hand_over(settings: Settings, record: TransactionRecord, folder: Path) -> None:
    """Write the orders and the properties of a job's own driver into a folder that nobody else can read.

    Raises InvalidInputError for a property that no caller may set: a server that did not look may have queued it.
    """
    check_spark_properties(record.payload.get("spark") or {}, settings.spark_limits)
    conf = {**spark_conf(settings), **own_conf(settings, record)}
    for name, text in {ORDERS: orders(settings, submitted=True), PROPERTIES: properties_text(conf)}.items():
        (folder / name).touch(0o600)
        (folder / name).write_text(text)


def orders(settings: Settings, *, submitted: bool) -> str:
    """What a driver is told, as one line: how to reach the catalog, variables that it does not inherit, and Spark."""
    told: dict[str, Any] = {**_catalog(settings), "variables": handed(os.environ, settings.spark_environment)}
    if not submitted:
        told |= {"master": master(settings), "conf": spark_conf(settings)}
    return json.dumps(told)


def environment(settings: Settings) -> dict[str, str]:
    """The variables of a driver process, which its JVM inherits: no secret is among them."""
    python = {"PYSPARK_PYTHON": sys.executable} if settings.spark.startswith("local") else {}
    return {
        **inherited(os.environ, settings.spark_environment),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **python,
        DRIVER_OF: "worker",
    }


def _code(settings: Settings) -> list[str]:
    return ["--udfs"] if settings.udfs else []


def _catalog(settings: Settings) -> Mapping[str, Any]:
    """The server that jobs talk to, or the catalog in their own process, with all that is set."""
    if settings.spark_uri:
        return {"uri": settings.spark_uri, "properties": dict(settings.spark_client)}
    properties = {}
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        if spec.name not in _NOT_HANDED_DOWN and value != default:
            properties[spec.name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"uri": settings.root, "properties": properties}
