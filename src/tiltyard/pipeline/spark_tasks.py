"""Run a function once per payload in Spark tasks, and collect each result as it arrives: jobs use Spark only this way.

Rows never pass through here: a payload says what to read and where to write (a few kilobytes), a result what was
written. Spark may run a task twice (a retry, speculation): its files are then written twice, but exactly one result per
payload reaches the driver, and only what results name is committed.

Results arrive while other tasks still run, so that a job can save them as checkpoints (`run.save_checkpoint`) and loses
little when its driver dies: payloads go to Spark in waves of half the slots, three waves at a time, and the tasks of
one wave fill the slots that the last tasks of another leave.

Spark's Python workers import this module, and those of the functions and payloads that they receive. So none of these
imports the namespace client: importing it would take a worker longer than many a task.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.private_variables import set_task_variables, variables_for_tasks
from tiltyard.pipeline.session import LazySession, is_connect, started, task_slots
from tiltyard.runtime.pool import start_thread, submit_shared
from tiltyard.runtime.process import retain_freed_memory
from tiltyard.runtime.tracing import TaskTrace, task_span, task_trace

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.runs import Run

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

WAVES = 3
POLL_SECONDS = 0.2
"""Seconds after which a job that waits for its tasks checks again whether it is canceled."""

_POLLS_PER_COUNT = 5
"""Polls per count of Spark's tasks, which takes several JVM calls per stage."""

_RESULT_SCHEMA = pa.schema([("i", pa.int64()), ("o", pa.binary())])


def call_task(task: Callable[[], R]) -> R:
    """Call a payload that is a function itself."""
    return task()


@dataclass(frozen=True, slots=True)
class _Wave:
    """A wave of pickled payloads: `first` is the position of its first one among all."""

    first: int
    payloads: tuple[bytes, ...]


