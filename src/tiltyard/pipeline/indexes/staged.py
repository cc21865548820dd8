"""Build and extend indexes of a version that is not published yet, so that it becomes visible together with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.index_types import parse_index_type
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.indexes.job import validate_spec
from tiltyard.pipeline.indexes.segments import build_segments, commit_empty_index, create_whole_index
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.publishing.staged import SingleVersionNamespace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.catalog_client import Table
    from tiltyard.pipeline.indexes.tasks import IndexSpec
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.session import LazySession
    from tiltyard.publishing import Publication


@dataclass(frozen=True, slots=True)
class StagedTableLocation(TableLocation):
    """A table at a version that only its publication knows, for tasks that build its indexes."""

    staged: Mapping[str, Any]

    @property
    def is_published(self) -> bool:
        """Return False: only the publication knows the version."""
        return False

    def open(self, version: int | None, branch: str | None = None, block_size: int | None = None) -> lance.LanceDataset:
        """Open the table at that version; no other, and no branch."""
        assert branch is None
        assert version in (None, self.staged["version"])
        namespace = SingleVersionNamespace(self.uri, self.options, upstream.TableVersion(**self.staged))
        options = dict(self.options) or None
        table = list(self.table)
        return lance.dataset(namespace_client=namespace, table_id=table, block_size=block_size, storage_options=options)


def staged_version(block: Publication, table: Table) -> upstream.TableVersion:
    """Return the newest version of a table in the publication."""
    request = upstream.ListTableVersionsRequest(id=table.id, descending=True, limit=1)
    return block.list_table_versions(request).versions[0]


def build_staged_index(
    run: Run,
    block: Publication,
    spark: SparkSession | LazySession,
    table: Table,
    location: TableLocation,
    spec: IndexSpec,
) -> None:
    """Build an index of the newest version in a publication; one of that name is replaced. Raises InvalidInputError."""
    dataset = table.dataset(client=block)
    staged = staged_version(block, table).model_dump()
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
        segments = build_segments(run, spark, staged_location, dataset, None, spec)
    except (RefusedError, InvalidInputError) as refusal:
        raise InvalidInputError(f"The index {spec.name} of {'$'.join(table.id)}: {refusal}") from refusal
    dataset.commit_existing_index_segments(spec.name, spec.column, segments)
