"""Recognize point queries, and answer them as QueryTable does: rows by one value of an indexed column.

    SELECT title, year FROM films WHERE id = 7 [LIMIT 10]

To hand a session, its functions and a filter from DataFusion to Lance takes several times as long as the look-up
itself. A point query has one form and one meaning, so it needs no planner: columns without expressions, one table, one
column that equals a whole number or a text of its own type. Anything else is left to DataFusion, and so is what would
fail, so that each error is DataFusion's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.columns.blob_columns import is_blob
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.model.ids import Id
from tiltyard.model.schemas.nested_types import is_text
from tiltyard.model.spec import models
from tiltyard.sql.information_schema import INFORMATION_SCHEMA
from tiltyard.sql.read_grounds import ReadGrounds, authorize_reading
from tiltyard.sql.statements.text_checks import read_parameters
from tiltyard.sql.tables import namespace_of_schema
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.query import query_table
from tiltyard.tables.query.routes.point_lookup import MANY_ROWS, lookup_columns

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context, OpenTable
    from tiltyard.storage.caches.version_cache import CachedVersion

MAX_LENGTH = 2_000
"""Characters of a query that is looked at."""
MAX_ROWS = MANY_ROWS
"""Rows of an answer; with more, DataFusion streams them."""
MAX_BYTES = 4 << 20
"""Bytes of an answer, likewise."""

_NAME = r'(?:[A-Za-z_]\w*|"[^"\\`]+")'
_QUERY = re.compile(
    rf"""\s*SELECT\s+(?P<columns>\*|{_NAME}(?:\s*,\s*{_NAME})*)
    \s+FROM\s+(?:(?P<schema>{_NAME})\.)?(?P<table>{_NAME})
    \s+WHERE\s+(?P<column>{_NAME})\s*=\s*(?P<value>-?\d{{1,18}}|'(?:[^'\\]|'')*'|\?|\$1)
    (?:\s+LIMIT\s+(?P<limit>\d{{1,9}}))?\s*;?\s*""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_NAMES = re.compile(_NAME, re.ASCII)
_KEYWORDS = frozenset(
    """
    all analyze any array as case cast cluster cross current_catalog current_date current_time current_timestamp
    current_user distinct distribute end except exclude exists explain false fetch from full group having inner
    intersect interval into join lateral left limit localtime localtimestamp map minus natural not null offset on order
    outer qualify returning right select session_user some sort struct table top trim true union unnest user using
    values view when where window with
    """.split()  # noqa: SIM905
)
"""Words that without quotes are no names in some place of a query, or more than names."""


@dataclass(frozen=True, slots=True)
class PointQuery:
    """A point query: its table, its columns (all if None), the column that equals `value`, and its limit, if any."""

    table: Id
    columns: tuple[str, ...] | None
    column: str
    value: int | str
    limit: int | None


def parse_point_query(query: str, default_namespace: Id, database: Id, parameters: bytes) -> PointQuery | None:
    """Return the point query that a text is, with names as a query has them; None for any other text.

    `default_namespace` is within `database`; `parameters` are the stream of the query's parameters. Raises
    InvalidInputError for a schema that is no namespace, and for malformed parameters.
    """
    match = _QUERY.fullmatch(query) if len(query) <= MAX_LENGTH else None
    if match is None or (value := _value(match["value"], parameters)) is None:
        return None
    columns = None if match["columns"] == "*" else _NAMES.findall(match["columns"])
    named = [match["column"], match["table"], *([match["schema"]] if match["schema"] else []), *(columns or ())]
    if not _KEYWORDS.isdisjoint(map(str.lower, named)):
        return None
    namespace = Id((*database, *default_namespace))
    if match["schema"]:
        if (schema := _unquoted(match["schema"])) == INFORMATION_SCHEMA:
            return None
        namespace = namespace_of_schema(schema, database)
    names = None if columns is None else tuple(map(_unquoted, columns))
    limit = None if match["limit"] is None else int(match["limit"])
    return PointQuery(Id((*namespace, _unquoted(match["table"]))), names, _unquoted(match["column"]), value, limit)


