"""Publish a refresh of a view that declares indexes: rows, columns and indexes become visible in one batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lance

from tiltyard.pipeline.indexes.job import make_spec
from tiltyard.pipeline.indexes.staged import build_staged_index, staged_version
from tiltyard.pipeline.indexes.tasks import VECTOR_TYPES
from tiltyard.pipeline.writing.commit import CommitConflictError
from tiltyard.publishing import PublishConflictError, publish
from tiltyard.upkeep.indexing import extend_index, index_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lance.dataset import Transaction
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.indexes.tasks import IndexSpec
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import CatalogConnection
    from tiltyard.pipeline.writing.commit import JobTable

MIN_TRAINING_ROWS = 256
"""Rows from which on a refresh builds a vector index, which is trained on them; of fewer, searches read all."""
_NAMES = ("column", "index_type", "name")


def index_spec(request: Mapping[str, Any]) -> IndexSpec:
    """Return an index of a view's definition as the pipeline builds it."""
    parameters = {name: value for name, value in request.items() if name not in _NAMES}
    return make_spec(request["column"], request["index_type"], request["name"], parameters)


def publish_with_indexes(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession,
    job_table: JobTable,
    dataset: lance.LanceDataset,
    transaction: Transaction,
    specs: Sequence[IndexSpec],
) -> int:
    """Commit a transaction on top of `dataset`, extend or build the indexes, publish all; return the latest version.

    Raises CommitConflictError (others have changed the view since `dataset`: nothing is visible), InvalidInputError,
    RunCanceledError.
    """
    table = job_table.table
    try:
        with publish(catalog.client(), headers=catalog.headers) as block:
            pinned = table.dataset(client=block)
            if int(pinned.version) != int(dataset.version):
                raise CommitConflictError(f"{table} is past version {dataset.version}.")
            lance.LanceDataset.commit(pinned, transaction)
            for spec in specs:
                _keep_index(run, block, spark, job_table, spec)
            run.check()
            version = int(staged_version(block, table).version)
    except PublishConflictError as error:
        raise CommitConflictError(f"{table} is past version {dataset.version}.") from error
    job_table.index_lineage(int(dataset.version) + 1)
    return version


def _keep_index(run: Run, block: Any, spark: SparkSession, job_table: JobTable, spec: IndexSpec) -> None:
    """Add the rows that an index lacks; build one that is missing, or that has none of the view's rows any more."""
    table = job_table.table
    dataset = table.dataset(client=block)
    rows = dataset.count_rows()
    state = next((each for each in index_states(dataset) if each.name == spec.name), None)
    if state is not None and (indexed := sum(state.segments)):
        if missing := rows - indexed:
            extend_index(dataset, replace(state, missing=missing))
        return
    if spec.kind in VECTOR_TYPES and rows < max(MIN_TRAINING_ROWS, spec.training_rows):
        return
    build_staged_index(run, block, spark, table, table.location(), spec)
