"""The lineage of a job's commits: what it makes its rows from, and the catalog's index of that."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError, UnsupportedOperationError

from tiltyard.model.lineage import JobLineage, LineageSource, digest_code
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.functions.calls import GuardedFunction
    from tiltyard.pipeline.table_location import CatalogConnection

log = logging.getLogger("tiltyard.pipeline")

INDEX_SECONDS = 10.0
"""For how long a server that does not answer is asked to index a commit."""


def memory_source(source: object) -> LineageSource:
    """Return rows of this process as a source, named by the class of their object."""
    return LineageSource(f"memory:{type(source).__module__.partition('.')[0]}.{type(source).__qualname__}")


def frame_sources(frame: DataFrame, catalog: CatalogConnection) -> tuple[LineageSource, ...]:
    """Return the tables and files that the plan of a DataFrame reads.

    What else it reads, and all of it in Spark Connect, which has no plans, is named by the class. Raises what looking
    the location of a table up raises.
    """
    if is_connect(frame.sparkSession):
        return (memory_source(frame),)
    from tiltyard.pipeline.openlineage.plan_columns import read_relations, reads_table, relation_names  # noqa: PLC0415  # for frames

    sources: list[LineageSource] = []
    for relation in read_relations(frame):
        if not (names := relation_names(relation)):
            sources.append(memory_source(frame))
        elif reads_table(relation):
            sources.append(_read_table(catalog, names[0], relation.options()))
        else:
            sources += map(LineageSource.of_uri, names)
    return tuple(dict.fromkeys(sources))


def _read_table(catalog: CatalogConnection, name: str, options: Any) -> LineageSource:
    """Return the table that a DataFrame reads by the data source, by a URI if it is one of another catalog."""
    properties, uri = dict(catalog.properties), str(options.get("uri"))
    if uri.rstrip("/") not in (str(properties.get(key)).rstrip("/") for key in ("uri", "root")):
        return LineageSource.of_uri(f"{uri.rstrip('/')}/{name}")
    table, version = catalog_client.table(catalog, name), options.get("version")
    number = int(version) if version is not None and str(version).isdigit() else None
    return LineageSource(str(table), table.location().uri, number, str(options.get("branch") or ""))


def own_rows_lineage(kind: str, table: Table, version: int, branch: str | None, code: str) -> JobLineage:
    """Return the lineage of a job that makes a version of a table from an earlier one."""
    return JobLineage(kind, (table_source(table, version, branch),), code)


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
