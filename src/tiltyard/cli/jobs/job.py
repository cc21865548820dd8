"""`tiltyard job …`: run jobs of the data pipeline here or by the server's workers, and steer those that a catalog has.

The command of each job is made from the job's own parameters; `list`, `show`, `cancel`, `wait` and `resume` steer jobs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click
from lance_namespace.errors import InvalidTableStateError, LanceNamespaceError, TransactionNotFoundError

from tiltyard.cli.interruption import Interruption, exit_interrupted, interruptible
from tiltyard.cli.options import parse_pairs
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.progress import TIMEOUT, progress_bar, wait_until
from tiltyard.cli.session.failures import ExitStatus, describe_failure, status_of
from tiltyard.cli.session.ids import TABLE_OF_JOB, format_id
from tiltyard.cli.session.job_target import JobTarget, execution_options, job_target_options
from tiltyard.model.jobs import pipeline_jobs
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.backfill.parked import PARKED_SCHEMA, parked_rows
from tiltyard.pipeline.catalog_client import table as catalog_table
from tiltyard.pipeline.driver.catalog_run import (
    CatalogRun,
    QueuedJob,
    claim_job,
    describe_stopped,
    drive_job,
    new_owner,
    short_message,
    submit_job,
)
from tiltyard.pipeline.driver.progress import figure_reader
from tiltyard.pipeline.jobs import JobParameter, RegisteredJob, find_job, split_names
from tiltyard.pipeline.runs import LocalRun, RunCanceledError, describe_canceled
from tiltyard.pipeline.spark_tasks import tune_allocator
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.calls.caller import Caller
    from tiltyard.pipeline.session import LazySession


def list_commands() -> list[str]:
    """Return the names of all commands: the jobs, then what steers them."""
    return [*sorted(pipeline_jobs()), *_STEERING_COMMANDS]


def find_command(name: str) -> click.Command | None:
    """Return the command of this name, if there is one."""
    return _steering_command(name) or _job_command(name)


@contextmanager
def refusing(refuse: Callable[[str, int], None]) -> Iterator[None]:
    """Pass an error of the block to `refuse`, as one sentence for the operator, with the exit status for it."""
    try:
        yield
    except RefusedError as error:
        refuse(str(error), ExitStatus.FAILED)
    except TransactionNotFoundError as error:
        refuse(f"{short_message(error)}. `tiltyard job list` lists the jobs.", status_of(error))
    except LanceNamespaceError as error:
        refuse(describe_failure(error, short_message(error)), status_of(error))
    except Exception as error:
        # What fails within Spark is a page of Java and Python, which Spark has logged; without PySpark nothing does.
        failures = getattr(sys.modules.get("pyspark.errors"), "PySparkException", ())
        if not isinstance(error, failures):
            raise
        refuse(f"Spark failed; its log above has the details. {short_message(error)}", ExitStatus.FAILED)


# The commands of jobs


def _job_command(name: str) -> click.Command | None:
    """Return the command of a job, made from its parameters; None for a name that no job has."""
    if name not in pipeline_jobs():
        return None
    job = find_job(name)

    def run(submit_it: bool, untracked: bool, **options: Any) -> None:
        values = {parameter.name: _value(parameter, options.pop(parameter.name)) for parameter in job.parameters}
        arguments = {key: value for key, value in values.items() if value is not None}
        with refusing(refuse):
            run_job(job, arguments, JobTarget(**options), submit_it=submit_it, untracked=untracked)

    help_text = inspect.getdoc(job.function) or ""
    params = [
        *(_option(parameter) for parameter in job.parameters),
        *execution_options(),
        *job_target_options(spark=True),
    ]
    return click.Command(name, callback=run, params=params, help=help_text, short_help=help_text.split("\n")[0])


def _option(parameter: JobParameter) -> click.Parameter:
    if parameter.positional and parameter.is_required:
        return click.Argument([parameter.name], type=TABLE_OF_JOB if parameter.name == "table" else None)
    flag = f"--{parameter.name.replace('_', '-')}"
    text = f"NAME=VALUE. {parameter.help}" if parameter.is_mapping else parameter.help
    flags = [flag, *(f"--{alias.replace('_', '-')}" for alias in parameter.aliases)]
    if parameter.kind is bool:
        names = [f"{flag}/--no-{flag[2:]}" if parameter.default else flag, parameter.name]
        return click.Option(names, default=None, is_flag=True, help=text)
    kind = click.Choice(parameter.choices) if parameter.choices else {int: int, float: float}.get(parameter.kind, str)
    multiple = parameter.is_list or parameter.is_mapping
    return click.Option(
        [*flags, parameter.name], type=kind, required=parameter.is_required, multiple=multiple, help=text
    )


def parse_arguments(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a job, written as for its command. Raises click.UsageError, InvalidInputError."""
    if name not in pipeline_jobs():
        raise click.UsageError(f"There is no job '{name}': choose one of {', '.join(sorted(pipeline_jobs()))}.")
    job = find_job(name)
    command = click.Command(name, params=[_option(parameter) for parameter in job.parameters], add_help_option=False)
    options = command.make_context(f"tiltyard job {name}", list(texts)).params
    values = {parameter.name: _value(parameter, options[parameter.name]) for parameter in job.parameters}
    return job.validate({name: value for name, value in values.items() if value is not None})


