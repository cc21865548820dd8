"""Resources that Spark reserves for each task of a stage, where it runs on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession


def resource_profile(spark: SparkSession, resources: Sequence[tuple[str, str]]) -> ResourceProfile | None:
    """Return Spark's profile of tasks with these resources; None for none.

    Raises RefusedError where Spark runs in one process, and reserves nothing.
    """
    if not resources:
        return None
    master = "" if is_connect(spark) else str(spark.sparkContext.master)
    if master.split("[", 1)[0] == "local":
        raise RefusedError(
            f"resources: Spark runs in one process ({master}), which reserves nothing for tasks: leave them out, or "
            "name a cluster (spark://…, YARN, Kubernetes)."
        )
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests  # noqa: PLC0415  # an extra

    requests = TaskResourceRequests()
    for name, amount in resources:
        if name == "cpus":
            requests.cpus(int(float(amount)))
        else:
            requests.resource(name, float(amount))
    return ResourceProfileBuilder().require(requests).build
