"""The job `pipeline`: rows of all tables, then one publication. Resumed where it was left.

    rows (kept as tables are finished) → mark → publication (versions, indexes) → tags

A publication that ends badly deletes the files it was given. So whoever finds the mark of an earlier driver looks
whether that one has published, and if not, begins again with files of its own: it cannot know whether the others are
still there, or will be in a moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.plans.model import Plan, plan_of
from tiltyard.pipeline.plans.publication import publish_all, published, tag_all
from tiltyard.pipeline.plans.rows import Filled, PartOfRun, discard_all, fill, filled_before, frame_of, show, views
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.sql.isolated_session import own_session
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.writing.options import count_written
from tiltyard.publishing import PublishConflictError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "publishing"
_TRIES = 3
"""How often all is made anew, where others committed to the same tables meanwhile."""


@job("pipeline")
def pipeline(
    run: Run,
    where: Connection,
    spark: SparkSession,
    plan: Annotated[str, "The plan, as JSON: `tiltyard pipeline run` makes it of a file."],
    *,
    udf: Annotated[list[str] | None, "The functions that the plan may call."] = None,
) -> Mapping[str, object]:
    """Make several tables from files and SQL, index them, and publish them at once.

    \b
    Example:
      tiltyard job pipeline '{"tables": {"films": {"files": "/data/films.parquet"}}}' --uri http://127.0.0.1:2333
    """
    try:
        asked = plan_of(json.loads(plan))
    except ValueError as error:
        raise InvalidInputError(f"The plan is no JSON: {error}") from error
    # A worker looks at `udf` to decide whether it runs clients' code: nothing else may be called.
    if unnamed := set(asked.functions) - set(udf or ()):
        raise InvalidInputError(f"The plan calls {min(unnamed)}, which --udf does not name.")
    spark = own_session(spark)
    for _ in range(_TRIES - 1):
        try:
            return _run(run, where, spark, asked)
        except PublishConflictError:
            run.check()
    return _run(run, where, spark, asked)


def _run(run: Run, where: Connection, spark: SparkSession, plan: Plan) -> Mapping[str, object]:
    """One attempt, or what is left of the last one."""
    mark = json.loads(run.checkpoints().get(_MARK, "null"))
    attempt = mark["attempt"] if mark else 1
    steps = _Steps(run, len(plan.tables) + sum(len(table.indexes) for table in plan.tables.values()) + 1)
    if mark:
        parts = {name: PartOfRun(run, attempt, name) for name in plan.tables}
        before = [filled_before(part, where, name, plan.tables[name]) for name, part in parts.items()]
        tables = [table for table in before if table is not None]
        versions = published(tables, mark["bases"]) if len(tables) == len(before) else None
        if versions is not None:
            return _ended(plan, tables, versions)
        attempt += 1
    tables = _rows(run, attempt, where, spark, plan, steps)
    bases = mark["bases"] if mark else {table.name: table.landing.base for table in tables}
    run.save_checkpoint(_MARK, json.dumps({"attempt": attempt, "bases": bases}))
    try:
        versions = publish_all(run, where, spark, tables, bases, steps.done)
    except InvalidInputError:
        discard_all(tables)
        raise
    steps.done("published")
    return _ended(plan, tables, versions)


def _rows(run: Run, attempt: int, where: Connection, spark: SparkSession, plan: Plan, steps: _Steps) -> list[Filled]:
    """The rows of all tables; each is a view for the queries of those below it."""
    tables: list[Filled] = []
    queried = any(table.sql for table in plan.tables.values())
    try:
        with views(where, spark, plan) as made:
            for name, table in plan.tables.items():
                filled = fill(PartOfRun(run, attempt, name), where, spark, name, table, made)
                tables.append(filled)
                if queried:
                    show(spark, made, name, frame_of(spark, filled))
                steps.done(name)
    except InvalidInputError:
        discard_all(tables)
        raise
    return tables


def _ended(plan: Plan, tables: list[Filled], versions: Mapping[str, int]) -> Mapping[str, object]:
    if plan.tag:
        tag_all(tables, plan.tag, versions)
    told = [count_written(table.written) for table in tables]
    totals = {name: sum(one[name] for one in told) for name in ("rows", "rejected", "fragments", "bytes")}
    return {**totals, "versions": json.dumps(versions)}


class _Steps:
    """How many steps are done: tables written, indexes built, and the publication."""

    def __init__(self, run: Run, total: int) -> None:
        self._run = run
        self._total = total
        self._count = 0
        run.progress(steps=0, steps_total=total)

    def done(self, stage: str) -> None:
        """One more. Raises RunCanceledError."""
        self._count += 1
        self._run.progress(steps=self._count, steps_total=self._total, stage=stage)
