"""A driver that dies: it drives a job that waits, and kills itself as soon as so many parts of a kind are kept.

python -m tests.spark.dying URL JOB PREFIX COUNT
"""

from __future__ import annotations

import os
import signal
import sys

from tests.spark.conftest import FEW_PARTITIONS
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.lease import CatalogRun, QueuedJob, claim, drive, new_owner
from tiltyard.pipeline.indexes import tasks
from tiltyard.pipeline.operation_calls import Calls
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.views import planning

LEASE_MS = 2_000
ROWS_OF_A_SEGMENT = 300
ROWS_OF_A_PART = 10


class DyingRun(CatalogRun):
    """Keeps `count` parts whose keys begin with `prefix`, and dies."""

    def __init__(self, calls: Calls, job: QueuedJob, owner: str, prefix: str, count: int) -> None:
        super().__init__(calls, job, owner, LEASE_MS)
        self._prefix, self._left = prefix, count

    def keep(self, key: str, value: str) -> None:
        """Keep a part; the last one at that."""
        super().keep(key, value)
        self._left -= key.startswith(self._prefix)
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, job_id: str, prefix: str, count: int) -> None:
    """Drive until death."""
    tasks.ROWS_OF_A_SEGMENT, planning.ROWS_OF_A_PART = ROWS_OF_A_SEGMENT, ROWS_OF_A_PART
    where, owner = connection(url), new_owner()
    told = claim(Calls(where), job_id, owner, LEASE_MS)
    run = DyingRun(Calls(where), told, owner, prefix, count)
    spark = spark_session("local[1]", config=FEW_PARTITIONS)
    drive(run, lambda: told.work(run, where, spark))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
