"""`tiltyard training-set`: frozen rows in splits, made, listed, shown, verified and dropped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import CatalogTarget, opened_lake, target_options

if TYPE_CHECKING:
    from tiltyard.lake import TrainingSet


@click.group("training-set", cls=CommandGroup, short_help="Freeze rows in splits to train on.")
def training_set() -> None:
    """Make, list, show, verify and drop training sets: frozen versions of rows, each in a split that it stays in.

    \b
    Example:
      tiltyard training-set create clicks_may --table clicks --split train=0.9 --split val=0.1 --by user_id
    """


@training_set.command("create", short_help="Make a training set.")
@click.argument("name", type=TABLE)
@click.option("--table", type=TABLE, help="The table that it is of.")
@click.option("--version", type=int, help="The version of the table [default: the newest].")
@click.option("--query", help="A SELECT, instead of a table; its rows become the table NAME_rows.")
@click.option("--split", "splits", multiple=True, metavar="NAME=FRACTION", help="A split [default: train=1].")
@click.option("--by", multiple=True, metavar="COLUMN", help="Rows with one value of it are in one split.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed assigns rows in another way.")
@click.option("--stratify", metavar="COLUMN", help="Each split has its fraction of each value of it.")
@click.option("--weights", metavar="COLUMN", help="A column of numbers, 0 to 1: the share of such rows in the set.")
@click.option("--weight", "classes", multiple=True, metavar="VALUE=NUMBER", help="The weight of a value of --stratify.")
@click.option("--filter", "condition", metavar="SQL", help="Only the rows that meet a condition.")
@click.option("--columns", metavar="NAMES", help="Only these columns: a,b.")
@target_options
def create(
    target: CatalogTarget,
    name: TypedId,
    table: TypedId | None,
    version: int | None,
    query: str | None,
    splits: tuple[str, ...],
    by: tuple[str, ...],
    seed: int,
    stratify: str | None,
    weights: str | None,
    classes: tuple[str, ...],
    condition: str | None,
    columns: str | None,
) -> None:
    """Make the training set NAME of a table or of a query. One that exists with the same options stays as it is.

    \b
    Example:
      tiltyard training-set create clicks_may --table clicks --split train=0.9 --split val=0.1 --by user_id
    """
    if (table is None) == (query is None):
        raise CommandError("Say of what the set is: --table, or --query.", ExitStatus.USAGE)
    if version is not None and table is None:
        raise CommandError("--version is of a table: name it by --table.", ExitStatus.USAGE)
    if weights is not None and classes:
        raise CommandError("--weights and --weight both say how rows are chosen: leave one out.", ExitStatus.USAGE)
    fractions, by_class = _parse_numbers(splits, "--split"), _parse_numbers(classes, "--weight")
    with opened_lake(target) as lake:
        source = None if table is None else lake.table(str(table))
        made = lake.training_set(
            str(name),
            source if source is None or version is None else source.at(version),
            query=query,
            splits=fractions or None,
            by=list(by) or None,
            seed=seed,
            stratify=stratify,
            weights=weights or by_class or None,
            filter=condition,
            columns=columns,
        )
        click.echo(f"{made.name} has {_counts(made)}; its digest is {made.digest}")


@training_set.command("list", short_help="List the training sets.")
@format_option
@target_options
def list_sets(target: CatalogTarget, form: OutputFormat) -> None:
    """List the training sets with their sources and splits.

    \b
    Example:
      tiltyard training-set list --format jsonl
    """
    with opened_lake(target) as lake:
        records: list[dict[str, Any]] = [
            {
                "name": made.name,
                "created": made.manifest["created_at"],
                "source": made.manifest["source"]["table"],
                "version": made.manifest["version"],
                "splits": _counts(made),
            }
            for made in lake.training_sets()
        ]
        print_records(records, ("name", "created", "source", "version", "splits"), form, numbers=("version",))


@training_set.command("show", short_help="Print a training set's manifest.")
@click.argument("name", type=TABLE)
@target_options
def show(target: CatalogTarget, name: TypedId) -> None:
    """Print the manifest of the training set NAME, as JSON: its source, arguments, splits, schema and digest.

    \b
    Example:
      tiltyard training-set show clicks_may
    """
    with opened_lake(target) as lake:
        click.echo(json.dumps(lake.training_set(str(name)).manifest, indent=2, ensure_ascii=False))


@training_set.command("verify", short_help="Choose a training set's rows again, and compare.")
@click.argument("name", type=TABLE)
@target_options
def verify(target: CatalogTarget, name: TypedId) -> None:
    """Choose the rows of the training set NAME again, of the version that it is of, and compare them with its manifest.

    \b
    Example:
      tiltyard training-set verify clicks_may
    """
    with opened_lake(target) as lake:
        click.echo(f"{name} is as it was made: {lake.training_set(str(name)).verify()}")


@training_set.command("drop", short_help="Drop a training set.")
@click.argument("name", type=TABLE)
@target_options
def drop(target: CatalogTarget, name: TypedId) -> None:
    """Drop the training set NAME; the version that it is of is kept no longer than others.

    \b
    Example:
      tiltyard training-set drop clicks_may
    """
    with opened_lake(target) as lake:
        lake.training_set(str(name)).drop()
        click.echo(f"The training set {name} is dropped")


def _counts(made: TrainingSet) -> str:
    return ", ".join(f"{split} {count}" for split, count in made.splits.items())


def _parse_numbers(values: tuple[str, ...], option: str) -> dict[str, float]:
    """Return numbers by name, of NAME=NUMBER each. Raises CommandError."""
    parsed: dict[str, float] = {}
    for value in values:
        name, _, number = value.rpartition("=")
        try:
            parsed[name] = float(number)
        except ValueError as error:
            raise CommandError(f"{option} is '{value}': write NAME=NUMBER, as train=0.9.", ExitStatus.USAGE) from error
        if not name:
            raise CommandError(f"{option} is '{value}': write NAME=NUMBER, as train=0.9.", ExitStatus.USAGE)
    return parsed