def _value(parameter: JobParameter, value: Any) -> Any:
    """Return an option's value as the job takes it; None where the option is absent."""
    if parameter.is_mapping:
        return parse_pairs(value) or None
    if parameter.names_columns:
        return [name for text in value for name in split_names(text)] or None
    return (list(value) or None) if parameter.is_list else value


def run_job(
    job: RegisteredJob, arguments: Mapping[str, Any], target: JobTarget, *, submit_it: bool, untracked: bool
) -> None:
    """Run a job here, or queue it and print its id. Raises what it fails with."""
    if submit_it:
        if target.master or target.remote or target.storage:
            raise click.UsageError("With --submit, the worker's settings choose Spark and the storage options.")
        queued = submit_job(target.calls(creates=job.creates), job, arguments, spark=parse_pairs(target.conf) or None)
        click.echo(queued.id)
    elif untracked:
        _run_untracked(job, job.validate(arguments), target)
    else:
        _run_tracked(job, arguments, target)


def _run_untracked(job: RegisteredJob, arguments: Mapping[str, Any], target: JobTarget) -> None:
    tune_allocator()
    run = LocalRun()
    where = target.connection(creates=job.creates)
    spark = target.session(job)
    with interruptible() as interruption, progress_bar(job.name, figure_reader(run.figures)):
        interruption.on_signal(run.canceled.set)
        try:
            figures = job.run(run, where, spark, arguments)
        except RunCanceledError:
            _exit_canceled(job.name, run.figures)
    _print_figures({name: str(value) for name, value in figures.items()})


def _run_tracked(job: RegisteredJob, arguments: Mapping[str, Any], target: JobTarget) -> None:
    """Start the job as its driver. The session comes first: without one, there is no job to record."""
    calls, owner = target.calls(creates=job.creates), new_owner()
    spark = target.session(job)
    with interruptible() as interruption:  # from here on, because a job that has started has to be canceled
        interruption.check()
        queued = submit_job(calls, job, arguments, owner=owner)
        _drive_here(job, queued, owner, target, spark, interruption)


def _drive_here(
    job: RegisteredJob,
    queued: QueuedJob,
    owner: str,
    target: JobTarget,
    spark: SparkSession | LazySession | None,
    interruption: Interruption,
) -> None:
    """Drive a job whose lease `owner` holds, with a progress bar; an interruption cancels it.

    Raises what it fails with.
    """
    tune_allocator()
    where = target.connection()
    run = CatalogRun(where.caller(), queued, owner)
    interruption.on_signal(run.cancel)
    with progress_bar(job.name, run.figures.texts):
        figures = drive_job(run, partial(queued.execute, run, where, spark))
    if figures is None:
        _exit_stopped(where.caller(), queued.id, run.figures.texts())
    _print_figures({"job": queued.id, **figures})


