"""Jobs whose driver is killed: index and optimize resume from their checkpoints, and repeat nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest
from lance.optimize import Compaction

from tests.services.server import ServerProcess
from tests.spark.killed_driver import LEASE_MS, ROWS_PER_SEGMENT, RecordingRun, run_until_killed
from tests.spark.test_index import DIMENSION, ROWS, rows
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, table
from tiltyard.pipeline.driver.catalog_run import claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.indexes import job as indexing
from tiltyard.pipeline.indexes import segments
from tiltyard.pipeline.indexes.job import index
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

VECTORS: Mapping[str, Any] = {"column": "vector", "type": "IVF_FLAT", "parameters": {"num_partitions": "2"}}


@pytest.fixture
def target(catalog: CatalogConnection, fresh: Callable[[str], str]) -> Table:
    """A table of four fragments."""
    target = table(catalog, fresh("resumed"))
    options = {"namespace_client": target.client, "table_id": target.id, "max_rows_per_file": ROWS_PER_SEGMENT}
    lance.write_dataset(rows(range(ROWS)), **options)
    return target


def killed(
    server: ServerProcess,
    environ: dict[str, str],
    target: Table,
    job: str,
    prefix: str,
    count: int = 2,
    slots: int = 1,
    **options: Any,
) -> str:
    """The id of a job on a table whose driver was killed after `count` parts whose keys begin with `prefix`."""
    arguments = {"table": target.path[0], **options}
    job_id = submit_job(target.connection.caller(), find_job(job), arguments).id
    run_until_killed(server.url, environ, job_id, prefix, count=count, slots=slots)
    return job_id


def resumed(target: Table, spark: SparkSession, job_id: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Drive a job to its end; return its figures, the checkpoints from before, and those that were saved now."""
    calls, owner = target.connection.caller(), new_owner()
    claimed = claim_job(calls, job_id, owner, LEASE_MS)
    run = RecordingRun(calls, claimed, owner)
    before = dict(run.checkpoints())
    job = find_job(claimed.name)
    arguments = job.validate(claimed.arguments)
    figures = drive_job(run, lambda: job.function(run, target.connection, spark, **arguments))
    assert figures is not None
    assert claimed.attempts == 2
    return figures, before, run.saved


def fragments_of(parts: Iterable[str]) -> list[list[int]]:
    """Return the fragments of saved segments."""
    return sorted(sorted(map(int, json.loads(text)["seen"])) for text in parts)


def saved_segments(parts: Mapping[str, str]) -> list[str]:
    return [text for key, text in parts.items() if key.startswith("segment-")]


def test_index_whose_driver_was_killed_builds_only_what_is_left(
    shared_server: ServerProcess,
    environ: dict[str, str],
    spark: SparkSession,
    target: Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = killed(shared_server, environ, target, "index", "segment-", **VECTORS)
    monkeypatch.setattr(segments, "ROWS_PER_SEGMENT", ROWS_PER_SEGMENT)
    figures, before, after = resumed(target, spark, job_id)
    assert "model" in before and "model" not in after
    single_fragments = fragments_of(saved_segments(before)) + [
        fragments for fragments in fragments_of(saved_segments(after)) if len(fragments) == 1
    ]
    assert sorted(single_fragments) == [[0], [1], [2], [3]]
    assert (figures["rows"], figures["segments"]) == (str(ROWS), "1")
    nearest = {"column": "vector", "q": [0.5] * DIMENSION, "k": 10, "nprobes": 2}
    ids = [target.dataset().to_table(nearest={**nearest, "use_index": use})["id"] for use in (True, False)]
    assert ids[0] == ids[1]


def test_optimize_whose_driver_was_killed_rewrites_only_what_is_left(
    shared_server: ServerProcess, environ: dict[str, str], spark: SparkSession, target: Table
) -> None:
    target.dataset().delete("id % 5 = 0")
    expected = target.dataset().to_table().sort_by("id")
    options = {"rows_per_fragment": 100}  # fragments are rewritten one by one, for the rows deleted
    job_id = killed(shared_server, environ, target, "optimize", "compacted-", **options)
    assert target.dataset().to_table().sort_by("id").equals(expected)
    figures, before, after = resumed(target, spark, job_id)
    assert (len(before), len(before.keys() | after.keys()), before.keys() & after.keys()) == (2, 4, set())
    assert figures["fragments_removed"] == "4"
    dataset = target.dataset()
    assert [fragment.metadata.num_deletions for fragment in dataset.get_fragments()] == [0] * len(
        dataset.get_fragments()
    )
    assert dataset.to_table().sort_by("id").equals(expected)


def test_index_beside_a_compaction_builds_only_what_was_replaced(
    spark: SparkSession, catalog: CatalogConnection, target: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "ROWS_PER_SEGMENT", ROWS_PER_SEGMENT)
    commit = indexing.commit_segments
    compactions = iter([None])

    def late(*arguments: Any) -> bool:
        for _ in compactions:  # the first two fragments become one
            dataset = target.dataset()
            plan = Compaction.plan(dataset, {"target_rows_per_fragment": 2 * ROWS_PER_SEGMENT})
            Compaction.commit(dataset, [plan.tasks[0].execute(dataset)])
        return commit(*arguments)

    monkeypatch.setattr(indexing, "commit_segments", late)
    run = LocalRun()
    figures = index(run, catalog, spark, target.path[0], **VECTORS)
    assert (figures["rows"], figures["segments"]) == (ROWS, 1)
    built = [fragments for fragments in fragments_of(saved_segments(run.checkpoints())) if len(fragments) == 1]
    assert built[:4] == [[0], [1], [2], [3]]
    assert len(built) == 5
    folder = Path(target.dataset().uri.removeprefix("file://"))
    assert not list(folder.glob("_indices/*/centroids.lance"))
