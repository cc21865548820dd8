"""Pipeline job: write the rows of all tables, then publish them at once. A resumed job continues where it stopped.

    rows (a checkpoint for each table) → publication checkpoint → publication (versions, indexes) → tags

A publication that fails deletes its files. So a driver that finds the publication checkpoint of an earlier one checks
whether that one has published, and if not, starts again with files of its own: it cannot know whether the others still
exist, or will in a moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import lance
import lance_namespace as upstream
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableTagAlreadyExistsError

from tiltyard.model.lineage import LineageSource
from tiltyard.pipeline.indexes.staged import build_staged_index, staged_version
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.plans.plan_file import Plan, parse_plan
from tiltyard.pipeline.plans.rows import (
    TableRun,
    WrittenTable,
    create_view,
    discard_tables,
    load_written_table,
    read_written_rows,
    readable_views,
    write_table,
)
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import isolate_session
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.commit import find_run_version
from tiltyard.pipeline.writing.target_table import WriteMode, commit_first_version
from tiltyard.pipeline.writing.write_job import count_written
from tiltyard.publishing import Publication, PublishConflictError, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tiltyard.pipeline.catalog_client import Table


_PUBLICATION_KEY = "publishing"
_MAX_ATTEMPTS = 3
"""Attempts to write and publish all tables, where others commit to the same tables meanwhile."""


@job("pipeline", creates=True)
def pipeline(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession,
    plan: Annotated[str, "The plan, as JSON: `tiltyard pipeline run` makes it from a file."],
    *,
    udf: Annotated[list[str] | None, "The functions that the plan may call."] = None,
) -> Mapping[str, object]:
    """Create several tables from files and SQL, index them, and publish them at once.

    \b
    Example:
      tiltyard job pipeline '{"tables": {"films": {"files": "/data/films.parquet"}}}' --uri http://127.0.0.1:2333
    """
    try:
        parsed = parse_plan(json.loads(plan))
    except ValueError as error:
        raise InvalidInputError(f"The plan is not JSON: {error}") from error
    # A worker decides by `udf` whether it runs clients' code: no other function may be called.
    if undeclared := set(parsed.functions) - set(udf or ()):
        raise InvalidInputError(f"The plan calls {min(undeclared)}, which --udf does not name.")
    spark = isolate_session(spark)
    for _ in range(_MAX_ATTEMPTS - 1):
        try:
            return _run_attempt(run, catalog, spark, parsed)
        except PublishConflictError:
            run.check()
    return _run_attempt(run, catalog, spark, parsed)


def _run_attempt(run: Run, catalog: CatalogConnection, spark: SparkSession, plan: Plan) -> Mapping[str, object]:
    """Run one attempt, or resume the last one."""
    publication = json.loads(run.checkpoints().get(_PUBLICATION_KEY, "null"))
    attempt = publication["attempt"] if publication else 1
    steps = _StepCounter(run, len(plan.tables) + sum(len(table.indexes) for table in plan.tables.values()) + 1)
    if publication:
        runs = {name: TableRun(run, attempt, name) for name in plan.tables}
        previous = [load_written_table(table_run, catalog, name, plan.tables[name]) for name, table_run in runs.items()]
        tables = [table for table in previous if table is not None]
        versions = find_published_versions(tables, publication["bases"]) if len(tables) == len(previous) else None
        if versions is not None:
            return _finish(plan, tables, versions)
        attempt += 1
    tables = _write_tables(run, attempt, catalog, spark, plan, steps)
    bases = publication["bases"] if publication else {table.name: table.target.base for table in tables}
    run.save_checkpoint(_PUBLICATION_KEY, json.dumps({"attempt": attempt, "bases": bases}))
    try:
        versions = publish_tables(run, catalog, spark, tables, bases, steps.advance)
    except InvalidInputError:
        discard_tables(tables)
        raise
    steps.advance("published")
    return _finish(plan, tables, versions)


def _write_tables(
    run: Run, attempt: int, catalog: CatalogConnection, spark: SparkSession, plan: Plan, steps: _StepCounter
) -> list[WrittenTable]:
    """Write the rows of all tables; each is a view for the queries of those after it."""
    tables: list[WrittenTable] = []
    has_sql = any(table.sql for table in plan.tables.values())
    try:
        with readable_views(catalog, spark, plan) as views:
            for name, table in plan.tables.items():
                written = write_table(TableRun(run, attempt, name), catalog, spark, name, table, views)
                tables.append(written)
                if has_sql:
                    source = LineageSource(name, written.target.location.uri)
                    create_view(spark, views, name, read_written_rows(spark, written), source)
                steps.advance(name)
    except InvalidInputError:
        discard_tables(tables)
        raise
    return tables


def _finish(plan: Plan, tables: list[WrittenTable], versions: Mapping[str, int]) -> Mapping[str, object]:
    for table in tables:  # each index is a version after that of the rows
        table.target.index_lineage(versions[table.name] - len(table.plan.indexes))
    if plan.tag:
        tag_tables(tables, plan.tag, versions)
    counts = [count_written(table.results) for table in tables]
    totals = {name: sum(count[name] for count in counts) for name in ("rows", "rejected", "fragments", "bytes")}
    return {**totals, "versions": json.dumps(versions)}


class _StepCounter:
    """Counts the finished steps: tables written, indexes built, and the publication."""

    def __init__(self, run: Run, total: int) -> None:
        self._run = run
        self._total = total
        self._count = 0
        run.progress(steps=0, steps_total=total)

    def advance(self, stage: str) -> None:
        """Count a finished step. Raises RunCanceledError."""
        self._count += 1
        self._run.progress(steps=self._count, steps_total=self._total, stage=stage)


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
