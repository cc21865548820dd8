"""The lineage of a job's commits: what it makes its rows from, and the catalog's index of that."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError, UnsupportedOperationError

from tiltyard.model.columns.lineage import ColumnInput, Origins, ReadColumns
from tiltyard.model.lineage import JobLineage, LineageSource, digest_code
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.functions.calls import GuardedFunction
    from tiltyard.pipeline.table_location import CatalogConnection

log = logging.getLogger("tiltyard.pipeline")

NO_PLAN = "Spark Connect shows no plan of its queries"
INDEX_SECONDS = 10.0
"""For how long a server that does not answer is asked to index a commit."""


def memory_source(source: object) -> LineageSource:
    """Return rows of this process as a source, named by the class of their object."""
    return LineageSource(f"memory:{type(source).__module__.partition('.')[0]}.{type(source).__qualname__}")


@dataclass(frozen=True, slots=True)
class FrameLineage:
    """What a DataFrame is made from: tables and files, and their columns by the DataFrame's."""

    sources: tuple[LineageSource, ...]
    columns: ReadColumns


def frame_lineage(frame: DataFrame, catalog: CatalogConnection) -> FrameLineage:
    """Return the tables and files that the plan of a DataFrame reads, and the columns of those by its own.

    What else it reads, and all of it in Spark Connect, which has no plans, is named by the class. Raises what looking
    the location of a table up raises.
    """
    other = memory_source(frame)
    if is_connect(frame.sparkSession):
        return FrameLineage((other,), ReadColumns(None, NO_PLAN))
    from tiltyard.pipeline.spark_sql.plan_columns import read_relations, reads_table, relation_names  # noqa: PLC0415  # for frames

    sources: dict[LineageSource, None] = {}
    named: dict[str, LineageSource] = {other.name: other}
    for relation in read_relations(frame):
        if not (names := relation_names(relation)):
            found = [other]
        elif reads_table(relation):
            found = [_read_table(catalog, names[0], relation.options())]
        else:
            found = [LineageSource.of_uri(name) for name in names]
        sources.update(dict.fromkeys(found))
        named.update(zip(names, found, strict=False))
    positions = {name: list(sources).index(source) for name, source in named.items() if source in sources}
    return FrameLineage(tuple(sources), plan_columns(frame, {}, positions, other.name))


def plan_columns(
    frame: DataFrame, views: Mapping[str, str], positions: Mapping[str, int], other_rows: str = ""
) -> ReadColumns:
    """Return what the columns of a DataFrame are made from, by its analyzed plan.

    `positions` are those of its sources by the names that the plan, or the `views`, have of them; `views` and
    `other_rows` are those of `read_columns`. Nothing is known of a session of Spark Connect.
    """
    if is_connect(frame.sparkSession):
        return ReadColumns(None, NO_PLAN)
    from tiltyard.pipeline.spark_sql.plan_columns import TOO_LARGE, PlanTooLargeError, read_columns  # noqa: PLC0415  # for frames

    try:
        read = read_columns(frame, views, other_rows)
    except PlanTooLargeError:
        return ReadColumns(None, TOO_LARGE)
    return ReadColumns(
        {
            name: tuple(
                ColumnInput(positions[each.table], each.column, each.how) for each in made if each.table in positions
            )
            for name, made in read.items()
        }
    )


def _read_table(catalog: CatalogConnection, name: str, options: Any) -> LineageSource:
    """Return the table that a DataFrame reads by the data source, by a URI if it is one of another catalog."""
    properties, uri = dict(catalog.properties), str(options.get("uri"))
    if uri.rstrip("/") not in (str(properties.get(key)).rstrip("/") for key in ("uri", "root")):
        return LineageSource.of_uri(f"{uri.rstrip('/')}/{name}")
    table, version = catalog_client.table(catalog, name), options.get("version")
    number = int(version) if version is not None and str(version).isdigit() else None
    return LineageSource(str(table), table.location().uri, number, str(options.get("branch") or ""))


def own_rows_lineage(
    kind: str, table: Table, version: int, branch: str | None, code: str, columns: Origins
) -> JobLineage:
    """Return the lineage of a job that makes a version of a table from an earlier one, and in it these columns."""
    return JobLineage(kind, (table_source(table, version, branch),), code, columns)


def table_source(table: Table, version: int, branch: str | None = None) -> LineageSource:
    """Return a version of a table as a source."""
    return LineageSource(str(table), table.location().uri, version, branch or "")


def function_digest(function: GuardedFunction | None) -> str:
    """Return the digest of a user's function; "" without one."""
    if function is None:
        return ""
    return digest_code(repr(function.code))


def index_commit(table: Table, version: int, branch: str | None = None) -> None:
    """Have the catalog index the lineage in a commit, of a publication once it is published. Idempotent.

    The commit is made, and holds the lineage itself: a failure is logged, and fails no job.
    """
    table.connection.when_visible(partial(_index, table, version, branch))


def _index(table: Table, version: int, branch: str | None, catalog: CatalogConnection) -> None:
    try:
        client = catalog.caller(INDEX_SECONDS)
        client.call("RecordTableLineage", id=table.id, version=version, branch=branch)
    except UnsupportedOperationError as error:
        log.debug("the lineage of version %s of %s is in its commit alone: %s", version, table, error)
    except LanceNamespaceError as error:
        log.warning("the lineage of version %s of %s is in its commit, and is not indexed: %s", version, table, error)
