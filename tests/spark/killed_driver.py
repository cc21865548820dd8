"""A driver that dies: it drives a queued job, and kills itself once it has saved so many checkpoints of a kind.

python -m tests.spark.killed_driver URL JOB PREFIX COUNT SLOTS
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.spark.conftest import CONF
from tiltyard.calls.caller import Caller
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, QueuedJob, claim_job, drive_job, new_owner
from tiltyard.pipeline.indexes import growth, segments, training
from tiltyard.pipeline.optimize import job as optimizing
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.upsert import partitioned_lookup
from tiltyard.pipeline.upsert import plan as upserting
from tiltyard.pipeline.views import planning

LEASE_MS = 2_000
ROWS_PER_SEGMENT = 300
ROWS_PER_PART = 10


def partition_keys() -> list[tuple[Any, str, int]]:
    """Return what to set so that an upsert partitions its keys, however few they are, in several tasks a stage."""
    sizes = {"MAX_KEYS_IN_MEMORY": 16, "ROWS_PER_TASK": 64}
    both = [(module, name, size) for module in (upserting, partitioned_lookup) for name, size in sizes.items()]
    return [*both, (partitioned_lookup, "PARTITIONED_COST", 0), (upserting, "MAX_COMPLETED_ROWS", 50)]


class DyingRun(CatalogRun):
    """Saves `count` checkpoints whose keys begin with `prefix`, and dies."""

    def __init__(self, calls: Caller, job: QueuedJob, owner: str, prefix: str, count: int) -> None:
        super().__init__(calls, job, owner, LEASE_MS)
        self._prefix, self._left = prefix, count

    def save_checkpoint(self, key: str, value: str) -> None:
        """Save a checkpoint, and die after the last one."""
        super().save_checkpoint(key, value)
        self._left -= key.startswith(self._prefix)
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(
    url: str, environ: Mapping[str, str], job_id: str, prefix: str, *, count: int, slots: int = 1
) -> None:
    """Drive a job in another process, which dies after `count` checkpoints whose keys begin with `prefix`."""
    command = [sys.executable, "-m", "tests.spark.killed_driver", url, job_id, prefix, str(count), str(slots)]
    assert subprocess.run(command, env={**os.environ, **environ}, check=False).returncode == -signal.SIGKILL


class RecordingRun(CatalogRun):
    """Records the checkpoints that it saves: the catalog deletes them when the job ends."""

    def __init__(self, calls: Caller, job: QueuedJob, owner: str) -> None:
        super().__init__(calls, job, owner)
        self.saved: dict[str, str] = {}

    def save_checkpoint(self, key: str, value: str) -> None:
        """Save a checkpoint."""
        super().save_checkpoint(key, value)
        self.saved[key] = value


def main(url: str, job_id: str, prefix: str, count: int, slots: int) -> None:
    """Drive the job until death."""
    segments.ROWS_PER_SEGMENT, planning.ROWS_PER_PART = ROWS_PER_SEGMENT, ROWS_PER_PART
    training.MIN_SAMPLE_BYTES = growth.MIN_NEW_ROWS = 1
    optimizing.MAX_DRIVER_ROWS = 0
    for module, name, value in partition_keys():
        setattr(module, name, value)
    catalog, owner = connection(url), new_owner()
    job = claim_job(catalog.caller(), job_id, owner, LEASE_MS)
    run = DyingRun(catalog.caller(), job, owner, prefix, count)
    spark = spark_session(f"local[{slots}]", config=CONF)
    drive_job(run, lambda: job.execute(run, catalog, spark))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
