"""The one way in which jobs use Spark: run a function once for each payload, and hear of each result as it comes.

Rows never pass through here: a payload says what to read and where to write (a few kilobytes), a result says what was
written. Spark may run a task twice (a retry, speculation): its files then lie there twice, but exactly one result per
payload reaches the driver, and only what results name is committed.

Results arrive while others still run, so that a job can keep them (`run.save_checkpoint`) and a driver that dies loses little:
payloads go to Spark in waves of half the slots there are, three at a time, and the tasks of one wave fill the slots
that the last tasks of another leave.

Spark's Python workers import this module, and those of the functions and payloads that they are sent. So none of these
imports the namespace client: that would take a worker longer than many a task.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tiltyard.pipeline.driver.environment import for_tasks, set_in_task
from tiltyard.pipeline.session import is_connect, task_slots
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.runtime.allocator import retain_freed_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.runs import Run

P = TypeVar("P")
R = TypeVar("R")

WAVES = 3
POLL_SECONDS = 0.2
"""How often a job that waits for its tasks looks whether it is canceled."""

_POLLS_PER_COUNT = 5
"""How many looks come to one count of Spark's tasks, which takes some calls of the JVM for each stage."""

_RESULT_SCHEMA = pa.schema([("i", pa.int64()), ("o", pa.binary())])


def call_task(task: Callable[[], R]) -> R:
    """The work of payloads that are functions themselves."""
    return task()


@dataclass(frozen=True, slots=True)
class _Wave:
    """Some payloads, pickled: `first` is the position of the first one among all."""

    first: int
    payloads: tuple[bytes, ...]


def run_tasks(
    spark: SparkSession | None,
    run: Run,
    work: Callable[[P], R],
    payloads: Sequence[P],
    *,
    on_result: Callable[[int, R], None] | None = None,
    name: str = "tiltyard",
    wave: int | None = None,
) -> list[R]:
    """`work(payload)` for each payload, in Spark tasks; the results in the order of the payloads.

    `work` and payloads are pickled (cloudpickle: closures too). `on_result(position, result)` is called in the
    caller's thread as results come, in any order. `wave` is how many payloads one Spark job takes. Raises
    RunCanceledError within a second of the run's cancel, RefusedError if a task raised that, Spark's own error if a
    task failed as often as Spark tries it; all tasks have ended by then.

    Without a session they run in threads of this process: small work is done sooner than Spark has started a task.
    Code of a caller's own never runs this way.
    """
    if not payloads:
        return []
    if spark is None:
        return _run_in_threads(run, work, payloads, on_result)
    size = wave or max(1, task_slots(spark) // 2)
    tag = f"tiltyard-{uuid.uuid4().hex}"
    dumps = _cloudpickle().dumps
    found: dict[int, R] = {}
    waiting = iter(range(0, len(payloads), size))
    flying: set[Future[list[tuple[int, bytes]]]] = set()
    with ThreadPoolExecutor(WAVES, thread_name_prefix="wave") as pool:
        try:
            while len(found) < len(payloads):
                while len(flying) < WAVES and (first := next(waiting, None)) is not None:
                    part = _Wave(first, tuple(dumps(payload) for payload in payloads[first : first + size]))
                    flying.add(pool.submit(_run_wave, spark, tag, name, work, part))
                landed, flying = wait(flying, POLL_SECONDS, FIRST_COMPLETED)
                for position, result in (_unpickle_result(row) for future in landed for row in future.result()):
                    found[position] = result
                    if on_result is not None:
                        on_result(position, result)
                run.check()
        except BaseException:
            _cancel(spark, tag, flying)
            raise
    return [found[position] for position in range(len(payloads))]


def run_partitions(
    spark: SparkSession,
    run: Run,
    frame: DataFrame,
    work: Callable[[int, Iterator[pa.RecordBatch]], R],
    *,
    name: str = "tiltyard",
    told: bool = False,
) -> list[R]:
    """`work(partition, batches)` for each partition of a DataFrame, in Spark tasks; results in their order.

    Here rows do pass, from the JVM to Python as Arrow batches. With `told` the run is told how many of Spark's tasks
    have ended, of those that Spark knows so far and one more: all of them when it is done. Raises what `run_tasks`
    raises.
    """
    tag = f"tiltyard-{uuid.uuid4().hex}"
    mapped = frame.mapInArrow(_partition_worker(work, task_variables(spark)), "i bigint, o binary")
    with ThreadPoolExecutor(1, thread_name_prefix="frame") as pool:
        flying = {pool.submit(_collect, spark, mapped, tag, name)}
        try:
            looks = itertools.count(1)
            while not (landed := wait(flying, POLL_SECONDS)[0]):
                run.check()
                if told and next(looks) % _POLLS_PER_COUNT == 0 and (counted := counted_tasks(spark, tag)) is not None:
                    run.progress(tasks=counted[0], tasks_total=counted[1] + 1)
        except BaseException:
            _cancel(spark, tag, flying)
            raise
    if told and (counted := counted_tasks(spark, tag)) is not None:
        run.progress(tasks=counted[1], tasks_total=counted[1])
    [answer] = landed
    return [result for _, result in sorted((_unpickle_result(row) for row in answer.result()), key=lambda row: row[0])]


def _run_in_threads(
    run: Run, work: Callable[[P], R], payloads: Sequence[P], on_result: Callable[[int, R], None] | None
) -> list[R]:
    found: dict[int, R] = {}
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="task") as pool:
        flying = {pool.submit(work, payload): position for position, payload in enumerate(payloads)}
        try:
            while len(found) < len(payloads):
                landed, _ = wait(flying, POLL_SECONDS, FIRST_COMPLETED)
                for future in landed:
                    position = flying.pop(future)
                    found[position] = future.result()
                    if on_result is not None:
                        on_result(position, found[position])
                run.check()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [found[position] for position in range(len(payloads))]


