"""What tables of a lake need of it: the connection to the catalog, Spark's session, and a way to run jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.calls.caller import COMMAND_RETRY_SECONDS, Caller
from tiltyard.lake.errors import translate
from tiltyard.lake.runs import Run, drive_run, find_run, list_runs, queue_run, start_run
from tiltyard.lake.tables.arguments import check_whole_number
from tiltyard.pipeline.jobs import RegisteredJob, find_job
from tiltyard.pipeline.session import LazySession, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.runs import LocalRun
    from tiltyard.pipeline.table_location import CatalogConnection


@dataclass(slots=True)
class SparkSessions:
    """Where Spark runs: `get` returns this process's session, or starts it."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def get(self) -> SparkSession:
        """Return the session. Raises SparkMissingError."""
        return spark_session(self.master, remote=self.remote, config=self.conf)


class LakeSession:
    """A connection to a catalog, and where jobs on its tables run."""

    def __init__(
        self,
        location: str,
        catalog: CatalogConnection,
        sessions: SparkSessions,
        *,
        submit: bool = False,
        is_recorded: bool = True,
    ) -> None:
        self.location = location
        self.catalog = catalog
        self._sessions = sessions
        self._submits = submit
        self._is_recorded = is_recorded

    @property
    def calls(self) -> Caller:
        """Return what calls the catalog's operations; it soon fails where the address is wrong."""
        return self.catalog.caller(COMMAND_RETRY_SECONDS)

    def within(self, catalog: CatalogConnection) -> LakeSession:
        """Return the same for a connection within a publication, whose jobs are not recorded by themselves."""
        return LakeSession(self.location, catalog, self._sessions, is_recorded=False)

    @property
    def spark(self) -> SparkSession:
        """Return the Spark session of this process; it starts when it is first needed. Raises SparkMissingError."""
        return self._sessions.get()

    def run(self, run_id: str) -> Run:
        """Return the run of a job that the catalog has recorded, by its id. Raises TransactionNotFoundError."""
        return find_run(self.catalog, run_id)

    def jobs(self, *, name: str | None = None, status: str | None = None, limit: int | None = 100) -> list[Run]:
        """Return the runs of jobs that the catalog has recorded, newest first: of a kind (`ingest`), in a status.

        Raises InvalidInputError.
        """
        check_whole_number(limit, "limit")
        return list_runs(self.catalog, name, status, limit)

    def run_job(self, name: str, arguments: Mapping[str, Any], *, wait: bool = True, submit: bool | None = None) -> Run:
        """Run a job with its own arguments, as `tiltyard job NAME` does; return its run, which has ended with `wait`.

        With `submit` a worker of the server runs it, else a thread of this process. Raises InvalidInputError, with
        `wait` what the job fails with.
        """
        job = find_job(name)
        with translate():
            checked = job.validate(arguments)
        if self._submits if submit is None else submit:
            if not self._is_recorded:
                raise InvalidInputError("submit: jobs within a publication run in this process: leave it out.")
            run = queue_run(self.catalog, job, checked)
        elif self._is_recorded:
            run = drive_run(self.catalog, job, checked, self._session_for(job))
        else:
            spark = self._session_for(job)
            run = start_run(name, lambda local: job.run(local, self.catalog, spark, checked))
        return run.wait() if wait else run

    def _session_for(self, job: RegisteredJob) -> SparkSession | LazySession | None:
        if not job.spark:
            return None
        return LazySession(lambda: self.spark) if job.lazy else self.spark

    def check_arguments(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInputError for arguments that a job does not take."""
        find_job(name).validate(arguments)

    def run_here(
        self, name: str, work: Callable[[LocalRun], Mapping[str, object]], *, wait: bool, submit: bool | None, why: str
    ) -> Run:
        """Run `work` in a thread of this process, without a record; `why` says why no worker could.

        Raises InvalidInputError where it was to be submitted.
        """
        if submit:
            raise InvalidInputError(f"submit: {why}: leave it out.")
        run = start_run(name, work)
        return run.wait() if wait else run
