"""`tiltyard job …`: the jobs of the data pipeline, run here or by the server's workers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click
from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError

from tiltyard.cli.bar import progress_bar
from tiltyard.cli.interruption import Interruption, end, interruptible
from tiltyard.model.jobs import pipeline_jobs
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.driver.lease import LEASE_MS, CatalogRun, QueuedJob, drive, new_owner, reason, submit
from tiltyard.pipeline.driver.spark_ui import application_facts
from tiltyard.pipeline.jobs import Parameter, RegisteredJob, find_job
from tiltyard.pipeline.operation_calls import Calls
from tiltyard.pipeline.process_tuning import keep_memory
from tiltyard.pipeline.progress import Figures
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.runtime.fatal import Refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.table_location import Connection

FIRST_SECONDS = 5.0
"""How long a command asks a server that does not answer, before it has begun anything."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How the command reaches the catalog, and where Spark runs."""

    uri: str
    properties: tuple[str, ...]
    storage: tuple[str, ...]
    master: str | None = None
    remote: str | None = None
    conf: tuple[str, ...] = ()

    def connection(self) -> Connection:
        """The catalog."""
        return connection(self.uri, pairs(self.properties), pairs(self.storage))

    def calls(self) -> Calls:
        """Its operations, for a first word: an address that is wrong is soon told."""
        return Calls(self.connection(), FIRST_SECONDS)

    def session(self, job: RegisteredJob, more: Mapping[str, str] | None = None) -> SparkSession | None:
        """The session, if the job needs one. Raises SparkMissingError."""
        if not job.spark:
            return None
        config = {**(more or {}), **pairs(self.conf)}
        return spark_session(self.master, remote=self.remote, name=f"tiltyard {job.name}", config=config)


def job_command(name: str, refuse: Refuse) -> click.Command | None:
    """The command of a job; None for a name that no job has."""
    if name not in pipeline_jobs():
        return None
    found = find_job(name)

    def run(submit_it: bool, untracked: bool, **given: Any) -> None:
        own = {parameter.name: _value(parameter, given.pop(parameter.name)) for parameter in found.parameters}
        arguments = {key: value for key, value in own.items() if value is not None}
        with refusing(refuse):
            run_job(found, arguments, Reach(**given), submit_it=submit_it, untracked=untracked)

    text = inspect.getdoc(found.function) or ""
    options = [*(_option(parameter) for parameter in found.parameters), *modes(), *reach_options(spark=True)]
    return click.Command(name, callback=run, params=options, help=text, short_help=text.split("\n")[0])


def run_job(
    job: RegisteredJob, arguments: Mapping[str, Any], reach: Reach, *, submit_it: bool, untracked: bool
) -> None:
    """Run a job here, or queue it and print its id. Raises what it fails with."""
    if submit_it:
        if reach.master or reach.remote or reach.storage:
            raise click.UsageError("With --submit the worker says where Spark runs and what opens storage.")
        queued = submit(reach.calls(), job, arguments, spark=pairs(reach.conf) or None)
        click.echo(queued.id)
    elif untracked:
        _run_untracked(job, job.checked(arguments), reach)
    else:
        _run_tracked(job, arguments, reach)


@contextmanager
def refusing(refuse: Callable[[str], None]) -> Iterator[None]:
    """What is raised here is one sentence to the operator."""
    try:
        yield
    except RefusedError as error:
        refuse(str(error))
    except LanceNamespaceError as error:
        refuse(reason(error))
    except Exception as error:
        # What fails within Spark is a page of Java and Python, which Spark has logged; without PySpark nothing does.
        failures = getattr(sys.modules.get("pyspark.errors"), "PySparkException", ())
        if not isinstance(error, failures):
            raise
        refuse(f"Spark could not do it, and its log above has more. {reason(error)}")


def _run_untracked(job: RegisteredJob, arguments: Mapping[str, Any], reach: Reach) -> None:
    keep_memory()
    run, shown = LocalRun(), Figures()

    def told() -> Mapping[str, str]:
        shown.set(dict(run.figures))
        return shown.texts()

    spark = reach.session(job)
    with interruptible() as interruption, progress_bar(job.name, told):
        interruption.call(run.canceled.set)
        try:
            figures = job.function(run, reach.connection(), spark, **arguments)
        except RunCanceledError:
            _interrupted(job.name, run.figures)
    _print({name: str(value) for name, value in figures.items()})


