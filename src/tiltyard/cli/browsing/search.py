"""`tiltyard search`: rows by text, by vector, or by both."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiltyard.cli.browsing.rows import columns_option, parse_columns, version_options, where_option
from tiltyard.cli.options import limit_option
from tiltyard.cli.output.formats import OutputFormat, format_option, print_rows
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import COLUMN, COLUMNS, TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

MAX_VECTOR_BYTES = 1 << 20


@click.command("search", short_help="Search a table by text, by vector, or by both.")
@click.argument("table", type=TABLE)
@click.argument("text", required=False)
@click.option("--vector", metavar="JSON|FILE", help="A vector: a JSON list, or a file that holds one.")
@click.option("--like", metavar="ROW", help="The vector of a row: a filter that selects it, as 'id = 7'.")
@click.option("--vector-column", type=COLUMN, help="The column of vectors, where the table has several.")
@click.option(
    "--text-columns",
    type=COLUMNS,
    metavar="A,B,…",
    help="Search the text in these columns; in all indexed ones by default.",
)
@limit_option(default=10, least=1)
@columns_option
@where_option
@version_options
@format_option
@catalog_command
def search(
    catalog: Caller,
    table: TypedId,
    text: str | None,
    vector: str | None,
    like: str | None,
    vector_column: str | None,
    text_columns: str | None,
    limit: int,
    columns: str | None,
    where: str | None,
    version: str | None,
    branch: str | None,
    form: OutputFormat,
) -> None:
    """Search TABLE for TEXT (it needs a full-text index), for the rows nearest to a vector, or for both together.

    A hybrid search joins the two orders by reciprocal rank fusion. --where selects rows before the search. Vectors are
    left out of the rows, unless --columns names them.

    \b
    Examples:
      tiltyard search library.books 'old ship' -n 5 --columns title,year
      tiltyard search library.books --vector '[0.1, 0.9]' --where 'year < 1960'
      tiltyard search library.books --like "title = 'Moby Dick'"
      tiltyard search library.books 'whale' --like "title = 'Moby Dick'"
    """
    from tiltyard.calls.searches import SearchOptions, find_rows

    if text is None and vector is None and like is None:
        raise CommandError("Name a text, a --vector or a row (--like).", ExitStatus.USAGE)
    if vector is not None and like is not None:
        raise CommandError("--vector and --like are both the vector: leave one out.", ExitStatus.USAGE)
    sought = SearchOptions(
        text=text,
        vector=None if vector is None else _parse_vector(vector),
        like=like,
        vector_column=vector_column,
        text_columns=parse_columns(text_columns),
        limit=limit,
        columns=parse_columns(columns),
        where=where,
        version=version,
        branch=branch,
    )
    print_rows(find_rows(catalog, table, sought), form)


def _parse_vector(text: str) -> list[float]:
    """Parse a JSON list of numbers, or read it from a file. Raises CommandError."""
    if not text.lstrip().startswith("["):
        path = Path(text)
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_size > MAX_VECTOR_BYTES:
                raise CommandError(f"{path} has more than {MAX_VECTOR_BYTES >> 20} MiB: one vector has fewer.")
            text = file.read()
    try:
        values = json.loads(text)
        if not isinstance(values, list) or not values:
            raise TypeError
        return [float(value) for value in values]
    except (ValueError, TypeError) as error:
        raise CommandError("The vector is no JSON list of numbers, as [0.1, 0.9].", ExitStatus.USAGE) from error
