"""`tiltyard sql`: a query over the tables of the catalog, by Arrow Flight or in this process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tiltyard.cli.output.formats import OutputFormat, format_option
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller


@click.command("sql", short_help="Run a SQL query.")
@click.argument("query")
@click.option(
    "--sql-server", metavar="URL", help="Where SQL is served: grpc://host:port [default: the server's next port]."
)
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
    from tiltyard.cli.output.formats import print_rows

    print_rows(catalog.query_sql(sys.stdin.read() if query == "-" else query, sql_server), form)
