"""Searches as table functions of Spark SQL: by vector, by text, and by both.

    SELECT * FROM vector_search('films', 'vector', array(0.1, 0.2), 10, filter => 'year > 1990')
    SELECT * FROM text_search('films', 'old ship', 10, columns => array('id', 'title'))
    SELECT * FROM hybrid_search('films', 'vector', array(0.1, 0.2), 'old ship', 10)
    SELECT q.id, found.id FROM questions q, LATERAL vector_search('films', 'vector', q.vector, 3) found

The catalog searches (QueryTable), within the caller's grants and policies: one request for each row that a function is
called with. All rows of a statement are searched in one version, the newest one when it is analyzed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeResult

from tiltyard.calls.rank_fusion import CANDIDATES, DISTANCE, RELEVANCE, SCORE, fuse
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.spark_types import batch_schema, cast_for_spark, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.udtf import AnalyzeArgument

    from tiltyard.pipeline.table_location import CatalogConnection

DEFAULT_FOUND = 10
"""Rows that a search returns if its call does not say how many."""
_REQUEST_FIELDS = {
    "nprobes": "nprobes",
    "refine_factor": "refine_factor",
    "ef": "ef",
    "distance": "distance_type",
    "fast_search": "fast_search",
}
"""Named arguments that are passed on as they are, and their fields of QueryTable's request."""
_VECTOR_FIELDS = frozenset({"vector_column", *_REQUEST_FIELDS.values()} - {"fast_search"})
"""What the request of a search by text does not have."""
_ARGUMENTS = ("filter", "columns", "text_columns", "version", "branch", *_REQUEST_FIELDS)


@dataclass(frozen=True, slots=True)
class ResolvedSearch:
    """A search whose table, version and columns are decided; vector, text and number of rows come with each call."""

    connection: CatalogConnection
    request: Mapping[str, Any]
    text_columns: tuple[str, ...]
    scores: tuple[str, ...]

    def run(self, *, vector: Any = None, text: str | None = None, k: int | None = None) -> pa.Table:
        """Return the rows found, best first, with the columns of `scores`. Raises lance_namespace.errors."""
        count = DEFAULT_FOUND if k is None else k
        halves = []
        if text is not None:
            columns = {"columns": list(self.text_columns)} if self.text_columns else {}
            query = {"string_query": {"query": text, **columns}}
            halves.append({"vector": {"single_vector": []}, "full_text_query": query})
        if vector is not None:
            halves.append({"vector": {"single_vector": [float(number) for number in vector]}})
        if len(halves) == 1:
            return self._query({**self.request, **halves[0], "k": count})
        request = {**self.request, "k": count * CANDIDATES, "with_row_id": True}
        return fuse([self._query({**request, **half}) for half in halves], count)

    def _query(self, request: Mapping[str, Any]) -> pa.Table:
        import lance_namespace  # noqa: PLC0415  # takes a second: not at the start of each worker

        fields = {**request}
        if "full_text_query" in fields:
            fields = {name: value for name, value in fields.items() if name not in _VECTOR_FIELDS}
        query: Any = lance_namespace.QueryTableRequest.from_dict(fields)
        response: Any = self.connection.client().query_table(query)
        return pa.ipc.open_file(getattr(response, "data", response)).read_all()  # pylance's own client wraps the bytes


@dataclass
class SearchAnalysis(AnalyzeResult):
    """What Spark passes from the analysis of a call to its execution."""

    search: ResolvedSearch | None = field(default=None)


class _Function:
    """The execution of a table function; its subclasses have its arguments by name."""

    def __init__(self, analysis: SearchAnalysis) -> None:
        assert analysis.search is not None
        self._search = analysis.search
        self._schema = batch_schema(analysis.schema)

    def _rows(self, **sought: Any) -> Iterator[tuple[Any, ...]]:
        if any(value is None for name, value in sought.items() if name != "k"):
            return  # as a join with NULL
        found = self._search.run(**sought).select(self._schema.names)
        for batch in cast_for_spark(found.to_batches(), self._schema):
            columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
            yield from zip(*columns, strict=True)


