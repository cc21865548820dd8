"""Publish tables whose rows are written: one publication of their versions and indexes, then their tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import lance
import lance_namespace as upstream
from lance_namespace.errors import TableAlreadyExistsError, TableTagAlreadyExistsError

from tiltyard.pipeline.indexes.staged import build_staged_index, staged_version
from tiltyard.pipeline.plans.rows import WrittenTable
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.commit import find_run_version
from tiltyard.pipeline.writing.target_table import WriteMode, commit_first_version
from tiltyard.publishing import Publication, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.runs import Run


def publish_tables(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession,
    tables: Sequence[WrittenTable],
    bases: Mapping[str, int],
    on_index: Callable[[str], None],
) -> dict[str, int]:
    """Stage the versions, build the indexes, then publish all at once; return the version of each table.

    `bases` are the versions from which this run, in its first attempt, started; `on_index` is called with the table of
    each index that is built. Raises PublishConflictError (nothing is visible, and the files are deleted),
    TableAlreadyExistsError, InvalidInputError, RunCanceledError.
    """
    try:
        with publish(catalog.client(), headers=catalog.headers) as block:
            for table in tables:
                _stage(block, table)
            # From here on, an earlier driver that is still alive cannot publish any more; it may have published before.
            if (versions := find_published_versions(tables, bases)) is not None:
                raise _PublishedError(versions)
            for table in tables:
                for index in table.plan.indexes:
                    target = table.target
                    build_staged_index(table.run, block, spark, target.table, target.location, index.spec())
                    on_index(table.name)
            run.check()
            return {table.name: _latest_version(block, table.target.table) for table in tables}
    except _PublishedError as publication:
        return publication.versions
    except TableAlreadyExistsError:
        if (versions := find_published_versions(tables, bases)) is not None:
            return versions
        raise


class _PublishedError(Exception):
    """An earlier driver of this run has published: the work of this one is not needed."""

    def __init__(self, versions: dict[str, int]) -> None:
        super().__init__("published")
        self.versions = versions


def find_published_versions(tables: Sequence[WrittenTable], bases: Mapping[str, int]) -> dict[str, int] | None:
    """Return the version of each table that this run has published; None if it has not."""
    versions = {}
    for table in tables:
        if (version := _find_committed_version(table, bases[table.name])) is None:
            return None
        versions[table.name] = version + len(table.plan.indexes)  # each index is one version after the rows
    return versions


def tag_tables(tables: Sequence[WrittenTable], tag: str, versions: Mapping[str, int]) -> None:
    """Set the tag to the published version in each table; an existing tag moves."""
    for table in tables:
        catalog_table, version = table.target.table, versions[table.name]
        try:
            catalog_table.client.create_table_tag(
                upstream.CreateTableTagRequest(id=catalog_table.id, tag=tag, version=version)
            )
        except TableTagAlreadyExistsError:
            catalog_table.client.update_table_tag(
                upstream.UpdateTableTagRequest(id=catalog_table.id, tag=tag, version=version)
            )


def _find_committed_version(table: WrittenTable, base: int) -> int | None:
    """Return the version after `base` that holds the rows of this run, if any."""
    if not table.target.table.latest_version():
        return None
    return find_run_version(table.target.table.dataset(), base, table.run.id)


def _stage(block: Publication, table: WrittenTable) -> None:
    """Stage the version with the rows. Raises TableAlreadyExistsError for a new table that others have filled."""
    target, fragments = table.target, table.fragments
    mode = WriteMode(table.plan.mode)
    operation = target.operation(fragments, table.schema)
    newest = target.table.latest_version()
    if newest and not target.base and mode is not WriteMode.OVERWRITE:
        raise TableAlreadyExistsError(
            f"A concurrent write has changed {table.name} meanwhile: append, or name another."
        )
    read_version = target.base if mode is WriteMode.APPEND else newest
    transaction = target.transaction(table.run, read_version, operation, table.run.pipeline_run.id, table.properties)
    if newest:
        lance.LanceDataset.commit(target.table.dataset(read_version or None, client=block), transaction)
    else:
        commit_first_version(target, block, transaction)


def _latest_version(block: Publication, table: Table) -> int:
    return int(staged_version(block, table).version)