def _exit_stopped(calls: Caller, job_id: str, figures: Mapping[str, str]) -> NoReturn:
    """End the command of a job that was stopped. Raises PermissionDeniedError where the catalog has failed it."""
    if describe_stopped(calls, job_id).get("paused"):
        exit_interrupted(f"tiltyard: {job_id} was paused: `tiltyard job resume {job_id}` goes on.")
    _exit_canceled(job_id, figures)


def _exit_canceled(name: str, figures: Mapping[str, str]) -> NoReturn:
    """End the command of a job that was canceled; `version` among its figures is that of a commit of its own."""
    exit_interrupted(f"tiltyard: {describe_canceled(name, figures)}")


def _print_figures(figures: Mapping[str, str]) -> None:
    for name, value in figures.items():
        click.echo(f"{name}: {value}")


# The commands that steer jobs


def _steering_command(name: str) -> click.Command | None:
    """Return the command of this name, if it is one that steers jobs."""
    if name not in _STEERING_COMMANDS:
        return None
    function, options, spark = _STEERING_COMMANDS[name]

    def run(**values: Any) -> None:
        arguments = {option.name: values.pop(option.name) for option in options if option.name}
        with refusing(refuse):
            function(JobTarget(**values), **arguments)

    help_text, params = inspect.getdoc(function) or "", [*options, *job_target_options(spark=spark)]
    return click.Command(name, callback=run, params=params, help=help_text, short_help=help_text.split("\n")[0])


def _list(target: JobTarget, name: str | None, status: str | None, limit: int) -> None:
    """List jobs, newest first.

    \b
    Example:
      tiltyard job list --uri http://127.0.0.1:2333 --status failed
    """
    for job in target.calls().call("ListJobs", name=name, status=status, limit=limit)["jobs"]:
        share = job["properties"].get("progress")
        percent = f"{float(share):.0%}" if share else ""
        table, created = format_id(job["table"]) if job.get("table") else "", format_time(job["created_at_millis"])
        status = "Paused" if job.get("paused") else job["status"]
        click.echo(f"{job['id']}  {created}  {job['name']:<10} {status:<10} {percent:>4}  {table}")


def _show(target: JobTarget, job_id: str) -> None:
    """Show a job: its arguments, status and figures.

    \b
    Example:
      tiltyard job show --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    _print_job(target.calls().call("DescribeJob", id=[job_id])["job"])


def _cancel(target: JobTarget, job_id: str) -> None:
    """Cancel a job: it stops within a second or so, and commits nothing.

    \b
    Example:
      tiltyard job cancel --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    action = {"setStatusAction": {"status": "Canceled"}}
    target.calls().call("AlterTransaction", id=[job_id], actions=[action])
    click.echo(f"{job_id}: Canceled")


def _pause(target: JobTarget, job_id: str) -> None:
    """Pause a job: none starts it, and one that runs stops at its next checkpoint.

    \b
    Example:
      tiltyard job pause --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    target.calls().call("PauseJob", job_id=job_id)
    click.echo(f"{job_id}: Paused")


def _unpause(target: JobTarget, job_id: str) -> None:
    """Let a paused job go on: a worker resumes it from its last checkpoint.

    \b
    Example:
      tiltyard job unpause --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    resumed = target.calls().call("ResumeJob", job_id=job_id)["resumed"]
    click.echo(f"{job_id}: Queued" if resumed else f"{job_id}: it was not paused")