def _run_tracked(job: RegisteredJob, arguments: Mapping[str, Any], reach: Reach) -> None:
    """Begin the job as its driver. The session comes first: without one, there is no job to tell of."""
    spark = reach.session(job)
    calls, owner = reach.calls(), new_owner()
    with interruptible() as interruption:  # from here on, for a job that was begun has to be canceled
        interruption.check()
        queued = submit(calls, job, arguments, owner=owner, lease_millis=LEASE_MS)
        drive_here(job, queued, owner, reach, spark, interruption)


def drive_here(
    job: RegisteredJob,
    queued: QueuedJob,
    owner: str,
    reach: Reach,
    spark: SparkSession | None,
    interruption: Interruption,
) -> None:
    """Drive a job that `owner` has, with a bar; an interruption cancels it. Raises what it fails with."""
    keep_memory()
    where = reach.connection()
    run = CatalogRun(Calls(where), queued, owner)
    interruption.call(run.cancel)

    def work() -> Mapping[str, object]:
        run.progress(**application_facts(spark))
        return queued.work(run, where, spark)

    with progress_bar(job.name, run.figures.texts):
        figures = drive(run, work)
    if figures is None:
        _stopped(Calls(where), queued.id, run.figures.texts())
    _print({"job": queued.id, **figures})


def _stopped(calls: Calls, job_id: str, figures: Mapping[str, str]) -> NoReturn:
    """Tell why a job was stopped. Raises PermissionDeniedError for one that the catalog has ended, in its words."""
    job = calls.call("DescribeJob", id=[job_id])["job"]
    if job["status"] == "Failed" and job.get("error"):
        raise PermissionDeniedError(job["error"])
    _interrupted(job_id, figures)


def _interrupted(what: str, figures: Mapping[str, str]) -> NoReturn:
    """End the command of a job that was canceled; a `version` among its figures is that of a commit of its own."""
    version = figures.get("version")
    left = f"what it had committed by then stays (version {version})" if version else "nothing was committed"
    end(f"tiltyard: {what} was canceled: {left}.")


def _print(figures: Mapping[str, str]) -> None:
    for name, value in figures.items():
        click.echo(f"{name}: {value}")


def reach_options(*, spark: bool) -> list[click.Parameter]:
    """Options that make a Reach."""
    catalog = [
        click.Option(["--uri"], required=True, envvar="TILTYARD_URI", help="A server, or the root of a catalog."),
        click.Option(
            ["--property", "properties"], multiple=True, help="NAME=VALUE for the catalog's client (header.…)."
        ),
        click.Option(["--storage"], multiple=True, help="NAME=VALUE for the object store, in Lance's keys."),
    ]
    where = [
        click.Option(["--master"], help="Where Spark runs: local[*], spark://…, yarn, k8s://…"),
        click.Option(["--remote"], help="A Spark Connect server, sc://…"),
        click.Option(["--conf"], multiple=True, help="NAME=VALUE, a property of Spark."),
    ]
    return [*catalog, *(where if spark else [])]


def modes() -> list[click.Parameter]:
    """Options that say who drives a job."""
    return [
        click.Option(["--submit", "submit_it"], is_flag=True, help="Queue it for the server's workers; print its id."),
        click.Option(["--untracked"], is_flag=True, help="Do not tell the catalog: no transaction, no resuming."),
    ]


def _option(parameter: Parameter) -> click.Parameter:
    if parameter.positional and parameter.required:
        return click.Argument([parameter.name])
    flag = f"--{parameter.name.replace('_', '-')}"
    text = f"NAME=VALUE. {parameter.help}" if parameter.pairs else parameter.help
    if parameter.kind is bool:
        names = [f"{flag}/--no-{flag[2:]}" if parameter.default else flag, parameter.name]
        return click.Option(names, default=None, is_flag=True, help=text)
    kind = click.Choice(parameter.choices) if parameter.choices else {int: int, float: float}.get(parameter.kind, str)
    several = parameter.many or parameter.pairs
    return click.Option([flag, parameter.name], type=kind, required=parameter.required, multiple=several, help=text)


def _value(parameter: Parameter, given: Any) -> Any:
    """An option's value as the job takes it; None where it was not given."""
    if parameter.pairs:
        return pairs(given) or None
    return (list(given) or None) if parameter.many else given


def pairs(given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, each. Raises click.UsageError."""
    parted = [text.partition("=") for text in given]
    for name, equals, _ in parted:
        if not equals:
            raise click.UsageError(f"'{name}' is no NAME=VALUE.")
    return {name: value for name, _, value in parted}
