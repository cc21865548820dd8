"""A JVM of Spark that the drivers of a sweep share, each of which is a process of its own.

A driver that is killed takes neither the JVM nor its tasks with it, as on a cluster: they go on for as long as they
have work, beside the driver that takes the job over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tiltyard.runtime import failpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_FAULT = "SWEEP_TASK_FAULT"
"""The variable with the fault that the Python workers of a driver's tasks have."""
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class SharedSpark:
    """The session of the process that has the JVM."""

    session: SparkSession

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the variables by which PySpark finds this JVM in another process."""
        gateway = self.session.sparkContext._gateway
        assert gateway is not None
        parameters = gateway.gateway_parameters
        return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def stop_tasks(self) -> None:
        """Cancel what a killed driver has left, and wait until no task runs."""
        context = self.session.sparkContext
        context.cancelAllJobs()
        while any(each.numRunningTasks() for each in context._jsc.sc().statusTracker().getExecutorInfos()):
            time.sleep(_POLL_SECONDS)


@cache
def attached_session() -> SparkSession:
    """Return the session of this process in the JVM that its variables name."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    jvm = gateway.jvm
    running = jvm.org.apache.spark.api.java.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=running, conf=SparkConf(_jconf=running.getConf()))
    if fault := os.environ.get(TASK_FAULT):
        context.environment[failpoints.VARIABLE] = fault
    return SparkSession(context)
