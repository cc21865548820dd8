"""`tiltyard create`: a new table, of columns that are typed, of another table's, or of a query."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiltyard.cli.browsing.sql import run_query, sql_server_option
from tiltyard.cli.output.formats import OutputFormat, outcome_option, print_outcome
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import COLUMNS, TABLE, TypedId
from tiltyard.cli.session.target import CatalogTarget, defer_imports, opened_catalog, target_options

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller

_OTHER_WAYS = {
    "table": "create",
    "index": "index create",
    "view": "view create",
    **dict.fromkeys(("namespace", "database", "schema"), "mkdir"),
}
"""What SQL says behind CREATE, and the commands for it."""


@click.command("create", short_help="Create a table.")
@click.argument("new_id", metavar="TABLE", type=TABLE)
@click.argument("columns", metavar="[NAME:TYPE]…", nargs=-1)
@click.option("--like", metavar="TABLE", type=TABLE, help="The columns of this table, before those that are named.")
@click.option("--as", "query", metavar="QUERY", help="Columns and rows of an SQL query; - is standard input.")
@sql_server_option
@click.option("--not-null", type=COLUMNS, metavar="A,B,…", help="Columns that always have a value.")
@click.option("--primary-key", type=COLUMNS, metavar="A,B,…", help="Columns that identify a row, which is enforced.")
@click.option("--if-not-exists", "keeps_existing", is_flag=True, help="Leave a table that exists as it is.")
@outcome_option
@target_options
def create(
    target: CatalogTarget,
    new_id: TypedId,
    columns: tuple[str, ...],
    like: TypedId | None,
    query: str | None,
    sql_server: str | None,
    not_null: str | None,
    primary_key: str | None,
    keeps_existing: bool,
    form: OutputFormat,
) -> None:
    """Create a table without rows of columns NAME:TYPE, or --like another one; or with the rows of a query (--as).

    Types are those of Arrow (int64, float32, string, bool, date32, decimal(10, 2), timestamp[us, UTC], list<string>,
    struct<a: int64>, blob), or SQL's (bigint, text, timestamp); vector(384) is a vector. Rows come with tiltyard import
    TABLE --append. A --root without a catalog gets one.

    \b
    Examples:
      tiltyard create library.books id:int64 title:string 'price:decimal(10, 2)' 'vector:vector(384)' --primary-key id
      tiltyard create library.drafts --like library.books note:string
      tiltyard create classics --as 'SELECT title, year FROM library.books WHERE year < 1960'
    """
    _check(columns, like, query, sql_server, not_null)
    defer_imports()
    with opened_catalog(target, () if like is None else (like,), new_ids=(new_id,), creates=True) as catalog:
        from lance_namespace.errors import TableAlreadyExistsError

        if query is None:
            rows = _columns(catalog, new_id, columns, like, not_null)
        else:
            rows = run_query(catalog, query, sql_server)
        key = _parse_key(primary_key, rows.schema)
        counted = _Counted(rows)
        try:
            made = catalog.write("CreateTable", counted.reader(), id=list(new_id))
        except TableAlreadyExistsError as error:
            if not keeps_existing:
                name = shlex.quote(str(new_id))
                raise CommandError(
                    f"{new_id} exists: --if-not-exists leaves it as it is, tiltyard rm {name} drops it."
                ) from error
            print_outcome(f"{new_id} exists, and stays as it is", {"table": str(new_id), "created": False}, form)
            return
        if key:
            _declare_key(catalog, new_id, key)
        record = {"table": str(new_id), "created": True, "columns": len(rows.schema), "rows": counted.number}
        print_outcome(
            f"{new_id} has {len(rows.schema)} columns and {counted.number} rows",
            {**record, "version": made.get("version")},
            form,
        )


def _check(
    columns: tuple[str, ...], like: TypedId | None, query: str | None, sql_server: str | None, not_null: str | None
) -> None:
    """Raise CommandError for arguments that do not go together."""
    if sql_server is not None and query is None:
        raise CommandError("--sql-server is of --as: leave it out.", ExitStatus.USAGE)
    if query is not None and (columns or like or not_null):
        raise CommandError(
            "--as has the columns of its query: leave NAME:TYPE, --like, --not-null out.", ExitStatus.USAGE
        )
    if query is None and like is None and not columns:
        raise CommandError(
            "Name its columns, as id:int64 title:string, or take them from a table (--like) or a query (--as). "
            "tiltyard import creates a table of a file.",
            ExitStatus.USAGE,
        )


def _columns(
    catalog: Caller, new_id: TypedId, columns: tuple[str, ...], like: TypedId | None, not_null: str | None
) -> pa.RecordBatchReader:
    """Return columns without rows, those of another table first. Raises CommandError, lance_namespace.errors."""
    import pyarrow as pa

    from tiltyard.cli.browsing.description import visible_schema

    fields = [] if like is None else list(visible_schema(catalog, like))
    fields += [parse_column(text, new_id) for text in columns]
    return _without_null(pa.schema(fields), not_null).empty_table().to_reader()


def parse_column(text: str, table: TypedId | None = None) -> pa.Field:
    """Parse NAME:TYPE. Raises CommandError."""
    import pyarrow as pa

    from tiltyard.model.refusals import RefusedError
    from tiltyard.model.schemas.type_names import parse_type

    name, colon, kind = text.partition(":")
    if not (name and colon and kind.strip()):
        command = _OTHER_WAYS.get(str(table).lower())
        hint = f" If that is no table's name: tiltyard {command} {text} …" if command else ""
        raise CommandError(f"'{text}' is not NAME:TYPE, as title:string.{hint}", ExitStatus.USAGE)
    try:
        return pa.field(name, parse_type(kind))
    except RefusedError as error:
        raise CommandError(f"{name}: {error}", ExitStatus.USAGE) from error


def _without_null(schema: pa.Schema, not_null: str | None) -> pa.Schema:
    """Return a schema in which these columns always have a value. Raises CommandError."""
    from tiltyard.cli.browsing.rows import parse_columns

    for name in parse_columns(not_null, "--not-null"):
        if name not in schema.names:
            raise CommandError(f"--not-null names {name}, which is none of the columns.", ExitStatus.USAGE)
        number = schema.get_field_index(name)
        schema = schema.set(number, schema.field(number).with_nullable(False))
    return schema


def _parse_key(text: str | None, schema: pa.Schema) -> list[str]:
    """Parse the columns of --primary-key. Raises CommandError."""
    from tiltyard.cli.browsing.rows import parse_columns

    names = parse_columns(text, "--primary-key")
    for name in names:
        if name not in schema.names:
            raise CommandError(f"--primary-key names {name}, which is none of the columns.", ExitStatus.USAGE)
    return names


def _declare_key(catalog: Caller, table: TypedId, names: list[str]) -> None:
    """Declare the primary key of a new table; drop it again where that fails. Raises lance_namespace.errors."""
    from lance_namespace.errors import LanceNamespaceError

    try:
        catalog.call("SetTablePrimaryKey", id=list(table), columns=names)
    except LanceNamespaceError:
        catalog.call("DropTable", id=list(table))
        raise


class _Counted:
    """Rows of a reader, counted as they are read."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self.number = 0
        self._rows = rows

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows; once."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            self.number += batch.num_rows
            yield batch