def _run_wave(spark: SparkSession, tag: str, name: str, work: Any, wave: _Wave) -> list[tuple[int, bytes]]:
    """One Spark job with a task per payload: positions and pickled outcomes."""
    count = len(wave.payloads)
    _tag(spark, tag, name)
    run = _payload_worker(work, wave.payloads, task_variables(spark))
    frame = spark.range(0, count, 1, count).mapInArrow(run, "i bigint, o binary")
    return [(wave.first + position, outcome) for position, outcome in _rows(frame)]


def _collect(spark: SparkSession, frame: DataFrame, tag: str, name: str) -> list[tuple[int, bytes]]:
    _tag(spark, tag, name)
    return _rows(frame)


def _rows(frame: DataFrame) -> list[tuple[int, bytes]]:
    answer = frame.toArrow()
    return list(zip(answer["i"].to_pylist(), answer["o"].to_pylist(), strict=True))


def _tag(spark: SparkSession, tag: str, name: str) -> None:
    """Mark the jobs of this thread, to be found by who cancels them."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)
        spark.sparkContext.setJobDescription(name)


def task_variables(spark: SparkSession) -> Mapping[str, str]:
    """Return the variables that tasks of a session set (see `environment`)."""
    return for_tasks(None if is_connect(spark) else spark.sparkContext.master)


def _payload_worker(work: Any, payloads: tuple[bytes, ...], variables: Mapping[str, str]) -> Any:
    """What runs in Spark's Python worker. A refusal would be one again: it is a result, not something to retry."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_in_task(variables)
        tune_allocator()
        for batch in batches:
            for position in batch.column(0).to_pylist():
                try:
                    outcome: Any = work(pickle.loads(payloads[position]))  # noqa: S301  # from the driver
                except RefusedError as refusal:
                    outcome = refusal
                yield _row(position, outcome)
        freeze_imports(f"tasks of {getattr(work, '__module__', type(work))}")

    return run


def _partition_worker(work: Any, variables: Mapping[str, str]) -> Any:
    """The same for a partition of a DataFrame, whose rows it is given."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  # an extra

        set_in_task(variables)
        tune_allocator()
        context = TaskContext.get()
        position = 0 if context is None else context.partitionId()
        try:
            outcome: Any = work(position, batches)
        except RefusedError as refusal:
            outcome = refusal
        yield _row(position, outcome)
        freeze_imports("partition")

    return run


def _row(position: int, outcome: Any) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([position], pa.int64()), pa.array([pickle.dumps(outcome)], pa.binary())], _RESULT_SCHEMA
    )


def _unpickle_result(row: tuple[int, bytes]) -> tuple[int, Any]:
    """A result by its position. Raises RefusedError if it is one."""
    position, pickled = row
    outcome = pickle.loads(pickled)  # noqa: S301  # from our own tasks
    if isinstance(outcome, RefusedError):
        raise outcome
    return position, outcome


def _cancel(spark: SparkSession, tag: str, flying: set[Future[list[tuple[int, bytes]]]]) -> None:
    """End all tasks; again and again, for a wave may start just now and not be known yet."""
    for future in flying:
        future.cancel()
    while flying:
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)
        _, flying = wait(flying, POLL_SECONDS)


def _cloudpickle() -> Any:
    from pyspark import cloudpickle  # noqa: PLC0415  # an extra: this module can be read without it

    return cloudpickle


def counted_tasks(spark: SparkSession, tag: str) -> tuple[int, int] | None:
    """How many tasks of the Spark jobs with this tag have ended, and how many are known so far.

    Spark learns of later stages as it goes, so both grow. None through Spark Connect, which tells no such thing.
    """
    if is_connect(spark):
        return None
    tracker = spark.sparkContext.statusTracker()
    known = spark.sparkContext._jsc.sc().statusTracker()  # PySpark's own finds jobs by their group alone
    done = total = 0
    for job in known.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if (one := tracker.getStageInfo(stage)) is not None:
                done, total = done + one.numCompletedTasks, total + one.numTasks
    return done, total


_OWN_MAPPING = 32 << 20
"""Bytes from which a buffer has pages of its own: the most that every glibc takes."""
_KEPT = 128 << 20
"""Bytes that stay with the process after they were freed."""


@lru_cache(maxsize=1)
def tune_allocator() -> None:
    """Have glibc keep what Lance frees for the next batch, where it would give it back and ask for it anew.

    Batches and pages of columns are some megabytes each: half of the page faults of a task that writes are these. For
    a process that is ours alone.
    """
    retain_freed_memory(_KEPT, _OWN_MAPPING)


@lru_cache(maxsize=64)
def freeze_imports(kind: str) -> None:
    """Spare this process the look at what is imported, after the first task of a kind; later calls do nothing.

    PySpark collects garbage after each task. With pylance, pandas and PySpark imported that is a tenth of a second of
    walking through objects that stay for as long as the process does: many tasks take less.
    """
    gc.collect()
    gc.freeze()
