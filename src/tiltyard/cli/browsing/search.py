"""`tiltyard search`: rows by text, by vector, or by both."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.browsing.rows import columns_option, parse_columns, version_options, where_option
from tiltyard.cli.output.formats import OutputFormat, format_option
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller

MAX_VECTOR_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What to search for, by a text, a vector, or the vector of the row that the filter `like` selects."""

    text: str | None = None
    vector: Sequence[float] | None = None
    like: str | None = None
    vector_column: str | None = None
    text_columns: Sequence[str] = ()
    limit: int = 10
    columns: Sequence[str] = ()
    where: str | None = None
    version: str | None = None
    branch: str | None = None


@click.command("search", short_help="Search a table by text, by vector, or by both.")
@click.argument("table", type=TABLE)
@click.argument("text", required=False)
@click.option("--vector", metavar="JSON|FILE", help="A vector: a JSON list, or a file that holds one.")
@click.option("--like", metavar="ROW", help="The vector of a row: a filter that selects it, as 'id = 7'.")
@click.option("--vector-column", help="The column of vectors, where the table has several.")
@click.option(
    "--text-columns", metavar="A,B,…", help="Search the text in these columns; in all indexed ones by default."
)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=10, show_default=True, help="How many rows."
)
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
    from tiltyard.cli.output.formats import print_rows

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


def find_rows(catalog: Caller, table: TypedId, search: SearchOptions) -> pa.RecordBatchReader:
    """Return the rows that a search finds, best first; without vectors, unless its columns name them.

    Raises CommandError, lance_namespace.errors, as the reader does.
    """
    from tiltyard.cli.browsing.description import readable_columns
    from tiltyard.cli.session.catalog import resolve_version

    shared = {"branch": search.branch, "version": resolve_version(catalog, table, search.version)}
    schema = readable_columns(catalog, table, search.version, search.branch)
    names = search.columns or [field.name for field in schema if not is_vector(field.type)]
    request = {**_request(table, search.limit, names), "filter": search.where, "prefilter": True, **shared}
    numbers = search.vector if search.like is None else _vector_of_row(catalog, table, schema, search, shared)
    by_text = None if search.text is None else {"full_text_query": _text_query(search.text, search.text_columns)}
    by_vector = (
        None if numbers is None else {"vector": {"single_vector": [*numbers]}, "vector_column": search.vector_column}
    )
    if by_text is not None and by_vector is not None:
        return _hybrid(catalog, request, by_text, by_vector, search.limit).to_reader()
    return catalog.read("QueryTable", **{**request, **(by_text or by_vector or {})})


def _request(table: TypedId, limit: int, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "id": list(table),
        "k": limit,
        "vector": {"single_vector": []},
        "columns": {"column_names": list(columns)},
    }


def _text_query(text: str, columns: Sequence[str]) -> dict[str, Any]:
    return {"string_query": {"query": text, **({"columns": list(columns)} if columns else {})}}


def _hybrid(
    catalog: Caller, request: Mapping[str, Any], by_text: Mapping[str, Any], by_vector: Mapping[str, Any], limit: int
) -> pa.Table:
    """Return the rows that both searches rank highest together, by reciprocal rank fusion."""
    from tiltyard.model.rank_fusion import CANDIDATES, fuse

    request = {**request, "k": limit * CANDIDATES, "with_row_id": True}
    return fuse([catalog.read("QueryTable", **{**request, **half}).read_all() for half in (by_text, by_vector)], limit)


def _vector_of_row(
    catalog: Caller, table: TypedId, schema: pa.Schema, search: SearchOptions, shared: Mapping[str, Any]
) -> list[float]:
    """Return the vector of the row that `like` selects. Raises CommandError, lance_namespace.errors."""
    column = search.vector_column or next((field.name for field in schema if is_vector(field.type)), None)
    if column is None:
        raise CommandError(f"{table} has no column of vectors.")
    rows = catalog.read("QueryTable", **{**_request(table, 2, [column]), "filter": search.like, **shared}).read_all()
    if rows.num_rows != 1:
        many = "no row" if not rows.num_rows else "several rows"
        raise CommandError(f"`like` selects {many} of {table}: write a filter for one row, as \"title = 'Up'\".")
    values = rows[column][0].as_py()
    if values is None:
        raise CommandError(f"The row that `like` selects has no vector in '{column}'.")
    return [float(value) for value in values]


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


def is_vector(kind: pa.DataType) -> bool:
    """Return whether a column of a type holds vectors, one or several to a row."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):  # several vectors to a row
        kind = kind.value_type
    return bool(
        pa.types.is_fixed_size_list(kind)
        and (pa.types.is_floating(kind.value_type) or pa.types.is_uint8(kind.value_type))
    )
