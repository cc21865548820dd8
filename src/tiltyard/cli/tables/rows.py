"""`tiltyard update | delete`: change and delete rows of a table, after their number was confirmed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.options import confirm, yes_option
from tiltyard.cli.output.formats import OutputFormat, outcome_option, print_outcome
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

ALL_ROWS = "true"


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which rows a command changes, and how it asks."""
    for add in (
        outcome_option,
        click.option("--branch", help="A branch instead of main."),
        yes_option,
        click.option("--dry-run", is_flag=True, help="Only count the rows."),
        click.option("--all", "takes_all", is_flag=True, help="All rows."),
        click.option("--where", metavar="FILTER", help="The rows that this SQL filter selects: year < 1960"),
    ):
        command = add(command)
    return command


@click.command("update", short_help="Change rows of a table.")
@click.argument("table", type=TABLE)
@click.option("--set", "assignments", multiple=True, metavar="COLUMN=SQL", help="What a column becomes; any number.")
@selection_options
@catalog_command
def update(
    catalog: Caller,
    table: TypedId,
    assignments: tuple[str, ...],
    where: str | None,
    takes_all: bool,
    dry_run: bool,
    is_confirmed: bool,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Set columns of the rows that --where selects, or of --all, to SQL expressions, in one commit.

    An expression may use the row's columns; a text in it stands in single quotes. It asks first, with the number of
    rows. The version before stays: tiltyard restore.

    \b
    Examples:
      tiltyard update library.books --set 'year = year + 1' --where 'year < 1960'
      tiltyard update library.books --set "title = 'Moby Dick'" --set 'rating = NULL' --where 'id = 3' --yes
      tiltyard update library.books --set 'price = price * 1.1' --all --dry-run
    """
    updates = [parse_assignment(text) for text in assignments]
    if not updates:
        raise CommandError("Say what changes: --set 'year = year + 1'.", ExitStatus.USAGE)
    _, rows, record = _select(catalog, table, where, branch, takes_all=takes_all)
    if dry_run or not rows:
        print_outcome(_describe(table, rows, where, "would change", dry_run=dry_run), record, form)
        return
    changes = ", ".join(f"{name} = {expression}" for name, expression in updates)
    confirm(f"{_describe(table, rows, where, 'get')} {changes}. Go on?", is_confirmed=is_confirmed)
    with advising_quotes(updates):
        made = catalog.call(
            "UpdateTable", id=list(table), updates=updates, predicate=None if takes_all else where, branch=branch
        )
    record |= {"rows": made["updated_rows"], "version": made["version"]}
    print_outcome(f"{record['rows']} rows of {table} changed{_way_back(table, made['version'], branch)}", record, form)


@click.command("delete", short_help="Delete rows of a table.")
@click.argument("table", type=TABLE)
@selection_options
@catalog_command
def delete(
    catalog: Caller,
    table: TypedId,
    where: str | None,
    takes_all: bool,
    dry_run: bool,
    is_confirmed: bool,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Delete the rows that --where selects, or --all, in one commit; the table stays.

    It asks first, with the number of rows. The version before stays: tiltyard restore. tiltyard rm drops a table.

    \b
    Examples:
      tiltyard delete library.books --where 'year < 1960'
      tiltyard delete library.books --where "title = 'Moby Dick'" --dry-run
      tiltyard delete library.books --all --yes
    """
    predicate, rows, record = _select(catalog, table, where, branch, takes_all=takes_all)
    if dry_run or not rows:
        print_outcome(_describe(table, rows, where, "would be deleted", dry_run=dry_run), record, form)
        return
    confirm(f"{_describe(table, rows, where, 'are deleted')}. Go on?", is_confirmed=is_confirmed)
    made = catalog.call("DeleteFromTable", id=list(table), predicate=predicate, branch=branch)
    record |= {"rows": made["num_deleted_rows"], "version": made["version"]}
    print_outcome(f"{record['rows']} rows of {table} deleted{_way_back(table, made['version'], branch)}", record, form)


def parse_assignment(text: str) -> list[str]:
    """Parse COLUMN=SQL. Raises CommandError."""
    name, equals, expression = text.partition("=")
    if not (equals and name.strip() and expression.strip()):
        raise CommandError(f"--set '{text}' is not COLUMN=SQL, as in --set 'year = year + 1'.", ExitStatus.USAGE)
    return [name.strip(), expression.strip()]


@contextmanager
def advising_quotes(updates: list[list[str]]) -> Iterator[None]:
    """Say that a text stands in quotes, where a word of an update is no column. Raises CommandError."""
    from lance_namespace.errors import TableColumnNotFoundError

    try:
        yield
    except TableColumnNotFoundError as error:
        for name, expression in updates:
            if expression.isidentifier() and f"'{expression}'" in str(error):
                raise CommandError(
                    f"{error} A text stands in single quotes: --set \"{name} = '{expression}'\"", ExitStatus.NOT_FOUND
                ) from error
        raise


def _select(
    catalog: Caller, table: TypedId, where: str | None, branch: str | None, *, takes_all: bool
) -> tuple[str, int, dict[str, Any]]:
    """Return the filter of the rows that a command changes, how many they are, and what it prints of that.

    Raises CommandError.
    """
    if where is not None and takes_all:
        raise CommandError("--where and --all both say which rows: leave one out.", ExitStatus.USAGE)
    if where is None and not takes_all:
        raise CommandError("Say which rows: --where FILTER, or --all.", ExitStatus.USAGE)
    if where is not None and not where.strip():
        raise CommandError("--where is empty: --all takes all rows.", ExitStatus.USAGE)
    predicate = ALL_ROWS if where is None else where
    rows = int(catalog.call("CountTableRows", id=list(table), predicate=predicate, branch=branch))
    return predicate, rows, {"table": str(table), "rows": rows}


def _describe(table: TypedId, rows: int, where: str | None, verb: str, *, dry_run: bool = False) -> str:
    """Return a sentence on the rows that a command selects, as far as its verb."""
    if not rows and not dry_run:
        selected = "has no rows" if where is None else f"has no row with {where}"
        return f"{table} {selected}: nothing was changed"
    of = f"All {rows} rows" if where is None else f"{rows} rows"
    which = "" if where is None else f" with {where}"
    return f"{of} of {table}{which} {verb}"


def _way_back(table: TypedId, version: int, branch: str | None) -> str:
    """Return what a sentence on a change ends with: the version, and how the one before comes back."""
    if branch is not None:  # restore is of main
        return f", as version {version} of {branch}"
    return f", as version {version}; back with: tiltyard restore {shlex.quote(str(table))} {version - 1}"