def register_search_functions(spark: SparkSession, connection: CatalogConnection) -> None:
    """Register `vector_search`, `text_search` and `hybrid_search` in a session, for the tables of a catalog.

    The connection's properties, its key among them, are part of the functions: whoever has the session may use them.
    """

    class VectorSearch(_Function):
        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            column: AnalyzeArgument,
            vector: AnalyzeArgument,
            k: AnalyzeArgument | None = None,
            **named: AnalyzeArgument,
        ) -> SearchAnalysis:
            return _analyze(connection, (DISTANCE,), {"table": table, "column": column, **named})

        def eval(self, table: str, column: str, vector: Any, k: int | None = None, **named: Any) -> Iterator[Any]:
            yield from self._rows(vector=vector, k=k)

    class TextSearch(_Function):
        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            text: AnalyzeArgument,
            k: AnalyzeArgument | None = None,
            **named: AnalyzeArgument,
        ) -> SearchAnalysis:
            return _analyze(connection, (SCORE,), {"table": table, **named})

        def eval(self, table: str, text: str, k: int | None = None, **named: Any) -> Iterator[Any]:
            yield from self._rows(text=text, k=k)

    class HybridSearch(_Function):
        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            column: AnalyzeArgument,
            vector: AnalyzeArgument,
            text: AnalyzeArgument,
            k: AnalyzeArgument | None = None,
            **named: AnalyzeArgument,
        ) -> SearchAnalysis:
            return _analyze(connection, (RELEVANCE,), {"table": table, "column": column, **named})

        def eval(
            self, table: str, column: str, vector: Any, text: str, k: int | None = None, **named: Any
        ) -> Iterator[Any]:
            yield from self._rows(vector=vector, text=text, k=k)

    functions: dict[str, Any] = {
        "vector_search": VectorSearch, "text_search": TextSearch, "hybrid_search": HybridSearch,
    }  # fmt: skip
    for name, function in functions.items():
        table_function: Any = udtf(function)
        spark.udtf.register(name, table_function)


def _analyze(
    connection: CatalogConnection, scores: tuple[str, ...], arguments: Mapping[str, AnalyzeArgument]
) -> SearchAnalysis:
    """Return the columns of a call, and the search that its rows come from.

    `arguments` are those that the whole statement shares. Raises RefusedError, lance_namespace.errors.
    """
    # Both import the namespace's models, which takes a second: not at the start of each worker.
    from tiltyard.model.schemas.arrow_json import from_json  # noqa: PLC0415
    from tiltyard.pipeline.catalog_client import table  # noqa: PLC0415

    values = {name: _constant(name, argument) for name, argument in arguments.items()}
    searched = table(connection, _text(values, "table"))
    branch, version = values.get("branch"), values.get("version")
    description = searched.describe(branch=branch, version=version, load_detailed_metadata=True)
    all_columns = from_json(description.to_dict()["schema"])
    if "column" in values:
        _check_vector_column(all_columns, _text(values, "column"), str(searched))
    schema = _select(all_columns, values.get("columns"), str(searched))
    request = {
        "id": list(searched.path),
        "columns": {"column_names": schema.names},
        "version": description.version,
        "branch": branch,
        "filter": values.get("filter"),
        "prefilter": True,
        **({"vector_column": _text(values, "column")} if "column" in values else {}),
        **{field_name: values.get(name) for name, field_name in _REQUEST_FIELDS.items()},
    }
    given = {name: value for name, value in request.items() if value is not None}
    for name in scores:
        schema = schema.append(pa.field(name, pa.float32()))
    search = ResolvedSearch(connection, given, tuple(values.get("text_columns") or ()), scores)
    return SearchAnalysis(schema=spark_schema(schema), search=search)


def _check_vector_column(schema: pa.Schema, column: str, name: str) -> None:
    """Raise RefusedError here, where Spark tries a call once, and not in a task, which it tries again."""
    from tiltyard.model.columns.vector_columns import vector_columns  # noqa: PLC0415  # as in `_analyze`

    paths = vector_columns(schema)
    if column not in paths and column not in schema.names:  # a name in need of quotes is no path
        raise RefusedError(f"{name} has no column of vectors '{column}'; it has {', '.join(paths) or 'none'}.")


def _select(schema: pa.Schema, columns: list[str] | None, name: str) -> pa.Schema:
    """Return the columns to read: those named, else all but blobs. Raises RefusedError."""
    if columns is None:
        return pa.schema([column for column in schema if not has_blobs([column])])
    if missing := [column for column in columns if column not in schema.names]:
        raise RefusedError(f"{name} has no column '{missing[0]}'; it has {', '.join(schema.names)}.")
    return pa.schema([schema.field(column) for column in columns])


def _constant(name: str, argument: AnalyzeArgument) -> Any:
    """Return the value of an argument. Raises RefusedError for one that differs between rows, or has no meaning."""
    if name not in ("table", "column", *_ARGUMENTS):
        raise RefusedError(f"There is no argument '{name}': choose from {', '.join(_ARGUMENTS)}.")
    if not argument.isConstantExpression:
        raise RefusedError(f"The argument '{name}' has to be a constant: only vector, text and k may come from rows.")
    return argument.value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or not value:
        raise RefusedError(f"The argument '{name}' has to be a text.")
    return value
