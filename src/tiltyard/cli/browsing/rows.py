"""`tiltyard head | count`: rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import limit_option
from tiltyard.cli.output.formats import OutputFormat, format_option, print_rows
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import COLUMN, COLUMNS, TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

ALL_ROWS = 2**63 - 1


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --where."""
    return click.option("--where", metavar="FILTER", help="Only rows that this SQL filter selects: year < 1960")(
        command
    )


def version_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --version and --branch."""
    command = click.option("--branch", help="A branch instead of main.")(command)
    return click.option("--version", help="A version, or a tag, instead of the newest version.")(command)


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --columns."""
    return click.option("--columns", type=COLUMNS, metavar="A,B,…", help="Only these columns; all by default.")(command)


@click.command("head", short_help="Show rows of a table.")
@click.argument("table", type=TABLE)
@limit_option(default=10)
@columns_option
@where_option
@click.option("--order-by", type=COLUMN, metavar="COLUMN", help="Order by a column; COLUMN:desc for the largest first.")
@version_options
@format_option
@catalog_command
def head(
    catalog: Caller,
    table: TypedId,
    limit: int,
    columns: str | None,
    where: str | None,
    order_by: str | None,
    version: str | None,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Show the first rows of a table, or of those that a filter selects.

    \b
    Examples:
      tiltyard head library.books
      tiltyard head library.books -n 3 --columns title,year --where 'year < 1960' --order-by year:desc
      tiltyard head library.books --version 3 --format jsonl
    """
    from tiltyard.calls.searches import resolve_version

    rows = catalog.read(
        "QueryTable",
        **query(table, limit, columns),
        filter=where,
        version=resolve_version(catalog, table, version),
        branch=branch,
        order_by=None if order_by is None else [parse_order(order_by)],
    )
    print_rows(rows, form)


def query(table: TypedId, limit: int, columns: str | None) -> dict[str, Any]:
    """Return the fields of a query of rows without a search. Raises CommandError."""
    request: dict[str, Any] = {"id": list(table), "k": limit, "vector": {"single_vector": []}}
    names = parse_columns(columns)
    return {**request, "columns": {"column_names": names}} if names else request


def parse_columns(text: str | None, option: str = "--columns") -> list[str]:
    """Parse the names of an option, which are parted by commas; none for None. Raises CommandError."""
    names = [name.strip() for name in text.split(",")] if text else []
    if "" in names:
        raise CommandError(f"{option} names an empty column: write title,year.", ExitStatus.USAGE)
    return names


def parse_order(text: str) -> dict[str, Any]:
    """Parse COLUMN, COLUMN:asc or COLUMN:desc into the order of a query."""
    name, _, direction = text.rpartition(":")
    if direction in ("asc", "desc") and name:
        return {"column_name": name, "ascending": direction == "asc"}
    return {"column_name": text, "ascending": True}


@click.command("count", short_help="Count the rows of a table.")
@click.argument("table", type=TABLE)
@where_option
@version_options
@catalog_command
def count(catalog: Caller, table: TypedId, where: str | None, version: str | None, branch: str | None) -> None:
    """Print the number of rows, or of those that a filter selects.

    \b
    Example:
      tiltyard count library.books --where 'year < 1960'
    """
    from tiltyard.calls.searches import resolve_version

    number = resolve_version(catalog, table, version)
    click.echo(catalog.call("CountTableRows", id=list(table), predicate=where, version=number, branch=branch))
