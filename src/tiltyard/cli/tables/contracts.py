"""`tiltyard contract`, `tiltyard test`: what rows of a table have to be, and whether they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.output.cells import format_time
from tiltyard.cli.output.formats import (
    OutputFormat,
    format_option,
    outcome_option,
    print_outcome,
    print_record,
    print_records,
)
from tiltyard.cli.session.failures import CommandError
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.calls.caller import Caller

PROPERTY = "tiltyard.contract"


@click.group("contract", cls=CommandGroup, short_help="Say what rows of a table have to be.")
def contract() -> None:
    """Set, show and drop the contract of a table: checks that hold for every write (docs/contracts.md).

    \b
    Example:
      tiltyard contract set library.books 'not_null(isbn)' 'expect(year > 1400)'
    """


@contract.command("set", short_help="Set the contract of a table.")
@click.argument("table", type=TABLE)
@click.argument("checks", metavar="CHECK…", nargs=-1, required=True)
@click.option(
    "--on-failure",
    type=click.Choice(["fail", "reject", "warn"]),
    default="fail",
    show_default=True,
    help="Refuse the write; park the rows that fail; or count them.",
)
@click.option(
    "--clients",
    type=click.Choice(["check", "refuse"]),
    default="check",
    show_default=True,
    help="Read what clients commit that write files themselves, or refuse it.",
)
@outcome_option
@catalog_command
def set_contract(
    catalog: Caller, table: TypedId, checks: tuple[str, ...], on_failure: str, clients: str, form: OutputFormat
) -> None:
    """Set the contract of TABLE, in place of an earlier one: each CHECK holds for all rows that are written later.

    Checks are not_null(a), between(a, 0, 1), in_set(a, x, y), matches(a, [A-Z]+), expect(a >= b) with a condition in
    SQL, unique(a) (with a primary key), rows <= 1000; and, of tests alone, freshness(a, 2d), foreign_key(a, t.b) and
    unique(a) without a key, with `test: ` before them. `warn: ` before a check counts what fails it. The rows that are
    there have to pass, or nothing is set.

    \b
    Examples:
      tiltyard contract set library.books 'not_null(isbn)' 'expect(year > 1400)' 'warn: between(rating, 0, 5)'
      tiltyard contract set library.books 'matches(isbn, \\d{13})' 'test: unique(isbn)' --on-failure reject
    """
    catalog.call("SetTableContract", id=list(table), checks=list(checks), on_failure=on_failure, clients=clients)
    record = {"table": str(table), "checks": list(checks), "on_failure": on_failure, "clients": clients}
    print_outcome(
        f"{table} has a contract of {len(checks)} checks: what fails them is {_MEANS[on_failure]}", record, form
    )


_MEANS = {"fail": "refused", "reject": "parked", "warn": "counted"}


@contract.command("show", short_help="Show the contract of a table.")
@click.argument("table", type=TABLE)
@format_option
@catalog_command
def show(catalog: Caller, table: TypedId, form: OutputFormat) -> None:
    """Show the checks of TABLE, its latest tests, and the versions of which checks have found something.

    \b
    Example:
      tiltyard contract show library.books
    """
    described = catalog.call("DescribeTableContract", id=list(table))
    if not described["checks"]:
        raise CommandError(f"{table} has no contract: tiltyard contract set declares one.")
    names = "checks", "on_failure", "clients"
    if form is not OutputFormat.TABLE:
        print_record({**{name: described[name] for name in names}, **_results(described)}, form)
        return
    record = {"checks": "\n".join(described["checks"]), "on_failure": described["on_failure"]}
    record |= {"clients": described["clients"]}
    for test in described["tests"][:1]:
        outcome = "passed" if test["passed"] else "failed"
        record["last test"] = f"{outcome}, version {test['version']}, {format_time(test['tested_at'])}"
    for commit in described["commits"][:5]:
        record[f"version {commit['version']}"] = _describe_commit(commit)
    print_record(record, form)


def _results(described: dict[str, Any]) -> dict[str, Any]:
    return {"tests": described["tests"], "commits": described["commits"]}


def _describe_commit(commit: dict[str, Any]) -> str:
    """Return what checks have found of a commit, as one line."""
    parts = [f"{check}: {count}" for check, count in (commit.get("warned") or {}).items()]
    if commit.get("rejected"):
        parts.append(f"{commit['rejected']} rejected")
    return ", ".join(parts)


@contract.command("drop", short_help="Drop the contract of a table.")
@click.argument("table", type=TABLE)
@outcome_option
@catalog_command
def drop(catalog: Caller, table: TypedId, form: OutputFormat) -> None:
    """Enforce the contract of TABLE no longer. Rows that it parked, and its results, stay.

    \b
    Example:
      tiltyard contract drop library.books
    """
    catalog.call("DropTableContract", id=list(table))
    print_outcome(f"{table} has no contract any more", {"table": str(table)}, form)


@click.command("test", short_help="Test tables and views by their contracts.")
@click.argument("tables", metavar="[TABLE]…", nargs=-1, type=TABLE)
@click.option("--version", type=click.IntRange(min=1), help="A version instead of the newest one.")
@click.option("--branch", help="A branch instead of main.")
@format_option
@catalog_command
def test(
    catalog: Caller, tables: tuple[TypedId, ...], version: int | None, branch: str | None, form: OutputFormat
) -> None:
    """Test the rows of TABLES, or of all tables and views that have a contract, by all of its checks.

    The status is 1 if a check fails that does not only warn. The results are kept with the version that was tested
    (tiltyard contract show).

    \b
    Examples:
      tiltyard test library.books library.authors
      tiltyard test --format jsonl
    """
    records: list[dict[str, Any]] = []
    failed: list[str] = []
    for table in tables or _tables_with_contracts(catalog):
        tested = catalog.call("TestTable", id=list(table), version=version, branch=branch)
        records += [{"table": str(table), "version": tested["version"], **result} for result in tested["results"]]
        if not tested["passed"]:
            failed.append(str(table))
    if form is OutputFormat.TABLE:
        records = [{**record, "passed": "yes" if record["passed"] else "no"} for record in records]
    print_records(records, ("table", "version", "check", "level", "passed", "found"), form, numbers=("version",))
    if failed:
        raise CommandError(f"{len(failed)} failed: {', '.join(failed)}.")


def _tables_with_contracts(catalog: Caller) -> Iterator[TypedId]:
    """Yield the tables and views that have a contract, of those that the caller sees. Raises CommandError for none."""
    from tiltyard.cli.browsing.listing import TABLE as TABLE_KIND
    from tiltyard.cli.browsing.listing import walk

    count = 0
    for entry in walk(catalog, TypedId(), None):
        if entry.kind != TABLE_KIND:
            continue
        described = catalog.call("DescribeTable", id=list(entry.id))
        if PROPERTY in (described.get("properties") or {}):
            count += 1
            yield entry.id
    if not count:
        raise CommandError("No table has a contract: tiltyard contract set declares one.")
