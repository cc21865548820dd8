"""Table functions of queries: searches by vector and by text, and tables at a version, a tag or a branch.

    SELECT * FROM vector_search('films', [0.1, 0.2], 10)          -- also: …, 'column', 'filter')
    SELECT * FROM fts('films', 'old ship', 10)                    -- also: …, 'column', 'filter')
    SELECT * FROM minhash_search('films', 'an old ship', 'plot', 10)     -- also: …, 'filter')
    SELECT * FROM vector_duplicate_pairs('films', NULL, 'vector', 0.1)   -- the version 3 with 3 for NULL
    SELECT * FROM table_version('films', 3)
    SELECT * FROM table_tag('films', 'release')
    SELECT * FROM table_branch('films', 'draft')                  -- also: …, 3)

Their arguments are constants. A search finds its rows when the query runs, by the code of QueryTable, and so within the
reader's policies; a WHERE of the query filters what it has found, its own filter decides what it looks at.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, UnsupportedOperationError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.model.branches import Branch
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import is_view
from tiltyard.sql.reading import RowsOnDemand
from tiltyard.sql.tables import TableRef
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.query import query_table
from tiltyard.view_refresh.near_duplicates import PAIRS, find_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from datafusion import SessionContext

    from tiltyard.sql.tables import QueryTables, SessionCatalog

MAX_FOUND = 10_000
"""Rows that one search may find."""
DEFAULT_FOUND = 10


def register_table_functions(context: SessionContext, catalog: SessionCatalog) -> None:
    """Register all table functions in a session, for the tables of its current query."""
    from datafusion import udtf

    for name, function in _FUNCTIONS.items():
        context.register_udtf(udtf(_bind(name, function, catalog), name))


def _bind(name: str, function: Callable[[QueryTables, _Arguments], Any], catalog: SessionCatalog) -> Any:
    def call(*expressions: Any) -> Any:
        tables = catalog.tables
        assert tables is not None
        with tables.recorded_failure():
            return function(tables, _Arguments(name, expressions))

    return call


class _Arguments:
    """The constant arguments of a call, by position. Its methods raise InvalidInputError."""

    def __init__(self, function: str, expressions: Sequence[Any]) -> None:
        self._function = function
        self._values: list[Any] = []
        for number, expression in enumerate(expressions, 1):
            if expression.variant_name() != "Literal":
                raise InvalidInputError(f"The argument {number} of {function}() has to be a constant.")
            self._values.append(expression.python_value().as_py())

    def check_count(self, least: int, most: int) -> None:
        if not least <= len(self._values) <= most:
            raise InvalidInputError(f"{self._function}() has {least} to {most} arguments, not {len(self._values)}.")

    def text(self, at: int, what: str) -> str:
        return str(self._require(self.optional_text(at, what), at, what))

    def optional_text(self, at: int, what: str) -> str | None:
        text: str | None = self._value(at, str, f"{what}, a text")
        return text

    def count(self, at: int, what: str, default: int | None = None) -> int:
        value = self._value(at, int, f"{what}, a whole number")
        return int(self._require(default if value is None else value, at, what))

    def version(self, at: int) -> int:
        return int(self._require(self.optional_version(at), at, "a version"))

    def optional_version(self, at: int) -> int | None:
        version: int | None = self._value(at, int, "a version, a whole number")
        if version is not None and not 0 < version < 1 << 63:
            raise InvalidInputError(f"The argument {at + 1} of {self._function}() is a version from 1 on.")
        return version

    def number(self, at: int, what: str) -> float:
        return float(self._require(self._value(at, int | float, f"{what}, a number"), at, what))

    def vector(self, at: int) -> list[float]:
        vector = self._require(self._value(at, list, "the query vector, an array of numbers"), at, "the query vector")
        if not vector or not all(isinstance(number, int | float) for number in vector):
            raise InvalidInputError(f"The argument {at + 1} of {self._function}() is no array of numbers.")
        return [float(number) for number in vector]

    def _value(self, at: int, kind: type | UnionType, what: str) -> Any:
        value = self._values[at] if at < len(self._values) else None
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidInputError(f"The argument {at + 1} of {self._function}() is {what}.")
        return value

    def _require(self, value: Any, at: int, what: str) -> Any:
        if value is None:
            raise InvalidInputError(f"{self._function}() needs {what} as argument {at + 1}.")
        return value


def _vector_search(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(2, 5)
    vector = models.QueryTableVector(single_vector=arguments.vector(1))
    return _search(tables, arguments, vector=vector, vector_column=arguments.optional_text(3, "a column"))


def _fts(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(2, 5)
    column = arguments.optional_text(3, "a column")
    string_query = models.StringFtsQuery(
        query=arguments.text(1, "the text to search for"), columns=None if column is None else [column]
    )
    return _search(
        tables, arguments, vector=None, full_text_query=models.QueryTableFullTextQuery(string_query=string_query)
    )


def _minhash_search(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(3, 5)
    query = models.MinHashQuery(column=arguments.text(2, "a column"), text=arguments.text(1, "the text to compare"))
    return _search(tables, arguments, count_at=3, vector=None, minhash_query=query)


def _search(tables: QueryTables, arguments: _Arguments, *, count_at: int = 2, **search: Any) -> Any:
    """Return the rows that a search finds, with their distance or score, as a table."""
    path = tables.parse_name(arguments.text(0, "a table"))
    count = arguments.count(count_at, "a number of rows", DEFAULT_FOUND)
    if not 1 <= count <= MAX_FOUND:
        raise InvalidInputError(f"A search finds 1 to {MAX_FOUND} rows, not {count}.")
    ctx = tables.authorized(path)
    request = models.QueryTableRequest(id=list(path), k=count, filter=arguments.optional_text(4, "a filter"), **search)
    if is_view(ctx.find_table(path).properties):
        raise UnsupportedOperationError(f"{path} is a view: search its table, in a query or in the query of a view.")
    tables.check_policies(ctx, path)

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from query_table(ctx, request).batches

    return tables.source(RowsOnDemand(tables.search_schema(ctx, request), read))


def _vector_duplicate_pairs(tables: QueryTables, arguments: _Arguments) -> Any:
    """Return the pairs of rows whose vectors are close. Raises PermissionDeniedError where policies hide any."""
    arguments.check_count(4, 4)
    path = tables.parse_name(arguments.text(0, "a table"))
    version = arguments.optional_version(1)
    column, distance = arguments.text(2, "a column"), arguments.number(3, "a distance")
    ctx = tables.authorized(path)
    record = ctx.find_table(path)
    if is_view(record.properties):
        raise UnsupportedOperationError(f"{path} is a view, and has no index of vectors.")
    if effective_policy_of(ctx, record) is not None:
        raise PermissionDeniedError(f"Policies restrict you on {path}, and pairs would tell of rows that they hide.")
    dataset = open_for_reading(ctx, path, version=version, by_catalog=True).dataset

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with lance_errors(dataset):
            yield from find_pairs(dataset, column, distance, ctx.check_deadline)

    return tables.source(RowsOnDemand(PAIRS, read))


def _table_version(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(2, 2)
    path = tables.parse_name(arguments.text(0, "a table"))
    return tables.table(TableRef(path, version=arguments.version(1)))


def _table_tag(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(2, 2)
    path = tables.parse_name(arguments.text(0, "a table"))
    return tables.table(TableRef(path, tag=arguments.text(1, "a tag")))


def _table_branch(tables: QueryTables, arguments: _Arguments) -> Any:
    arguments.check_count(2, 3)
    path = tables.parse_name(arguments.text(0, "a table"))
    version = arguments.optional_version(2)
    branch = Branch.parse(arguments.text(1, "a branch"))
    return tables.table(TableRef(path, branch, version))


_FUNCTIONS = {
    "vector_search": _vector_search,
    "fts": _fts,
    "minhash_search": _minhash_search,
    "vector_duplicate_pairs": _vector_duplicate_pairs,
    "table_version": _table_version,
    "table_tag": _table_tag,
    "table_branch": _table_branch,
}
