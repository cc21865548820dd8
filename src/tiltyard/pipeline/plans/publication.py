"""Publish tables whose rows are written: one publication of their versions and indexes, then their tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import lance_namespace as upstream
from lance_namespace.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableTagAlreadyExistsError,
)

from tiltyard.model.columns.index_types import parse_index_type
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.indexes.job import validate_spec
from tiltyard.pipeline.indexes.segments import build_segments, commit_empty_index, create_whole_index
from tiltyard.pipeline.plans.plan_file import IndexPlan
from tiltyard.pipeline.plans.rows import WrittenTable
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation
from tiltyard.pipeline.writing.commit import find_run_version
from tiltyard.pipeline.writing.target_table import WriteMode, commit_first_version
from tiltyard.publishing import Publication, publish
from tiltyard.publishing.staged import SingleVersionNamespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.runs import Run


@dataclass(frozen=True, slots=True)
class StagedTableLocation(TableLocation):
    """A table at a version that only its publication knows, for tasks that build its indexes."""

    staged: Mapping[str, Any]

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        """Open the table at that version; no other, and no branch."""
        assert branch is None
        assert version in (None, self.staged["version"])
        namespace = SingleVersionNamespace(self.uri, self.options, upstream.TableVersion(**self.staged))
        options = dict(self.options) or None
        table = list(self.table)
        return lance.dataset(namespace_client=namespace, table_id=table, block_size=block_size, storage_options=options)


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
                    _build_index(block, spark, table, index)
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


def _build_index(block: Publication, spark: SparkSession, table: WrittenTable, index: IndexPlan) -> None:
    """Build an index of the staged rows. Raises InvalidInputError."""
    catalog_table, spec = table.target.table, index.spec()
    dataset = catalog_table.dataset(client=block)
    location = table.target.location
    staged = _staged_version(block, catalog_table).model_dump()
    try:
        staged_location = StagedTableLocation(
            location.uri, location.options, location.connection, location.table, staged
        )
        spec = validate_spec(spec, dataset.schema)
        if not parse_index_type(spec.kind).is_distributed:
            create_whole_index(dataset, spec, str(uuid4()))
            return
        if not dataset.get_fragments():
            commit_empty_index(dataset, spec, str(uuid4()))
            return
        segments = build_segments(table.run, spark, staged_location, dataset, None, spec)
    except (RefusedError, InvalidInputError) as refusal:
        raise InvalidInputError(f"The index {spec.name} of {table.name}: {refusal}") from refusal
    dataset.commit_existing_index_segments(spec.name, spec.column, segments)


def _latest_version(block: Publication, table: Table) -> int:
    return int(_staged_version(block, table).version)


def _staged_version(block: Publication, table: Table) -> upstream.TableVersion:
    """Return the newest version of a table in the publication."""
    request = upstream.ListTableVersionsRequest(id=table.id, descending=True, limit=1)
    return block.list_table_versions(request).versions[0]
