"""`tiltyard changes`: the rows that versions of a table inserted, updated and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiltyard.cli.browsing.rows import columns_option, parse_columns
from tiltyard.cli.options import limit_option
from tiltyard.cli.output.formats import OutputFormat, format_option, print_rows
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import CatalogTarget, defer_imports, opened_catalog, target_options

if TYPE_CHECKING:
    import pyarrow as pa


@click.command("changes", short_help="Show the rows that versions changed.")
@click.argument("table", type=TABLE)
@click.option(
    "--since", required=True, metavar="VERSION", help="The version, or a tag, after which to begin; 0 for all."
)
@click.option("--until", metavar="VERSION", help="The last version, or a tag; the newest by default.")
@click.option("--on", metavar="A,B,…", help="Columns by which a row is the same row; the primary key by default.")
@columns_option
@click.option("--branch", help="A branch instead of main.")
@limit_option("How many rows; all by default.")
@format_option
@target_options
def changes(
    target: CatalogTarget,
    table: TypedId,
    since: str,
    until: str | None,
    on: str | None,
    columns: str | None,
    branch: str | None,
    limit: int | None,
    form: OutputFormat,
) -> None:
    """Show the rows that the versions of TABLE after --since inserted, updated and deleted.

    Each has its _change (insert, update_before, update_after, delete), the _version that made it, and its _timestamp.
    Only rows that changed are read, from the table's files, which this command opens itself. A table with neither a
    key nor stable row ids has a deletion and an insertion for each update.

    \b
    Examples:
      tiltyard changes library.books --since 12
      tiltyard changes library.books --since release --until 20 --columns isbn,title --on isbn --format jsonl
    """
    defer_imports()
    with opened_catalog(target, (table,)):
        from tiltyard.change_feed.reader import read_changes
        from tiltyard.lake.errors import translate
        from tiltyard.pipeline.catalog_client import table as catalog_table
        from tiltyard.pipeline.table_changes import open_feed

        with translate():
            feed = open_feed(
                catalog_table(target.connection(), tuple(table)),
                _parse_version(since),
                None if until is None else _parse_version(until),
                columns=parse_columns(columns) or None,
                on=parse_columns(on) or None,
                branch=branch,
            )
            rows = read_changes(feed.plan.groups, feed.plan.schema, feed.open_version)
            print_rows(_first_rows(feed.plan.schema, rows, limit), form)


def _parse_version(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _first_rows(schema: pa.Schema, batches: Iterator[pa.RecordBatch], limit: int | None) -> pa.RecordBatchReader:
    """Return a reader of the first rows; of all for None."""
    import pyarrow as pa

    def first() -> Iterator[pa.RecordBatch]:
        remaining = limit
        for batch in batches:
            if remaining is not None and batch.num_rows >= remaining:
                yield batch.slice(0, remaining)
                return
            remaining = None if remaining is None else remaining - batch.num_rows
            yield batch

    return pa.RecordBatchReader.from_batches(schema, first())
