"""`tiltyard export`: the rows of a table as a file, which is there once it is whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from tiltyard.cli.browsing.rows import ALL_ROWS, columns_option, query, version_options, where_option
from tiltyard.cli.output.formats import OutputFormat
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command
from tiltyard.runtime.durability import atomic_file

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

_FORMATS = {
    ".parquet": OutputFormat.PARQUET,
    ".arrow": OutputFormat.ARROW,
    ".arrows": OutputFormat.ARROW,
    ".csv": OutputFormat.CSV,
    ".jsonl": OutputFormat.JSONL,
    ".ndjson": OutputFormat.JSONL,
    ".json": OutputFormat.JSONL,
}


@click.command("export", short_help="Write a table to a file.")
@click.argument("table", type=TABLE)
@click.argument("file")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(
        [each.value for each in (OutputFormat.PARQUET, OutputFormat.ARROW, OutputFormat.CSV, OutputFormat.JSONL)]
    ),
    help="The format, if the file's name does not tell it.",
)
@columns_option
@where_option
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="How many rows; all by default.")
@version_options
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@catalog_command
def export_file(
    catalog: Caller,
    table: TypedId,
    file: str,
    format_name: str | None,
    columns: str | None,
    where: str | None,
    limit: int | None,
    version: str | None,
    branch: str | None,
    force: bool,
) -> None:
    """Write the rows of TABLE to FILE (.parquet, .arrow, .csv, .jsonl), in flat memory; - is standard output.

    The file is there once it is whole. In CSV, nested values are JSON and bytes are base64. Large tables are exported
    in parallel, as many Parquet files, by Spark: tiltyard job export.

    \b
    Examples:
      tiltyard export library.books books.parquet
      tiltyard export library.books - --format csv --where 'year < 1960' --columns title,year
    """
    from tiltyard.calls.searches import resolve_version
    from tiltyard.cli.output.formats import write_rows
    from tiltyard.cli.output.progress import byte_progress

    form = _format(file, format_name)
    if file != "-" and not force and Path(file).exists():
        raise CommandError(f"{file} exists: --force replaces it.", ExitStatus.LOCAL_FILE)
    number = resolve_version(catalog, table, version)
    if file == "-" and form in (OutputFormat.PARQUET, OutputFormat.ARROW) and sys.stdout.isatty():
        raise CommandError(f"{form.value} is not for a terminal: redirect it.", ExitStatus.USAGE)
    limit = ALL_ROWS if limit is None else limit
    rows = catalog.read("QueryTable", **query(table, limit, columns), filter=where, version=number, branch=branch)
    if file == "-":
        write_rows(rows, form, sys.stdout.buffer)
        return
    total = 0
    with byte_progress(f"export {table}", 0) as advance, _atomic_file(Path(file)) as opened:

        def count(number: int) -> None:
            nonlocal total
            total += number
            advance(0, f"{total} rows")

        write_rows(rows, form, opened, count)
    click.echo(f"{total} rows of {table} are in {file}")


def _format(file: str, name: str | None) -> OutputFormat:
    if name is not None:
        return OutputFormat(name)
    form = _FORMATS.get(Path(file).suffix.lower())
    if form is None:
        raise CommandError(
            f"The name {file} tells no format: add --format parquet, arrow, csv or jsonl.", ExitStatus.USAGE
        )
    return form


@contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `path`, which takes its place when the block ends without an error.

    Raises CommandError for a disk that is full, or a folder that is not there.
    """
    try:
        with atomic_file(path) as temporary, temporary.open("xb") as file:
            yield file
    except ConnectionError:
        raise
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}.", ExitStatus.LOCAL_FILE) from error
