"""`tiltyard sql`: a query over the tables of the catalog, by Arrow Flight or in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.formats import OutputFormat, format_option, print_rows
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller


def sql_server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --sql-server."""
    return click.option(
        "--sql-server", metavar="URL", help="Where SQL is served: grpc://host:port [default: the server's next port]."
    )(command)


def run_query(catalog: Caller, query: str, sql_server: str | None) -> pa.RecordBatchReader:
    """Run a query, which is read from standard input where it is "-". Raises CommandError, lance_namespace.errors."""
    from tiltyard.calls.flight_sql import SqlNotServedError

    try:
        return catalog.query_sql(sys.stdin.read() if query == "-" else query, sql_server)
    except SqlNotServedError as error:
        raise CommandError(f"{error} --sql-server names another place.", ExitStatus.UNAVAILABLE) from error


@click.command("sql", short_help="Run a SQL query.")
@click.argument("query")
@sql_server_option
@format_option
@catalog_command
def sql(catalog: Caller, query: str, sql_server: str | None, form: OutputFormat) -> None:
    """Run a SELECT over the tables of the catalog and print its rows; - reads the query from standard input.

    A table is written library.books, one in a nested namespace "library$fiction".books (docs/sql.md).

    \b
    Examples:
      tiltyard sql 'SELECT year, count(*) AS films FROM films GROUP BY year ORDER BY year'
      tiltyard sql - --format csv < report.sql
    """
    print_rows(run_query(catalog, query, sql_server), form)
