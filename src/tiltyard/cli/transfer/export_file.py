"""`tiltyard export`: the rows of a table as a file, which is there once it is whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from tiltyard.cli.browsing.rows import ALL_ROWS, columns_option, query, version_options, where_option
from tiltyard.cli.options import limit_option
from tiltyard.cli.output.formats import OutputFormat, write_rows
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE_OR_CATALOG_FILE, TABLE_OR_NAMESPACE, TypedId, parse_typed_id
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


@click.command("export", short_help="Write a table to a file, or declare the catalog in one.")
@click.argument("table", type=TABLE_OR_CATALOG_FILE)
@click.argument("file", required=False)
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
@limit_option("How many rows; all by default.")
@version_options
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option(
    "--within", type=TABLE_OR_NAMESPACE, metavar="NAMESPACE", help="Of a catalog in YAML only this namespace."
)
@catalog_command
def export_file(
    catalog: Caller,
    table: TypedId | str,
    file: str | None,
    format_name: str | None,
    columns: str | None,
    where: str | None,
    limit: int | None,
    version: str | None,
    branch: str | None,
    force: bool,
    within: TypedId | None,
) -> None:
    """Write the rows of TABLE to FILE (.parquet, .arrow, .csv, .jsonl), in flat memory; - is standard output.

    The file is there once it is whole. In CSV, nested values are JSON and bytes are base64. Large tables are exported
    in parallel, as many Parquet files, by Spark: tiltyard job export.

    With a file of YAML alone, all that you may see of the catalog is declared there, without rows: namespaces, tables,
    views, roles, grants, policies, mounts, publications, schedules. `tiltyard apply` makes a catalog so.

    \b
    Examples:
      tiltyard export library.books books.parquet
      tiltyard export catalog.yaml
      tiltyard export shop.yaml --within shop
      tiltyard export library.books - --format csv --where 'year < 1960' --columns title,year
    """
    from tiltyard.calls.searches import resolve_version
    from tiltyard.cli.output.progress import byte_progress

    if file is None:
        options = (format_name, columns, where, limit, version, branch)
        has_options = any(each is not None for each in options)
        _export_catalog(catalog, table, within or TypedId(), force=force, has_options=has_options)
        return
    if within is not None:
        raise CommandError("--within goes with a file of YAML alone.", ExitStatus.USAGE)
    if isinstance(table, str):  # a table may be called so, too
        table = parse_typed_id(table)
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


def _export_catalog(catalog: Caller, file: TypedId | str, within: TypedId, *, force: bool, has_options: bool) -> None:
    """Declare the catalog in a file. Raises CommandError."""
    from tiltyard.cli.catalogs.as_code import describe_left_out
    from tiltyard.declarations.plan import export_catalog

    if not isinstance(file, str):
        raise CommandError(f"Name the file for the rows of {file}, or catalog.yaml alone.", ExitStatus.USAGE)
    if has_options:
        raise CommandError("Only --force and --within go with a file of YAML: rows are none of it.", ExitStatus.USAGE)
    if not force and Path(file).exists():
        raise CommandError(f"{file} exists: --force replaces it.", ExitStatus.LOCAL_FILE)
    export = export_catalog(catalog, within)
    with _atomic_file(Path(file)) as opened:
        opened.write(export.text.encode())
    for line in describe_left_out(export.left_out):
        click.echo(line, err=True)
    click.echo(f"Objects that {file} declares: {export.objects:,}")


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