def run_tasks(
    spark: SparkSession | LazySession | None,
    run: Run,
    work: Callable[[P], R],
    payloads: Sequence[P],
    *,
    on_result: Callable[[int, R], None] | None = None,
    name: str = "tiltyard",
    wave: int | None = None,
    at_once: int | None = None,
    resources: Sequence[tuple[str, str]] = (),
) -> list[R]:
    """Run `work(payload)` for each payload in Spark tasks; return the results in the order of the payloads.

    `work` and payloads are pickled (cloudpickle: closures too). `on_result(position, result)` is called in the caller's
    thread as results arrive, in any order. `wave` is the number of payloads of one Spark job; `at_once` bounds how many
    payloads run at once, where Spark would run more; Spark reserves `resources` for each. Raises RunCanceledError
    within a second of the run's cancellation, RefusedError if a task raised it, what `describe_java_error`
    returns if a task failed in all its attempts; all tasks have ended by then.

    Without a session, payloads run in threads of this process: small work is done before Spark has started a task.
    Users' code never runs this way.
    """
    if not payloads:
        return []
    if spark is None:
        return _run_in_threads(run, work, payloads, on_result)
    spark = started(spark)
    waves, size = WAVES, wave or max(1, task_slots(spark) // 2)
    if at_once is not None and at_once < waves * size:
        waves = min(WAVES, at_once)
        size = at_once // waves
    tag, trace, profile = f"tiltyard-{uuid.uuid4().hex}", task_trace(), resource_profile(spark, resources)
    dumps = _cloudpickle().dumps
    results: dict[int, R] = {}
    offsets = iter(range(0, len(payloads), size))
    pending: set[Future[list[tuple[int, bytes]]]] = set()
    try:
        while len(results) < len(payloads):
            while len(pending) < waves and (first := next(offsets, None)) is not None:
                next_wave = _Wave(first, tuple(dumps(payload) for payload in payloads[first : first + size]))
                run_wave = partial(_run_wave, spark, tag, name, work, next_wave, trace, profile)
                pending.add(start_thread("wave", run_wave))  # which Spark's tags stay with
            finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for position, result in (_unpickle_result(row) for future in finished for row in future.result()):
                results[position] = result
                if on_result is not None:
                    on_result(position, result)
            run.check()
    except BaseException:
        _cancel(spark, tag, pending)
        raise
    return [results[position] for position in range(len(payloads))]


def run_partitions(
    spark: SparkSession,
    run: Run,
    frame: DataFrame,
    work: Callable[[int, Iterator[pa.RecordBatch]], R],
    *,
    name: str = "tiltyard",
    reports_tasks: bool = False,
    resources: Sequence[tuple[str, str]] = (),
) -> list[R]:
    """Run `work(partition, batches)` for each partition of a DataFrame in Spark tasks; return results in their order.

    Here rows do pass, from the JVM to Python as Arrow batches. With `reports_tasks` the run's figures count the ended
    tasks of Spark, of those that it knows so far and one more: all of them at the end. Raises what `run_tasks` raises.
    """
    worker = _partition_worker(work, task_variables(spark), task_trace(), name)
    mapped = frame.mapInArrow(worker, "i bigint, o binary", profile=resource_profile(spark, resources))
    rows = run_action(spark, run, partial(_collect_rows, mapped), name=name, reports_tasks=reports_tasks)
    return [result for _, result in sorted((_unpickle_result(row) for row in rows), key=lambda row: row[0])]


def run_action(
    spark: SparkSession, run: Run, action: Callable[[], R], *, name: str = "tiltyard", reports_tasks: bool = False
) -> R:
    """Call what runs jobs of Spark, such as `frame.count`; return its result. Raises what `run_tasks` raises.

    With `reports_tasks` the run's figures count the ended tasks, as of `run_partitions`.
    """
    tag = f"tiltyard-{uuid.uuid4().hex}"
    pending = {start_thread("frame", partial(_act, spark, action, tag, name))}
    try:
        polls = itertools.count(1)
        while not (finished := wait(pending, POLL_SECONDS)[0]):
            run.check()
            if (
                reports_tasks
                and next(polls) % _POLLS_PER_COUNT == 0
                and (counts := count_spark_tasks(spark, tag)) is not None
            ):
                run.progress(tasks=counts[0], tasks_total=counts[1] + 1)
    except BaseException:
        _cancel(spark, tag, pending)
        raise
    if reports_tasks and (counts := count_spark_tasks(spark, tag)) is not None:
        run.progress(tasks=counts[1], tasks_total=counts[1])
    [future] = finished
    return future.result()


def _run_in_threads(
    run: Run, work: Callable[[P], R], payloads: Sequence[P], on_result: Callable[[int, R], None] | None
) -> list[R]:
    results: dict[int, R] = {}
    pending: dict[Future[R], int] = {}
    remaining, at_once = iter(enumerate(payloads)), os.cpu_count() or 1
    try:
        while len(results) < len(payloads):
            for position, payload in itertools.islice(remaining, at_once - len(pending)):
                pending[submit_shared(work, payload)] = position
            finished, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                position = pending.pop(future)
                results[position] = future.result()
                if on_result is not None:
                    on_result(position, results[position])
            run.check()
    except BaseException:
        for future in pending:
            future.cancel()
        wait(pending)
        raise
    return [results[position] for position in range(len(payloads))]


def _run_wave(
    spark: SparkSession,
    tag: str,
    name: str,
    work: Any,
    wave: _Wave,
    trace: TaskTrace | None,
    profile: ResourceProfile | None,
) -> list[tuple[int, bytes]]:
    """Run one Spark job with a task per payload; return positions and pickled outcomes."""
    count = len(wave.payloads)
    _tag(spark, tag, name)
    run = _payload_worker(work, wave, task_variables(spark), trace, name)
    frame = spark.range(0, count, 1, count).mapInArrow(run, "i bigint, o binary", profile=profile)
    return [(wave.first + position, outcome) for position, outcome in _collect_rows(frame)]


def _act(spark: SparkSession, action: Callable[[], R], tag: str, name: str) -> R:
    _tag(spark, tag, name)
    return _describing_errors(action)


def _collect_rows(frame: DataFrame) -> list[tuple[int, bytes]]:
    table = _describing_errors(frame.toArrow)
    return list(zip(table["i"].to_pylist(), table["o"].to_pylist(), strict=True))


def _describing_errors(action: Callable[[], R]) -> R:
    """Call what runs jobs of Spark. Raises what `describe_java_error` returns."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; an extra

    try:
        return action()
    except Py4JJavaError as error:
        from tiltyard.pipeline.java import describe_java_error  # noqa: PLC0415  # not for tasks: it takes long

        raise describe_java_error(error) from None


def _tag(spark: SparkSession, tag: str, name: str) -> None:
    """Tag the Spark jobs of this thread, so that they can be canceled."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)
        spark.sparkContext.setJobDescription(name)


def task_variables(spark: SparkSession) -> Mapping[str, str]:
    """Return the variables that tasks of a session set (see `private_variables`)."""
    return variables_for_tasks(None if is_connect(spark) else spark.sparkContext.master)


def _payload_worker(work: Any, wave: _Wave, variables: Mapping[str, str], trace: TaskTrace | None, name: str) -> Any:
    """Return the function that runs payloads in Spark's Python worker.

    A RefusedError is returned as a result: raised, Spark would retry it.
    """

    first, payloads = wave.first, wave.payloads

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        tune_allocator()
        for batch in batches:
            for position in batch.column(0).to_pylist():
                try:
                    with task_span(trace, f"task {name}", **{"tiltyard.position": first + position}):
                        outcome: Any = work(pickle.loads(payloads[position]))  # noqa: S301  # from the driver
                except RefusedError as refusal:
                    outcome = refusal
                yield _row(position, outcome)
        freeze_imports(f"tasks of {getattr(work, '__module__', type(work))}")

    return run


def _partition_worker(work: Any, variables: Mapping[str, str], trace: TaskTrace | None, name: str) -> Any:
    """Return the function that runs a partition of a DataFrame in Spark's Python worker."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  # an extra

        set_task_variables(variables)
        tune_allocator()
        context = TaskContext.get()
        position = 0 if context is None else context.partitionId()
        try:
            with task_span(trace, f"task {name}", **{"tiltyard.position": position}):
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
    """Return a result with its position. Raises RefusedError if the task did."""
    position, pickled = row
    outcome = pickle.loads(pickled)  # noqa: S301  # from our own tasks
    if isinstance(outcome, RefusedError):
        raise outcome
    return position, outcome


def _cancel(spark: SparkSession, tag: str, pending: set[Future[Any]]) -> None:
    """Cancel all tasks, repeatedly: a wave may be starting just now and be unknown to Spark yet."""
    for future in pending:
        future.cancel()
    while pending:
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)
        _, pending = wait(pending, POLL_SECONDS)


def _cloudpickle() -> Any:
    from pyspark import cloudpickle  # noqa: PLC0415  # an extra: this module can be read without it

    return cloudpickle


def count_spark_tasks(spark: SparkSession, tag: str) -> tuple[int, int] | None:
    """Return how many tasks of the Spark jobs with this tag have ended, and how many are known so far.

    Spark learns of later stages as it goes, so both grow. None on Spark Connect, which has no such counts.
    """
    if is_connect(spark):
        return None
    tracker = spark.sparkContext.statusTracker()
    jvm_tracker = spark.sparkContext._jsc.sc().statusTracker()  # PySpark's own tracker finds jobs only by their group
    ended = total = 0
    for job in jvm_tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if (stage_info := tracker.getStageInfo(stage)) is not None:
                ended, total = ended + stage_info.numCompletedTasks, total + stage_info.numTasks
    return ended, total


def group_for_tasks(items: Iterable[tuple[T, int]], max_size: int, slots: int) -> list[tuple[T, ...]]:
    """Group neighbours, each with its size, into groups of about `max_size` at most, as many as fill all slots evenly.

    There are fewer groups where items are few; none is split.
    """
    sized = list(items)
    total = max(1, sum(size for _, size in sized))
    return group_neighbors(sized, -(-total // (max_size * slots)) * slots)


def group_neighbors(items: Iterable[tuple[T, int]], count: int) -> list[tuple[T, ...]]:
    """Group neighbours, each with its size, into `count` groups of similar size, or fewer."""
    sized = list(items)
    total = max(1, sum(size for _, size in sized))
    groups: dict[int, list[T]] = {}
    size_before = 0
    for item, size in sized:
        middle = size_before + size // 2
        groups.setdefault(min(count - 1, middle * count // total), []).append(item)
        size_before += size
    return [tuple(group) for group in groups.values()]


_MMAP_THRESHOLD_BYTES = 32 << 20
"""Bytes from which a buffer gets a mapping of its own: the maximum of glibc."""
_TRIM_THRESHOLD_BYTES = 128 << 20
"""Bytes that the process retains after they are freed."""


@cache
def tune_allocator() -> None:
    """Configure glibc to retain memory that Lance frees for the next batch, instead of requesting it anew.

    Batches and pages of columns are some megabytes each: they cause half of the page faults of a task that writes. Only
    for processes of our own.
    """
    retain_freed_memory(_TRIM_THRESHOLD_BYTES, _MMAP_THRESHOLD_BYTES)


def freeze_imports(kind: str) -> None:
    """Exclude imported objects from garbage collection after the first task of a kind; later calls do nothing.

    PySpark collects garbage after each task, and after each planning of a data source. With pylance, pandas and PySpark
    imported that is a tenth of a second of walking through objects that live as long as the process: many tasks take
    less.
    """
    if kind not in _frozen_kinds:
        _frozen_kinds.add(kind)
        gc.collect()
        gc.freeze()


_frozen_kinds: set[str] = set()


def resource_profile(spark: SparkSession, resources: Sequence[tuple[str, str]]) -> ResourceProfile | None:
    """Return Spark's profile of tasks with these resources; None for none.

    Raises RefusedError where Spark runs in one process, and reserves nothing.
    """
    if not resources:
        return None
    master = "" if is_connect(spark) else str(spark.sparkContext.master)
    if master.split("[", 1)[0] == "local":
        raise RefusedError(
            f"resources: Spark runs in one process ({master}), which reserves nothing for tasks: leave them out, or "
            "name a cluster (spark://…, YARN, Kubernetes)."
        )
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests  # noqa: PLC0415  # an extra

    requests = TaskResourceRequests()
    for name, amount in resources:
        if name == "cpus":
            requests.cpus(int(float(amount)))
        else:
            requests.resource(name, float(amount))
    return ResourceProfileBuilder().require(requests).build
