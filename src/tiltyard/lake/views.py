"""Materialized views: created from a query alone, whose columns Spark infers, and refreshed by jobs."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.lake.errors import translate
from tiltyard.lake.operations.view_parts import Computed, column_entries, index_requests, make_chunker
from tiltyard.lake.tables.arguments import call_arguments, present
from tiltyard.lake.tables.table import Table
from tiltyard.model.schedules import parse_refresh
from tiltyard.model.views.definitions import ViewDefinition, parse_sources
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.session import isolate_session
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.views.query_analysis import analyze_query, check_reads_only
from tiltyard.pipeline.views.row_writer import register_schemas
from tiltyard.pipeline.views.sources import pin_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.lake.runs import Run
    from tiltyard.lake.session import LakeSession
    from tiltyard.pipeline.functions.call_options import CallOptions


class View(Table):
    """A table that a query computes."""

    @property
    def sql(self) -> str:
        """Return the query. Raises InvalidInputError for a table that is no view."""
        view = ViewDefinition.from_metadata(self.dataset().schema.metadata)
        if view is None:
            raise InvalidInputError(f"{self.name} is a table, and not a view: lake.create_view makes one.")
        return view.query

    def refresh(
        self,
        *,
        full: bool | None = None,
        source_version: int | None = None,
        rows_per_fragment: int | None = None,
        rejects: str | os.PathLike[str] | None = None,
        max_join_rows: int | None = None,
        max_groups: int | None = None,
        wait: bool = True,
        submit: bool | None = None,
        **call: Unpack[CallOptions],
    ) -> Run:
        """Bring the view up to date: from changed rows where they are enough, else (or with `full`) from all rows.

        The figures `mode` and `reason` say which. All rows are computed where changed rows are joined with a table of
        more than `max_join_rows` rows (1,000,000), or are in groups of more than `max_groups` values of a column
        (10,000). `call` says how the code of a view is called
        (`tiltyard.CallOptions`), and `rejects` is a folder for rows that its chunker fails on. Of columns that code
        computes, `computed` is the number of values that were, and `reused` of those that the view had of equal inputs.
        Raises InvalidInputError, and as
        `Run.wait` does.
        """
        arguments = present(
            full=full, source_version=source_version, rows_per_fragment=rows_per_fragment, rejects=rejects,
            max_join_rows=max_join_rows, max_groups=max_groups,
            **call_arguments(call),
        )  # fmt: skip
        return self._run("refresh", arguments, wait=wait, submit=submit)


def create_view(
    lake: LakeSession,
    path: tuple[str, ...],
    sql: str,
    chunk: Computed | None,
    columns: Mapping[str, Computed] | None,
    indexes: Sequence[Mapping[str, Any]] | None,
    refresh: str | None,
) -> View:
    """Create a view without rows, after Spark has analyzed its query. Raises as `Lake.create_view` does."""
    seconds = None if refresh is None else parse_refresh(refresh)
    with translate():
        schema = infer_view_schema(lake.catalog, lake.spark, sql)
    chunker = None if chunk is None else make_chunker(chunk, schema)
    if chunker is not None:
        schema = chunker.schema
    request = present(
        kind="query" if chunker is None else "chunker",
        source_query=sql,
        output_schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        udtf_spec=None if chunker is None else chunker.spec,
        columns=column_entries(columns, schema, () if chunker is None else chunker.made) if columns else None,
        indexes=index_requests(indexes) if indexes else None,
        auto_refresh=None if seconds is None else True,
        auto_refresh_interval_seconds=seconds,
    )
    lake.calls.call("CreateMaterializedView", id=list(path), **request)
    return View(lake, path)


def infer_view_schema(catalog: CatalogConnection, spark: SparkSession, query: str) -> pa.Schema:
    """Return the columns of a query over tables of the catalog.

    Raises InvalidInputError for a query that a refresh would refuse, UnsupportedOperationError for a session of Spark
    Connect, what `pin_sources` raises (a table that does not exist), RefusedError for a type that Spark lacks.
    """
    sources = pin_sources(catalog, parse_sources(query), None, None)
    session = isolate_session(spark)
    check_reads_only(session, query, sources)
    register_schemas(session, sources)
    frame = analyze_query(session, query)
    # A declaration of the source (how a column is computed, that it has no nulls) is none of the view's.
    return pa.schema([field.remove_metadata().with_nullable(True) for field in arrow_schema(frame.schema)])
