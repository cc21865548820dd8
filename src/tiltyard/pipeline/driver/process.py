"""The driver process of a worker: drive jobs one after the other in a warm session, or a single one.

    python -m tiltyard.pipeline.driver.process              reads a line {"job": …, "owner": …}, writes {"ended": …}
    spark-submit spark_driver.py --job JOB --owner OWNER    drives this job: the master is spark-submit's

How to reach the catalog, and where Spark runs (JSON, see `DriverOrders`), is not in its environment, which its JVM
shares: it is the first line of the input, or the file `--orders`, which is removed at once, or in cluster mode the file
that the variable TILTYARD_JOB_CATALOG_FILE names. When a worker dies, its drivers finish their jobs, whose leases they
have.
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

from tiltyard.model.jobs import CATALOG_FILE_VARIABLE, DRIVER_VARIABLE, OLD_CATALOG_VARIABLE, UDFS_VARIABLE
from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.catalog_run import CatalogRun, QueuedJob, drive_job
from tiltyard.pipeline.java import SparkEndedError, detect_jvm_end
from tiltyard.pipeline.jobs import check_client_code_allowed, find_job
from tiltyard.pipeline.openlineage.emitter import configure
from tiltyard.pipeline.private_variables import adopt_variables
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.runtime.tracing import (
    MISSING,
    JsonFormatter,
    TraceOptions,
    flush_spans,
    is_installed,
    job_span,
    start_tracing,
    track,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

log = logging.getLogger("tiltyard.pipeline")


@dataclass(frozen=True, slots=True)
class DriverOrders:
    """How to reach the catalog, and where Spark runs: `master` is the setting `spark`, None for spark-submit's own."""

    uri: str
    properties: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    telemetry: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> DriverOrders:
        """Read the orders of this process. Raises SystemExit, with a sentence, if there are none."""
        if OLD_CATALOG_VARIABLE in os.environ:
            raise SystemExit(
                f"{OLD_CATALOG_VARIABLE} is no longer read, since all code in a driver could read it, too: "
                f"mount a file with that JSON, and name it by {CATALOG_FILE_VARIABLE}."
            )
        if file is not None and file.exists():
            text = file.read_text()
            shutil.rmtree(file.parent, ignore_errors=True)  # the worker's own folder, for this driver alone
        elif named := os.environ.get(CATALOG_FILE_VARIABLE):
            text = Path(named).read_text()
        elif file is None:
            text = sys.stdin.readline()
        else:
            raise SystemExit(
                f"This driver has no instructions: name the file that holds them by {CATALOG_FILE_VARIABLE}."
            )
        return cls(**json.loads(text))


class Driver:
    """Drive jobs; logs go to standard error."""

    def __init__(self, orders: DriverOrders) -> None:
        """Connect. Raises what the catalog's client raises."""
        self._orders = orders
        self._catalog = connection(orders.uri, orders.properties)
        self._client = self._catalog.caller()
        self._run: CatalogRun | None = None
        self._is_leaving = False

    def drive(self, job_id: str, owner: str) -> None:
        """Drive a job whose lease `owner` has to its end; how it ended is in the catalog."""
        job = QueuedJob.from_response(self._client.call("DescribeJob", id=[job_id])["job"])
        # Before the session: the lease is renewed while Spark starts, and a cancellation is noticed.
        self._run = run = CatalogRun(self._client, job, owner)
        if self._is_leaving:
            run.release()

        def work() -> Mapping[str, object]:
            if job.arguments.get("udf") is not None:
                check_client_code_allowed()
            if not find_job(job.name).spark:
                return job.execute(run, self._catalog, None)
            with detect_jvm_end():
                return job.execute(run, self._catalog, self._session())

        try:
            with job_span(f"job {job.name}", job.properties, job.id, **{"tiltyard.attempt": job.attempts}):
                drive_job(run, work, attempts=job.attempts)
        except SparkEndedError:
            log.exception("job %s (%s) was running when Spark ended", job.id, job.name)
            self._is_leaving = True  # a process has one JVM
        except Exception:
            log.exception("job %s (%s) failed", job.id, job.name)
        finally:
            self._run = None
            flush_spans()

    def leave(self, *_: object) -> None:
        """Release the running job, and end the process; a signal handler."""
        self._is_leaving = True
        if self._run is None:
            _handle_stop_signals(signal.SIG_IGN)
            sys.exit(0)
        self._run.release()

    @property
    def is_leaving(self) -> bool:
        """Return whether the process ends after the running job."""
        return self._is_leaving

    def _session(self) -> SparkSession:
        master = self._orders.master
        remote = master if master and master.startswith("sc://") else None
        return spark_session(None if remote else master, remote=remote, config=self._orders.conf)


def _handle_stop_signals(handler: Any) -> None:
    """Set the handler of SIGTERM and SIGINT; SIG_IGN once the process ends, where a second signal would disturb it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _read_jobs(lines: TextIO) -> Iterator[tuple[str, str]]:
    """Yield the jobs of the input, one a line, as (id, owner)."""
    for line in iter(lines.readline, ""):
        job = json.loads(line)
        yield job["job"], job["owner"]


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
    arguments = parser.parse_args()
    # Only responses go to standard output: what Spark or a job prints there would be taken for one.
    responses = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel("WARNING")
    tune_allocator()
    os.environ |= {DRIVER_VARIABLE: "worker", UDFS_VARIABLE: "on" if arguments.udfs else "off"}
    orders = DriverOrders.read(arguments.orders)
    adopt_variables(orders.variables)
    _set_up_telemetry(orders.telemetry)
    driver = Driver(orders)
    _handle_stop_signals(driver.leave)
    for job_id, owner in [(arguments.job, arguments.owner)] if arguments.job else _read_jobs(sys.stdin):
        try:
            driver.drive(job_id, owner)
        except LanceNamespaceError as error:
            log.error("job %s is left to another driver: %s", job_id, error)  # noqa: TRY400  # the sentence says it
        if not _report_end(responses, job_id, is_leaving=driver.is_leaving) or driver.is_leaving:
            break
    _handle_stop_signals(signal.SIG_IGN)


def _set_up_telemetry(telemetry: Mapping[str, Any]) -> None:
    """Log and send traces as the worker does; without traces where their packages are not here."""
    if telemetry.get("log_format", "text").lower() == "json":
        track()
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    if endpoint := telemetry.get("trace_endpoint"):
        if is_installed():
            start_tracing(TraceOptions(endpoint, telemetry["trace_sample"], telemetry["version"]))
        else:
            log.warning("%s This driver sends none.", MISSING)
    events = telemetry.get("openlineage")
    configure(None if events is None else OpenLineageSettings(**events))


def _report_end(responses: int, job_id: str, *, is_leaving: bool) -> bool:
    """Report to the worker that a job has ended; return whether the worker still runs."""
    try:
        os.write(responses, (json.dumps({"ended": job_id, "leaving": is_leaving}) + "\n").encode())
    except BrokenPipeError:
        log.warning("job %s has ended, and the worker of this driver is gone: the driver ends", job_id)
        return False
    return True


if __name__ == "__main__":
    main()
