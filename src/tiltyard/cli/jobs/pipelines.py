"""`tiltyard pipeline run | check` and `view create`: several tables from one file, and views of queries, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import parse_pairs
from tiltyard.cli.session.ids import TABLE_OF_JOB
from tiltyard.cli.session.job_target import JobTarget, execution_options, job_target_options
from tiltyard.runtime.process import refuse

_PLAN_PARAMETERS: list[click.Parameter] = [
    click.Argument(["file"], type=click.Path(path_type=Path)),
    click.Option(["--set", "values"], multiple=True, help="NAME=VALUE, the value of ${NAME} in the file; repeatable."),
]


@click.group("pipeline", cls=CommandGroup, short_help="Create several tables from one file, and publish them at once.")
def pipeline() -> None:
    """Create several tables as one YAML or Python file describes them, and publish them at once.

    \b
    Examples:
      tiltyard pipeline check docs.yaml
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
    """


@pipeline.command(
    "run",
    short_help="Create the tables that a file describes, index them, and publish them at once.",
    params=[*_PLAN_PARAMETERS, *execution_options(), *job_target_options(spark=True)],
)
def run(file: Path, values: tuple[str, ...], submit_it: bool, untracked: bool, **target: Any) -> None:
    """Create the tables that a file describes, index them, and publish them at once.

    \b
    Examples:
      tiltyard pipeline run docs.yaml --uri http://127.0.0.1:2333
      tiltyard pipeline run docs.yaml --set day=2026-05-01 --submit --uri http://127.0.0.1:2333
    """
    import msgspec

    from tiltyard.cli.jobs.job import refusing, run_job
    from tiltyard.pipeline.jobs import find_job
    from tiltyard.pipeline.plans.plan_file import read_plan

    with refusing(refuse):
        plan = read_plan(file, parse_pairs(values))
        arguments: dict[str, Any] = {"plan": msgspec.json.encode(plan).decode()}
        if plan.functions:
            arguments["udf"] = plan.functions
        run_job(find_job("pipeline"), arguments, JobTarget(**target), submit_it=submit_it, untracked=untracked)


@pipeline.command("check", params=_PLAN_PARAMETERS)
def check(file: Path, values: tuple[str, ...]) -> None:
    """Read a file, and show what it would do; nothing is changed.

    \b
    Example:
      tiltyard pipeline check docs.yaml
    """
    from tiltyard.cli.jobs.job import refusing
    from tiltyard.pipeline.plans.plan_file import describe_plan, read_plan

    with refusing(refuse):
        click.echo("\n".join(describe_plan(read_plan(file, parse_pairs(values)))))


@click.group("view", cls=CommandGroup, short_help="Create materialized views of queries on Spark.")
def view() -> None:
    """Create materialized views: tables that a query in Spark's SQL computes.

    \b
    Example:
      tiltyard view create late --sql "SELECT id, title FROM films WHERE year >= 2000" --uri http://127.0.0.1:2333
    """


_VIEW_PARAMETERS: list[click.Parameter] = [
    click.Argument(["name"], type=TABLE_OF_JOB),
    click.Option(["--sql"], required=True, help="The query, in Spark's SQL; tables by their ids: `shop$orders`."),
    click.Option(["--chunk"], help="What makes several rows of each: chunk_words(size=200), or chunk_words() of text."),
    click.Option(
        ["--column", "columns"],
        multiple=True,
        help="NAME=FUNCTION or NAME=SQL, a column that refreshes compute: vector=embed_text(model='m') of chunk.",
    ),
    click.Option(
        ["--index", "indexes"],
        multiple=True,
        help="COLUMN=TYPE, an index that refreshes extend, with parameters after commas: vector=IVF_PQ,metric=cosine.",
    ),
    click.Option(["--auto-refresh"], help="When the server refreshes it by itself: 'on change', 'every 5m'."),
    click.Option(["--refresh"], is_flag=True, help="Compute the rows at once."),
]


@view.command("create", params=[*_VIEW_PARAMETERS, *job_target_options(spark=True)])
def create(
    name: str,
    sql: str,
    chunk: str | None,
    columns: tuple[str, ...],
    indexes: tuple[str, ...],
    auto_refresh: str | None,
    refresh: bool,
    **options: Any,
) -> None:
    """Create a materialized view: a table that a query computes, with columns and indexes that come with its rows.

    Spark infers the columns now, so a wrong query is an error now; the rows come with a refresh.

    \b
    Examples:
      tiltyard view create late --sql "SELECT id, title FROM films WHERE year >= 2000" --uri http://127.0.0.1:2333
      tiltyard view create chunks --sql "SELECT id, text FROM pages" --chunk "chunk_words(size=200)"
        --column "vector=embed_text(model='wordllama')" --index chunk=FTS --auto-refresh "on change"
    """
    from tiltyard.cli.jobs.job import refusing

    target = JobTarget(**options)
    parts = {
        "chunk": chunk,
        "columns": parse_pairs(columns) or None,
        "indexes": [_index(text) for text in indexes] or None,
        "refresh": auto_refresh,
    }
    with refusing(refuse):
        view = target.lake().create_view(name, sql, **parts)  # type: ignore[arg-type]  # as they are named above
        click.echo(f"{view.name}: {', '.join(f'{field.name} {field.type}' for field in view.schema)}")
        if refresh:
            for figure, value in view.refresh().figures.items():
                click.echo(f"{figure}: {value}")


def _index(text: str) -> dict[str, Any]:
    """Parse COLUMN=TYPE,name=…,metric=…,PARAMETER=VALUE, with values in JSON or as text. Raises click.UsageError."""
    from tiltyard.pipeline.indexes.job import parse_parameter

    first, *others = text.split(",")
    [(column, kind)] = parse_pairs((first,)).items()
    parameters = {name: parse_parameter(value) for name, value in parse_pairs(tuple(others)).items()}
    named: dict[str, Any] = {name: parameters.pop(name) for name in ("name", "metric") if name in parameters}
    return {"column": column, "type": kind, **named, "parameters": parameters}