def _wait(target: JobTarget, job_id: str, timeout: float | None) -> None:
    """Wait until a job has ended, with a progress bar; exit with status 0 if it succeeded, 124 after --timeout.

    \b
    Example:
      tiltyard job wait --uri http://127.0.0.1:2333 6f1c2d3e-…
    """
    job = target.calls().call("DescribeJob", id=[job_id])["job"]
    calls = target.connection().caller()

    def is_done() -> bool:
        nonlocal job
        job = calls.call("DescribeJob", id=[job_id])["job"]
        return TransactionStatus(job["status"]).is_final

    is_over = wait_until(is_done, job["name"], lambda: job["properties"], timeout)
    _print_job(job)
    if not is_over:
        refuse(f"{job_id} has not ended after {timeout:g} s; it goes on.", ExitStatus.TIMED_OUT)
    if job["status"] != "Succeeded":
        raise SystemExit(1)


def _resume(target: JobTarget, job_id: str) -> None:
    """Resume here a job that failed, or whose driver died; finished parts are not repeated.

    \b
    Example:
      tiltyard job resume --uri http://127.0.0.1:2333 6f1c2d3e-… --master 'local[4]'
    """
    calls, owner = target.connection().caller(), new_owner()
    description = target.calls().call("DescribeJob", id=[job_id])["job"]
    if description["status"] in ("Succeeded", "Canceled"):
        raise InvalidTableStateError(f"The job {job_id} is {description['status']}: there is nothing to resume.")
    job = find_job(description["name"])
    spark = target.session(job, description.get("spark"))
    if description.get("paused"):
        calls.call("ResumeJob", job_id=job_id)
    with interruptible() as interruption:
        queued = claim_job(calls, job_id, owner, check=interruption.check)
        _drive_here(job, queued, owner, target, spark, interruption)


def _errors(target: JobTarget, table: str, column: str, limit: int) -> None:
    """List rows of a column that backfills have parked, and that have no value yet, with their errors.

    `tiltyard job backfill … --parked` computes them alone.

    \b
    Example:
      tiltyard job errors --uri http://127.0.0.1:2333 films letters
    """
    found = catalog_table(target.connection(), table)
    rows = parked_rows(target.calls(), found, found.dataset(), column)
    for row in rows.select(PARKED_SCHEMA.names).slice(0, limit).to_pylist():
        error = f"{row['error_type']}: {row['error_message']}" if row["error_type"] else "its error was not recorded"
        click.echo(f"_rowid {row['_rowid']}  {error}  {row['job'] or ''}".rstrip())
    click.echo(f"{rows.num_rows} parked")


def _print_job(job: Mapping[str, Any]) -> None:
    head = {"job": job["id"], "name": job["name"], "status": job["status"], "attempts": job["attempts"]}
    error = {"error": job["error"]} if job.get("error") else {}
    for name, value in {**head, **error, **job["arguments"], **job["properties"]}.items():
        click.echo(f"{name}: {value}")


_JOB: list[click.Parameter] = [click.Argument(["job_id"], metavar="JOB")]
_STEERING_COMMANDS: Mapping[str, tuple[Callable[..., None], list[click.Parameter], bool]] = {
    "list": (
        _list,
        [
            click.Option(["--name"], help="Only jobs of this name."),
            click.Option(
                ["--status"], help="Only jobs of this status: Queued, Running, Succeeded, Failed or Canceled."
            ),
            click.Option(["--limit"], type=int, default=50, show_default=True, help="Maximal number of jobs."),
        ],
        False,
    ),
    "errors": (
        _errors,
        [
            click.Argument(["table"], type=TABLE_OF_JOB),
            click.Argument(["column"]),
            click.Option(["--limit"], type=click.IntRange(min=0), default=50, show_default=True, help="How many rows."),
        ],
        False,
    ),
    "show": (_show, _JOB, False),
    "cancel": (_cancel, _JOB, False),
    "pause": (_pause, _JOB, False),
    "unpause": (_unpause, _JOB, False),
    "wait": (_wait, [*_JOB, TIMEOUT], False),
    "resume": (_resume, _JOB, True),
}
