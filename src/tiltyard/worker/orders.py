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
from tiltyard.jobs import ORDERS, UDFS
from tiltyard.store import TransactionRecord

DRIVER = "tiltyard.pipeline.driver"
SUBMITTED = Path(__file__).parent.parent / "pipeline" / "submitted" / "spark_driver.py"
"""Files and modules of a driver, which is a client in a process of its own: nothing here imports them."""

_EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"
_NOT_HANDED_DOWN = ("root", "jobs", "host", "port", "workers", "spark", "spark_conf", "spark_client")


def master(settings: Settings) -> str:
    """Where Spark runs, as Spark calls it."""
    return "local[*]" if settings.spark == "local" else settings.spark


def spark_conf(settings: Settings) -> dict[str, str]:
    """Spark's properties for all jobs. Event logs have a folder, which is made if it is a local one."""
    folder = settings.spark_events
    if not folder and "://" not in settings.root:
        folder = str(Path(settings.root).absolute() / "_spark-events")
    events = {}
    if folder and not master(settings).startswith("sc://"):
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            folder = Path(folder).absolute().as_uri()
        events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder}
    return {**events, **settings.spark_conf}


def own_conf(settings: Settings, record: TransactionRecord) -> dict[str, str]:
    """Spark's properties of a job that it cannot share with others: those it was submitted with, and its image.

    A column's image, which was on the server's list when it was declared, is that of the executors on Kubernetes;
    elsewhere code runs in the Python that executors have.
    """
    found = dict(record.payload.get("spark") or {})
    if (image := record.payload.get("image")) and master(settings).startswith("k8s://"):
        found |= {_EXECUTOR_IMAGE: image}
    return found


def warm_command() -> list[str]:
    """The process that drives job after job."""
    return [sys.executable, "-m", DRIVER]


def submit_command(settings: Settings, record: TransactionRecord) -> list[str]:
    """spark-submit for one job, with the properties that it was submitted with."""
    beside = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    words = [beside or "spark-submit", "--master", master(settings), "--name", f"tiltyard {record.kind}"]
    for name, value in {**spark_conf(settings), **own_conf(settings, record)}.items():
        words += ["--conf", f"{name}={value}"]
    return [*words, str(SUBMITTED), "--job", record.id, "--owner", record.lease_owner or ""]


def environment(settings: Settings, *, submitted: bool) -> dict[str, str]:
    """The variables of a driver process."""
    orders: dict[str, Any] = dict(_catalog(settings))
    if not submitted:
        orders |= {"master": master(settings), "conf": spark_conf(settings)}
    code = {} if settings.udfs else {UDFS: "off"}
    python = {"PYSPARK_PYTHON": sys.executable} if settings.spark.startswith("local") else {}
    return {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, **python, **code, ORDERS: json.dumps(orders)}


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
