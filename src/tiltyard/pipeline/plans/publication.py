"""Tables whose rows are written become visible: one publication with their versions and indexes, then their tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import lance_namespace as upstream
from lance.dataset import Transaction
from lance_namespace.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableTagAlreadyExistsError,
)

from tiltyard.pipeline.indexes.job import validate_spec
from tiltyard.pipeline.indexes.segments import build_segments, commit_empty_index
from tiltyard.pipeline.plans.model import Index
from tiltyard.pipeline.plans.rows import Filled
from tiltyard.pipeline.table_location import Connection, TableLocation
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.commit import RUN_PROPERTY, find_run_version
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
    """A table at a version that only its publication knows, for tasks that build indexes of it."""

    staged: Mapping[str, Any]

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        """The table at that version; no other, and no branch."""
        assert branch is None
        assert version in (None, self.staged["version"])
        only = SingleVersionNamespace(self.uri, self.options, upstream.TableVersion(**self.staged))
        options = dict(self.options) or None
        table = list(self.table)
        return lance.dataset(namespace_client=only, table_id=table, block_size=block_size, storage_options=options)


def publish_all(
    run: Run,
    where: Connection,
    spark: SparkSession,
    tables: Sequence[Filled],
    bases: Mapping[str, int],
    told: Callable[[str], None],
) -> dict[str, int]:
    """Make the versions and build the indexes, out of sight, then publish all; the version of each table.

    `bases` are the versions from which this run, in its first attempt, went out; `told` hears of each index that is
    built. Raises PublishConflictError (nothing is visible, and the files are gone), TableAlreadyExistsError,
    InvalidInputError, RunCanceledError.
    """
    try:
        with publish(where.client(), headers=where.headers) as block:
            for table in tables:
                _stage(block, table)
            # From here on a driver that was thought dead cannot publish beside this one; it may have done so before.
            if (found := published(tables, bases)) is not None:
                raise _PublishedError(found)
            for table in tables:
                for index in table.plan.indexes:
                    _build(block, spark, table, index)
                    told(table.name)
            run.check()
            return {table.name: _latest(block, table.landing.table) for table in tables}
    except _PublishedError as done:
        return done.versions
    except TableAlreadyExistsError:
        if (found := published(tables, bases)) is not None:
            return found
        raise


class _PublishedError(Exception):
    """An earlier driver of this run has published: what this one has made is not needed."""

    def __init__(self, versions: dict[str, int]) -> None:
        super().__init__("published")
        self.versions = versions


def published(tables: Sequence[Filled], bases: Mapping[str, int]) -> dict[str, int] | None:
    """The version of each table that this run has published; None if it has not yet."""
    versions = {}
    for table in tables:
        if (version := _committed(table, bases[table.name])) is None:
            return None
        versions[table.name] = version + len(table.plan.indexes)  # each index is one version behind the rows
    return versions


def tag_all(tables: Sequence[Filled], tag: str, versions: Mapping[str, int]) -> None:
    """Let the tag name the version that was published, in each table; one that is there moves."""
    for table in tables:
        found, version = table.landing.table, versions[table.name]
        try:
            found.client.create_table_tag(upstream.CreateTableTagRequest(id=found.id, tag=tag, version=version))
        except TableTagAlreadyExistsError:
            found.client.update_table_tag(upstream.UpdateTableTagRequest(id=found.id, tag=tag, version=version))


def _committed(table: Filled, base: int) -> int | None:
    """The version after `base` that has the rows of this run."""
    if not table.landing.table.latest_version():
        return None
    return find_run_version(table.landing.table.dataset(), base, table.run.id)


def _stage(block: Publication, table: Filled) -> None:
    """Make the version with the rows. Raises TableAlreadyExistsError for a new table that others have filled."""
    landing, fragments = table.landing, table.fragments
    mode = WriteMode(table.plan.mode)
    operation = landing.operation(fragments, table.schema)
    newest = landing.table.latest_version()
    if newest and not landing.base and mode is not WriteMode.OVERWRITE:
        raise TableAlreadyExistsError(f"Somebody else has written {table.name} meanwhile: append, or name another.")
    read = landing.base if mode is WriteMode.APPEND else newest
    transaction = Transaction(read, operation, str(uuid4()), {RUN_PROPERTY: table.run.id})
    if newest:
        lance.LanceDataset.commit(landing.table.dataset(read or None, client=block), transaction)
    else:
        commit_first_version(landing, block, transaction)


def _build(block: Publication, spark: SparkSession, table: Filled, index: Index) -> None:
    """Build an index of the rows that the block knows. Raises InvalidInputError."""
    found, order = table.landing.table, index.order()
    dataset = found.dataset(client=block)
    location = table.landing.location
    staged = _staged(block, found).model_dump()
    try:
        seen = StagedTableLocation(location.uri, location.options, location.connection, location.table, staged)
        order = validate_spec(order, dataset.schema)
        if not dataset.get_fragments():
            commit_empty_index(dataset, order, str(uuid4()))
            return
        segments = build_segments(table.run, spark, seen, dataset, None, order)
    except (RefusedError, InvalidInputError) as refusal:
        raise InvalidInputError(f"The index {order.name} of {table.name}: {refusal}") from refusal
    dataset.commit_existing_index_segments(order.name, order.column, segments)


def _latest(block: Publication, table: Table) -> int:
    return int(_staged(block, table).version)


def _staged(block: Publication, table: Table) -> upstream.TableVersion:
    """The newest version of a table, as the block sees it."""
    request = upstream.ListTableVersionsRequest(id=table.id, descending=True, limit=1)
    return block.list_table_versions(request).versions[0]
