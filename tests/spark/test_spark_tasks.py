"""Spark tasks of a job: one result per payload despite retries, as it arrives; cancellation ends them at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.spark_tasks import run_partitions, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_run_tasks_many_payloads_gives_results_in_their_order(spark: SparkSession) -> None:
    payloads = [{"number": number} for number in range(7)]
    received: dict[int, int] = {}
    results = run_tasks(
        spark, LocalRun(), lambda payload: payload["number"] ** 2, payloads, on_result=received.__setitem__
    )
    assert results == [0, 1, 4, 9, 16, 25, 36]
    assert received == dict(enumerate(results))
    assert task_slots(spark) == 2


def test_run_tasks_without_payloads_starts_nothing(spark: SparkSession) -> None:
    assert run_tasks(spark, LocalRun(), len, []) == []


def _wait_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.01)
    return file.name


def test_run_tasks_result_of_a_quick_task_arrives_while_another_runs(spark: SparkSession, tmp_path: Path) -> None:
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    quick.touch()
    received: list[str] = []

    def receive(_: int, name: str) -> None:
        received.append(name)
        slow.touch()  # the slow task ends only after the quick one's result has arrived

    assert run_tasks(spark, LocalRun(), _wait_for, [slow, quick], on_result=receive) == ["slow", "quick"]
    assert received == ["quick", "slow"]


def _die_once(folder: Path, number: int) -> int:
    mark = folder / str(number)
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_run_tasks_worker_killed_is_retried(spark: SparkSession, tmp_path: Path) -> None:
    assert run_tasks(spark, LocalRun(), partial(_die_once, tmp_path), [0, 1, 2]) == [0, 1, 2]
    assert (tmp_path / "1").exists()


def _refuse_odd(folder: Path, number: int) -> int:
    with (folder / "tries").open("a") as tries:
        tries.write(f"{number} ")
    if number % 2:
        raise RefusedError(f"{number} is odd: give even ones.")
    return number


def test_run_tasks_refused_by_a_task_is_not_retried(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="3 is odd"):
        run_tasks(spark, LocalRun(), partial(_refuse_odd, tmp_path), [2, 3, 4], wave=3)
    assert (tmp_path / "tries").read_text().split().count("3") == 1


def _start_and_wait(folder: Path, number: int) -> None:
    (folder / str(number)).touch()
    _wait_for(folder / "never")


def test_run_tasks_canceled_ends_at_once(spark: SparkSession, tmp_path: Path) -> None:
    run = LocalRun()
    canceled: list[float] = []

    def cancel() -> None:
        while not any(tmp_path.iterdir()):  # three waves race for two slots: any may be first
            time.sleep(0.01)
        canceled.append(time.monotonic())
        run.canceled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCanceledError):
        run_tasks(spark, run, partial(_start_and_wait, tmp_path), [0, 1, 2, 3])
    ended = time.monotonic()
    thread.join()
    assert ended - canceled[0] < 10  # of a task that waits for ever; a quiet machine needs less than one


class TaskCountRun(LocalRun):
    """A run that records the counts of tasks, and releases the other tasks once one of them has ended."""

    def __init__(self, release: Path) -> None:
        super().__init__()
        self.release, self.counts = release, set[tuple[int, int]]()

    def progress(self, **figures: object) -> None:
        """Record the figures."""
        super().progress(**figures)
        self.counts.add((int(self.figures["tasks"]), int(self.figures["tasks_total"])))
        if int(self.figures["tasks"]):
            self.release.touch()


def _of_partition(release: Path, number: int, batches: Iterator[pa.RecordBatch]) -> int:
    rows = sum(batch.num_rows for batch in batches)
    while number and not release.exists():
        time.sleep(0.01)
    return rows


def test_run_partitions_reports_how_many_tasks_have_ended_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    run = TaskCountRun(tmp_path / "release")
    frame = spark.range(0, 30, 1, 3)
    assert run_partitions(spark, run, frame, partial(_of_partition, run.release), reports_tasks=True) == [10, 10, 10]
    assert any(0 < done < total for done, total in run.counts)
    assert run.figures["tasks"] == run.figures["tasks_total"]
