"""Refreshes that are interrupted: a killed driver, a killed Python worker of Spark, a cancel through the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
import pytest

from tests.services.server import ServerProcess
from tests.spark.job_processes import wait_for
from tests.spark.killed_driver import ROWS_PER_PART, RecordingRun, run_until_killed
from tests.spark.views import contents, create_view, dying, held, numbers, spec, write
from tiltyard.pipeline.catalog_client import CatalogConnection, connection, table
from tiltyard.pipeline.driver.catalog_run import claim_job, drive_job, new_owner, submit_job
from tiltyard.pipeline.jobs import find_job
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.views.job import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.extended

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lets clients declare code."""
    running = ServerProcess(tmp_path_factory.mktemp("killed"), environ={"TILTYARD_UDFS": "true"})
    yield running
    running.stop()


@pytest.fixture
def killable(server: ServerProcess) -> CatalogConnection:
    return connection(server.url)


def of_three_fragments(catalog: CatalogConnection, fresh: Fresh, query: str, **code: Any) -> tuple[str, str]:
    """A table of three fragments, and a view of it."""
    source, view = fresh("source"), fresh("view")
    for first in range(0, 3 * ROWS_PER_PART, ROWS_PER_PART):
        write(catalog, source, numbers(first, first + ROWS_PER_PART), "append" if first else "create")
    create_view(catalog, view, query.format(source), **code)
    return source, view


def queue_refresh(catalog: CatalogConnection, view: str) -> str:
    """The id of a refresh that upstream's own operation has queued."""
    request = upstream.RefreshMaterializedViewRequest(id=[view])
    return str(catalog.client().refresh_materialized_view(request).job_id)


def drive(catalog: CatalogConnection, spark: SparkSession, job_id: str) -> tuple[dict[str, str] | None, list[str]]:
    """Drive a job in this process to its end; return its figures, and the keys of checkpoints saved meanwhile."""
    calls, owner = catalog.caller(), new_owner()
    claimed = claim_job(calls, job_id, owner)
    run = RecordingRun(calls, claimed, owner)
    return drive_job(run, lambda: claimed.execute(run, catalog, spark)), list(run.saved)


def test_refresh_whose_driver_was_killed_makes_only_the_parts_that_are_left(
    spark: SparkSession, server: ServerProcess, killable: CatalogConnection, environ: dict[str, str], fresh: Fresh
) -> None:
    source, view = of_three_fragments(killable, fresh, "SELECT id, text FROM {}")
    job_id = queue_refresh(killable, view)
    run_until_killed(server.url, environ, job_id, "part-", count=2)
    assert table(killable, view).dataset().version == 1
    write(killable, source, numbers(1000, 1001), "append")  # after the versions that the killed one has pinned
    figures, saved = drive(killable, spark, job_id)
    assert figures is not None
    assert [key for key in saved if key.startswith("part-")] == ["part-1-2"]
    assert (figures["rows"], figures["parts"], figures["version"]) == (str(3 * ROWS_PER_PART), "3", "2")
    assert contents(killable, view).equals(numbers(0, 3 * ROWS_PER_PART))
    figures, _ = drive(killable, spark, queue_refresh(killable, view))
    assert (figures or {})["mode"] == "incremental"
    assert contents(killable, view)["id"].to_pylist() == [*range(3 * ROWS_PER_PART), 1000]


def test_refresh_whose_python_worker_is_killed_has_each_row_once(
    spark: SparkSession, killable: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    code = spec("chunker", partial(dying, str(tmp_path)), ["id", "text"])
    _, view = of_three_fragments(killable, fresh, "SELECT id, text FROM {}", kind="chunker", udtf_spec=code)
    refresh(LocalRun(), killable, spark, view)
    assert (tmp_path / "died").exists()
    assert contents(killable, view).equals(numbers(0, 3 * ROWS_PER_PART))


def test_refresh_that_is_canceled_in_the_catalog_stops_and_the_next_one_makes_the_view(
    spark: SparkSession, killable: CatalogConnection, fresh: Fresh, tmp_path: Path
) -> None:
    code = spec("chunker", partial(held, str(tmp_path)), ["id", "text"])
    _, view = of_three_fragments(killable, fresh, "SELECT id, text FROM {}", kind="chunker", udtf_spec=code)
    job_id = queue_refresh(killable, view)
    ended: list[Any] = []
    driver = threading.Thread(target=lambda: ended.append(drive(killable, spark, job_id)[0]))
    driver.start()
    wait_for((tmp_path / "at").exists)
    action = {"setStatusAction": {"status": "Canceled"}}
    killable.caller().call("AlterTransaction", id=[job_id], actions=[action])
    driver.join(60)
    assert (driver.is_alive(), ended, table(killable, view).dataset().version) == (False, [None], 1)
    (tmp_path / "go").touch()
    job_of_caller = submit_job(killable.caller(), find_job("refresh"), {"table": view}).id
    figures, _ = drive(killable, spark, job_of_caller)
    assert (figures or {})["mode"] == "full"
    assert contents(killable, view).equals(numbers(0, 3 * ROWS_PER_PART))