@dataclass(frozen=True, slots=True)
class OpenedPointQuery:
    """A point query on a snapshot of its table; `schema` is that of its rows, as DataFusion has it."""

    schema: pa.Schema
    grounds: ReadGrounds
    _query: PointQuery
    _table: OpenTable

    def read(self, ctx: Context) -> list[pa.RecordBatch] | None:
        """Return all rows, in the context that it was opened with; None where they are too many, or it fails."""
        query, limit = self._query, self._query.limit
        most = min(MAX_ROWS, ctx.settings.sql_max_rows or MAX_ROWS)
        request = models.QueryTableRequest(
            id=list(query.table),
            vector=None,
            k=most + 1 if limit is None else min(most + 1, limit),
            filter=f"{quote_path((query.column,))} = {_literal(query.value)}",
            columns=models.QueryTableColumns(column_names=self.schema.names),
        )
        batches, rows, size = [], 0, 0
        try:
            answer = query_table(ctx.with_open_table(query.table, self._table, ctx.check_deadline), request)
            for batch in answer.batches:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > most or size > MAX_BYTES or batch.schema.types != self.schema.types:
                    return None
                batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
        except LanceNamespaceError:
            return None
        return batches


def open_point_query(ctx: Context, query: PointQuery) -> OpenedPointQuery | None:
    """Open the table of a point query for its reader; None for a query that is left to DataFusion.

    That is one whose column has no index of all rows, or many rows of one value, or another type than the value; whose
    table has policies for the reader, is a view, is mounted, or cannot be read.
    """
    if ctx.services.mounts.find(query.table) is not None:
        return None
    try:
        ctx = authorize_reading(ctx, query.table)
        table = open_for_reading(ctx, query.table, by_catalog=True)
        if effective_policy_of(ctx, table.record) is not None:
            return None
        grounds = ReadGrounds(tuple(query.table), table.record.id)
        schema = _result_schema(table.snapshot, query)
    except LanceNamespaceError:
        return None
    return None if schema is None else OpenedPointQuery(schema, grounds, query, table)


def _result_schema(snapshot: CachedVersion, query: PointQuery) -> pa.Schema | None:
    """Return the schema of the rows as DataFusion has it; None where a point query cannot be looked up."""
    if not snapshot.fact(lookup_columns).has_few_rows(query.column):
        return None
    schema = snapshot.fact(_plain_schema)
    fields = {field.name: field for field in schema}
    names = schema.names if query.columns is None else query.columns
    if len(set(names)) < len(names) or not fields.keys() >= {query.column, *names}:
        return None
    if any(_is_stored_otherwise(fields[name]) for name in names):
        return None
    if not _is_of_type(query.value, fields[query.column].type):
        return None
    return schema if query.columns is None else pa.schema([fields[name] for name in names], schema.metadata)


def _plain_schema(dataset: lance.LanceDataset) -> pa.Schema:
    return dataset.schema


def _is_stored_otherwise(field: pa.Field) -> bool:
    """Return whether Lance may store a column as another type than pylance shows: a blob, JSON, or other extensions."""
    kind = field.type
    return (
        is_blob(field)
        or isinstance(kind, pa.BaseExtensionType)
        or any(_is_stored_otherwise(kind.field(at)) for at in range(kind.num_fields))
    )


def _is_of_type(value: int | str, kind: pa.DataType) -> bool:
    """Return whether a column of this type can have the value, so that to compare the two casts neither."""
    if isinstance(value, str):
        return is_text(kind)
    if not pa.types.is_integer(kind):
        return False
    is_signed = bool(pa.types.is_signed_integer(kind))
    first_too_large = 1 << int(kind.bit_width) - is_signed
    return (-first_too_large if is_signed else 0) <= value < first_too_large


def _value(text: str, parameters: bytes) -> int | str | None:
    """Return the value that a column equals; None for a parameter that is none, of another type, or one too many."""
    values = read_parameters(parameters)
    if text in ("?", "$1"):
        value = values[0].as_py() if len(values) == 1 else None
        return value if type(value) in (int, str) and "\\" not in str(value) else None
    if values:
        return None
    return text[1:-1].replace("''", "'") if text[0] == "'" else int(text)


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _unquoted(name: str) -> str:
    return name[1:-1] if name[0] == '"' else name.lower()
