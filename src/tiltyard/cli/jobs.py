"""`tiltyard job …`: the jobs of the data pipeline, run here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click
from lance_namespace.errors import LanceNamespaceError

from tiltyard.jobs import PIPELINE_JOBS
from tiltyard.pipeline.connecting import connection
from tiltyard.pipeline.jobs import Parameter, RegisteredJob, find_job
from tiltyard.pipeline.refusing import RefusedError
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Refuse = Callable[[str], NoReturn]


def job_command(name: str, refuse: Refuse) -> click.Command | None:
    """The command of a job; None for a name that no job has."""
    if name not in PIPELINE_JOBS:
        return None
    found = find_job(name)

    def run(**given: Any) -> None:
        own = {parameter.name: _value(parameter, given.pop(parameter.name)) for parameter in found.parameters}
        try:
            _run(found, {key: value for key, value in own.items() if value is not None}, **given)
        except (LanceNamespaceError, RefusedError) as error:
            refuse(str(error))

    text = inspect.getdoc(found.function) or ""
    options = [_option(parameter) for parameter in found.parameters]
    return click.Command(name, callback=run, params=[*options, *_shared()], help=text, short_help=text.split("\n")[0])


def _run(
    found: RegisteredJob,
    arguments: Mapping[str, Any],
    *,
    uri: str,
    properties: tuple[str, ...],
    storage: tuple[str, ...],
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    checked = found.checked(arguments)
    where = connection(uri, _pairs(properties), _pairs(storage))
    spark: SparkSession | None = None
    if found.spark:
        spark = spark_session(master, remote=remote, name=f"tiltyard {found.name}", config=_pairs(conf))
    for name, value in found.function(LocalRun(), where, spark, **checked).items():
        click.echo(f"{name}: {value}")


def _shared() -> list[click.Parameter]:
    """What all jobs take."""
    return [
        click.Option(["--uri"], required=True, envvar="TILTYARD_URI", help="A server, or the root of a catalog."),
        click.Option(
            ["--property", "properties"], multiple=True, help="NAME=VALUE for the catalog's client (header.…)."
        ),
        click.Option(["--storage"], multiple=True, help="NAME=VALUE for the object store, in Lance's keys."),
        click.Option(["--master"], help="Where Spark runs: local[*], spark://…, yarn, k8s://…"),
        click.Option(["--remote"], help="A Spark Connect server, sc://…"),
        click.Option(["--conf"], multiple=True, help="NAME=VALUE, a property of Spark."),
    ]


def _option(parameter: Parameter) -> click.Parameter:
    if parameter.positional and parameter.required:
        return click.Argument([parameter.name])
    flag = f"--{parameter.name.replace('_', '-')}"
    if parameter.kind is bool:
        return click.Option(
            [f"{flag}/--no-{flag[2:]}" if parameter.default else flag], default=None, is_flag=True, help=parameter.help
        )
    kind = click.Choice(parameter.choices) if parameter.choices else {int: int, float: float}.get(parameter.kind, str)
    several = parameter.many or parameter.pairs
    text = f"NAME=VALUE. {parameter.help}" if parameter.pairs else parameter.help
    return click.Option([flag, parameter.name], type=kind, required=parameter.required, multiple=several, help=text)


def _value(parameter: Parameter, given: Any) -> Any:
    """An option's value as the job takes it; None where it was not given."""
    if parameter.pairs:
        return _pairs(given) or None
    return (list(given) or None) if parameter.many else given


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, each. Raises click.UsageError."""
    parted = [text.partition("=") for text in given]
    for name, equals, _ in parted:
        if not equals:
            raise click.UsageError(f"'{name}' is no NAME=VALUE.")
    return {name: value for name, _, value in parted}
