"""Infer the columns of a view from its query: Spark analyzes it over its sources, and nothing is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.views.definitions import parse_sources
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.session import isolate_session
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.views.query_analysis import analyze_query, check_reads_only
from tiltyard.pipeline.views.row_writer import register_schemas
from tiltyard.pipeline.views.sources import pin_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
