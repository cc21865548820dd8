"""A process that drives jobs for a worker: one after the other in a warm session, or a single one.

    python -m tiltyard.pipeline.driver.process              reads {"job": …, "owner": …} a line, answers {"ended": …}
    spark-submit spark_driver.py --job JOB --owner OWNER    drives that one: the master is spark-submit's

How to reach the catalog, and where Spark runs (JSON, see `Orders`), is no part of its environment, which its JVM
shares: it is the first line of the input, or the file `--orders`, which is removed at once, or in cluster mode the file
that the variable TILTYARD_JOB_CATALOG_FILE names. A worker that dies leaves its drivers to finish what they do: they
have the lease.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lance_namespace.errors import LanceNamespaceError

from tiltyard.model.jobs import DRIVER, FORMER_ORDERS, ORDERS_FILE, UDFS
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.environment import adopt
from tiltyard.pipeline.driver.lease import CatalogRun, QueuedJob, drive
from tiltyard.pipeline.driver.spark_ui import application_facts
from tiltyard.pipeline.java import SparkEndedError, detect_jvm_end
from tiltyard.pipeline.jobs import check_client_code_allowed, find_job
from tiltyard.pipeline.operation_client import OperationClient
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.spark_tasks import tune_allocator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

log = logging.getLogger("tiltyard.pipeline")


@dataclass(frozen=True, slots=True)
class Orders:
    """How to reach the catalog, and where Spark runs: `master` is what `spark` is set to, None for spark-submit's."""

    uri: str
    properties: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> Orders:
        """Read the orders that this process was given. Raises SystemExit, with a sentence, if there are none."""
        if FORMER_ORDERS in os.environ:
            raise SystemExit(
                f"{FORMER_ORDERS} is not read any more, for all that runs in a driver could read it, too: "
                f"mount a file with that JSON, and name it by {ORDERS_FILE}."
            )
        if file is not None and file.exists():
            text = file.read_text()
            shutil.rmtree(file.parent, ignore_errors=True)  # the worker's own folder, for this driver alone
        elif named := os.environ.get(ORDERS_FILE):
            text = Path(named).read_text()
        elif file is None:
            text = sys.stdin.readline()
        else:
            raise SystemExit(f"This driver has no orders: name the file that holds them by {ORDERS_FILE}.")
        return cls(**json.loads(text))


class Driver:
    """Drives jobs; what it logs goes to standard error."""

    def __init__(self, orders: Orders) -> None:
        """Connect. Raises what the catalog's client raises."""
        self._orders = orders
        self._where = connection(orders.uri, orders.properties)
        self._calls = OperationClient(self._where)
        self._run: CatalogRun | None = None
        self._leaving = False

    def drive(self, job_id: str, owner: str) -> None:
        """Drive a job that `owner` has to its end; how it ended is in the catalog."""
        told = QueuedJob.of(self._calls.call("DescribeJob", id=[job_id])["job"])
        # Before the session: the lease is kept while Spark starts, and a cancel heard.
        self._run = run = CatalogRun(self._calls, told, owner)
        if self._leaving:
            run.hand_back()

        def work() -> Mapping[str, object]:
            if told.arguments.get("udf") is not None:
                check_client_code_allowed()
            if not find_job(told.name).spark:
                return told.work(run, self._where, None)
            with detect_jvm_end():
                spark = self._session()
                run.progress(**application_facts(spark))
                return told.work(run, self._where, spark)

        try:
            drive(run, work, attempts=told.attempts)
        except SparkEndedError:
            log.exception("job %s (%s) was running when Spark ended", told.id, told.name)
            self._leaving = True  # a process has one JVM
        except Exception:
            log.exception("job %s (%s) failed", told.id, told.name)
        finally:
            self._run = None

    def leave(self, *_: object) -> None:
        """Hand the running job back, and end; a handler of signals."""
        self._leaving = True
        if self._run is None:
            _hear(signal.SIG_IGN)
            sys.exit(0)
        self._run.hand_back()

    @property
    def leaving(self) -> bool:
        """Whether no further job is to be begun."""
        return self._leaving

    def _session(self) -> SparkSession:
        master = self._orders.master
        remote = master if master and master.startswith("sc://") else None
        return spark_session(None if remote else master, remote=remote, config=self._orders.conf)


def _hear(handler: Any) -> None:
    """What happens at a signal to end; nothing at a second one, which would come in the middle of the end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _ordered(lines: TextIO) -> Iterator[tuple[str, str]]:
    """The jobs that come in, a line each: (id, owner)."""
    for line in iter(lines.readline, ""):
        told = json.loads(line)
        yield told["job"], told["owner"]


def main() -> None:
    """Drive one job, or all that come in until the input ends."""
    parser = argparse.ArgumentParser(
        description="Drive jobs of the data pipeline, for a worker of Tiltyard.",
        epilog="Example: spark-submit spark_driver.py --job 6f1c… --owner 91ab…",
    )
    parser.add_argument("--job", help="The only job to drive.")
    parser.add_argument("--owner", help="The name under which the job was claimed.")
    parser.add_argument("--orders", type=Path, help="The file that says how to reach the catalog; it is removed.")
    parser.add_argument("--udfs", action="store_true", help="Run code of clients.")
    given = parser.parse_args()
    # Answers alone go to standard output: whatever Spark or a job prints there would be taken for one.
    answers = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel("WARNING")
    tune_allocator()
    os.environ |= {DRIVER: "worker", UDFS: "on" if given.udfs else "off"}
    orders = Orders.read(given.orders)
    adopt(orders.variables)
    driver = Driver(orders)
    _hear(driver.leave)
    for job_id, owner in [(given.job, given.owner)] if given.job else _ordered(sys.stdin):
        try:
            driver.drive(job_id, owner)
        except LanceNamespaceError as error:
            log.error("job %s is left to another driver: %s", job_id, error)  # noqa: TRY400  # the sentence says it
        if not _answered(answers, job_id, driver.leaving) or driver.leaving:
            break
    _hear(signal.SIG_IGN)


def _answered(answers: int, job_id: str, leaving: bool) -> bool:
    """Tell the worker that a job has ended; whether it is still there to hear it."""
    try:
        os.write(answers, (json.dumps({"ended": job_id, "leaving": leaving}) + "\n").encode())
    except BrokenPipeError:
        log.warning("job %s has ended, and the worker that gave it to this driver is gone: so ends the driver", job_id)
        return False
    return True


if __name__ == "__main__":
    main()
