"""`tiltyard add-column`: a new column of a table."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.formats import OutputFormat, outcome_option, print_outcome
from tiltyard.cli.output.progress import timeout_option, wait_until
from tiltyard.cli.session.failures import CommandError, ExitStatus, status_of
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.local_work import is_server, running_here
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

SUCCEEDED = "Succeeded"


@click.command("add-column", short_help="Add a column to a table.")
@click.argument("table", type=TABLE)
@click.argument("column", metavar="NAME[:TYPE]")
@click.argument("expression", metavar="[SQL]", required=False)
@click.option("--computed", is_flag=True, help="Keep the expression with the column, which a backfill computes.")
@click.option("--auto-refresh", is_flag=True, help="Compute it again by itself when rows come or change.")
@click.option("--wait", is_flag=True, help="Wait until a computed column has its values.")
@timeout_option
@click.option("--branch", help="A branch instead of main.")
@outcome_option
@catalog_command
def add_column(
    catalog: Caller,
    table: TypedId,
    column: str,
    expression: str | None,
    computed: bool,
    auto_refresh: bool,
    wait: bool,
    timeout: float | None,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Add a column: with the values of an SQL expression over the others, or by NAME:TYPE without values.

    The rows that are there get their values at once, in one commit; rows that come later have none. A --computed column
    keeps its expression: each backfill computes what is missing or stale, and the first one is queued now
    (table.add_column of the Python API, docs/jobs.md). Types are those of tiltyard create.

    \b
    Examples:
      tiltyard add-column library.books decade 'year - year % 10'
      tiltyard add-column library.books note:string
      tiltyard add-column library.books letters 'length(title)' --computed --auto-refresh
    """
    _check(column, expression, computed=computed, auto_refresh=auto_refresh, wait=wait, timeout=timeout)
    fields = _fields(column, expression, computed=computed, auto_refresh=auto_refresh)
    name = column if expression is not None else column.partition(":")[0]
    version = catalog.call("AlterTableAddColumns", id=list(table), branch=branch, **fields)["version"]
    record = {"table": str(table), "column": name, "version": version}
    if not computed:
        print_outcome(f"{name} is a column of {table}, as version {version}", record, form)
        return
    job = _queue_backfill(catalog, table, name, branch)
    backfill = Backfill(catalog, table, name, job)
    record["job"] = job
    if wait or not is_server(catalog):
        rows = backfill.wait(timeout)
        print_outcome(f"{name} is a column of {table}, computed for {rows} rows", {**record, "rows": rows}, form)
    else:
        print_outcome(f"{name} is a column of {table}. {backfill.describe()}", record, form)


def _check(
    column: str, expression: str | None, *, computed: bool, auto_refresh: bool, wait: bool, timeout: float | None
) -> None:
    """Raise CommandError for arguments that do not go together."""
    if expression is None and ":" not in column:
        raise CommandError(
            f"Say what {column} is: an SQL expression behind it, or its type, as {column}:int64.", ExitStatus.USAGE
        )
    if expression is not None and ":" in column:
        raise CommandError(
            "An expression has a type of its own: leave the type out, and write CAST(… AS …) in the expression.",
            ExitStatus.USAGE,
        )
    if computed and expression is None:
        raise CommandError("--computed is of an SQL expression: write it behind the name.", ExitStatus.USAGE)
    if (auto_refresh or wait) and not computed:
        flag = "--auto-refresh" if auto_refresh else "--wait"
        raise CommandError(f"{flag} is of --computed columns: other ones have their values at once.", ExitStatus.USAGE)
    if timeout is not None and not wait:
        raise CommandError("--timeout is of --wait: give both, or leave it out.", ExitStatus.USAGE)


def _fields(column: str, expression: str | None, *, computed: bool, auto_refresh: bool) -> dict[str, Any]:
    """Return the fields of the request that say what the column is. Raises CommandError."""
    if expression is not None:
        entry = {"name": column, "computed" if computed else "expression": expression}
        return {"new_columns": [entry], "auto_refresh_enabled": auto_refresh or None}
    import msgspec
    import pyarrow as pa

    from tiltyard.cli.tables.create import parse_column
    from tiltyard.model.schemas.arrow_json import to_json

    return {"new_columns": [], "schema": msgspec.to_builtins(to_json(pa.schema([parse_column(column)])))}


def _queue_backfill(catalog: Caller, table: TypedId, column: str, branch: str | None) -> str:
    """Queue the job that computes a new column; return its id. Raises CommandError: the column is there by then."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        return str(catalog.call("AlterTableBackfillColumns", id=list(table), column=column, branch=branch)["job_id"])
    except LanceNamespaceError as error:
        raise CommandError(
            f"{column} is a column of {table} now, and not computed: {error}", status_of(error)
        ) from error


class Backfill:
    """A job that computes a column: a server's own worker does it for a small table, Spark for a large one."""

    def __init__(self, catalog: Caller, table: TypedId, column: str, job: str) -> None:
        self._catalog = catalog
        self._table = table
        self._column = column
        self._job = job
        self._state: dict[str, Any] = {}
        self._look()
        self._takes_spark = self._state["properties"]["kind"] == "backfill"

    def _look(self) -> bool:
        """Look how far it is; return whether it has ended."""
        from tiltyard.model.modes import TransactionStatus

        self._state = self._catalog.call("DescribeTransaction", id=[self._job])
        return TransactionStatus(self._state["status"]).is_final

    def describe(self) -> str:
        """Return a sentence on who computes it."""
        if not self._takes_spark:
            return "Its values are being computed"
        command = f"tiltyard job wait {self._job} --uri {shlex.quote(self._catalog.address)}"
        return f"A worker with Spark computes it: {command}"

    def wait(self, seconds: float | None) -> int:
        """Wait until it has ended; return the number of rows. Raises CommandError."""
        if self._takes_spark and not is_server(self._catalog):
            raise CommandError(
                f"{self._column} is a column now. Its table is too large to be computed here without Spark: tiltyard "
                f"job resume {self._job} --uri {shlex.quote(self._catalog.address)}"
            )
        with running_here(self._catalog, [self._job]):
            title = f"{self._column} of {self._table}"
            if not wait_until(self._look, title, lambda: self._state["properties"], seconds):
                raise CommandError(
                    f"{self._column} is a column, not yet computed after {seconds:g} s; it goes on. {self.describe()}.",
                    ExitStatus.TIMED_OUT,
                )
        if self._state["status"] != SUCCEEDED:
            reason = self._state["properties"].get("error") or self._state["status"].lower()
            raise CommandError(f"{self._column} is a column, and could not be computed: {reason}")
        return int(self._state["properties"].get("rows", "0"))
