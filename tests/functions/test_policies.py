"""Policies of registered functions: retries, rows found in batches that fail, and limits of time, memory and bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.functions import definitions
from tests.functions.test_processes import code_of, with_source
from tiltyard.column_refresh.fragment_files import ComputedRows
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn
from tiltyard.pipeline.functions import calls, processes
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.processes import FunctionProcess, function_process
from tiltyard.pipeline.task_errors import RowsFailedError

ROWS = """
import os, time
calls = []
def twice(x):
    calls.append(x)
    if x == 2 and calls.count(2) < 3 or x == 3:
        raise ConnectionResetError(f"call {calls.count(x)}")
    if x == 5:
        raise ValueError("five")
    if x == 6:
        time.sleep(60)
    if x == 7:
        bytearray(2 << 30)
    if x == 8:
        os.kill(os.getpid(), 9)
    return len(calls) if x < 3 else x * 2
"""

ARROW = """
from __future__ import annotations
import os
import pyarrow as pa
import pyarrow.compute as pc
calls = []
def sum_of(x: pa.Array, y: pa.Array) -> pa.Array:
    calls.append(len(x))
    if 7 in x.to_pylist() and len(x) > 2:
        bytearray(2 << 30)
    if 0 in y.to_pylist():
        raise ValueError(os.environ["KEY"])
    if 1 in y.to_pylist() and len(calls) == 1:
        raise ConnectionResetError
    return None if 9 in y.to_pylist() else pc.add(x, len(x))
"""


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    yield
    processes._processes.clear()


def rows_code() -> FunctionCode:
    return with_source(code_of(definitions.twice), ROWS)


def compute(code: FunctionCode, policy: CallPolicy, **columns: list[int]) -> ComputedRows:
    """Compute rows as a task of a backfill does."""
    output = FilledColumn(pa.field("value", pa.int64()))
    function = ColumnFunction((output,), code.parameters, code, policy=policy)
    ids = list(range(100, 100 + len(next(iter(columns.values())))))
    return function.compute(pa.RecordBatch.from_pydict({**columns, "_rowid": ids}), (output,))


def outcome(computed: ComputedRows) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values, and where which errors were."""
    assert computed.failed == len(computed.errors)
    return computed.columns[0].to_pylist(), [(error.row, error.kind) for error in computed.errors]


def test_rows_that_fail_with_a_named_error_are_called_again_together() -> None:
    pauses: list[float] = []
    others = {*threading.enumerate()}  # timers of what tests before this one have left

    def sleep(seconds: float) -> None:
        timers = [
            thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and thread not in others
        ]
        assert all(timer.finished.is_set() for timer in timers)  # a pause is not in the time of a call
        pauses.append(seconds)

    process = FunctionProcess(rows_code(), CallPolicy(retry_on=("OSError",), retries=2, batch_seconds=60))
    try:
        computed = process.compute(pa.record_batch({"x": [1, 2, 3, 4, 5]}), sleep)
    finally:
        process.close()
    assert computed.values.to_pylist() == [1, 8, None, 8, None]  # 2 is called first of all again, in the third attempt
    assert [(error.row, error.message) for error in computed.errors] == [(2, "call 3"), (4, "five")]
    assert computed.failed == 2
    assert len(pauses) == 2 and 0.5 <= pauses[0] <= 1 <= pauses[1] <= 2


def test_batches_of_an_arrow_function_are_called_again_and_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(calls, "pause_after", lambda attempt: attempts.append(attempt) or 0.0)
    code = with_source(code_of(definitions.sum_of, KEY="sk-secret"), ARROW)
    policy = CallPolicy(on_error="park", retry_on=("ConnectionError",), batch_bytes=3 * 24, memory_bytes=1 << 30)
    parked = compute(code, policy, x=[10, 20, 30, 40, 50, 60], y=[1, 1, 1, 0, 1, 1])
    assert outcome(parked) == ([13, 23, 33, None, 52, 62], [(3, "ValueError")])
    assert parked.errors[0].message == "…" and attempts == [0]
    with pytest.raises(RefusedError, match="returned NoneType, and not an Arrow array"):
        compute(code, policy, x=[10, 20], y=[9, 1])


def test_call_that_takes_too_long_is_ended_and_its_row_is_found() -> None:
    policy = CallPolicy(on_error="null", batch_seconds=10)
    process = function_process(rows_code(), policy)
    assert outcome(compute(rows_code(), policy, x=[6, 4])) == ([None, 8], [(0, "TimeoutError")])
    assert not process.is_running
    assert function_process(rows_code(), policy) is not function_process(rows_code(), CallPolicy(batch_seconds=10))


def test_rows_that_lack_memory_or_end_the_process_are_found() -> None:
    policy = CallPolicy(on_error="park", memory_bytes=1 << 30)
    alone = compute(rows_code(), policy, x=[1, 7])
    assert outcome(alone) == ([3, None], [(1, "MemoryError")])  # 1 is called with 7, and then without it
    killed = compute(rows_code(), policy, x=[8, 4])
    assert outcome(killed) == ([None, 8], [(0, "MemoryError")])
    assert killed.errors[0].message == "the process of the function was ended by SIGKILL"


def test_row_that_fails_a_job_is_named() -> None:
    policy = CallPolicy(memory_bytes=1 << 30)
    with pytest.raises(
        RowsFailedError, match=r"twice failed on 2 of 3 rows: ValueError: five\. That is .* = 101: with"
    ):
        compute(rows_code(), policy, x=[4, 5, 5])
    code = with_source(code_of(definitions.sum_of, KEY="sk-secret"), ARROW)
    assert outcome(compute(code, policy, x=[7, 7, 7, 7], y=[2, 2, 2, 2])) == ([9, 9, 9, 9], [])
    with pytest.raises(
        RowsFailedError, match=r"sum_of failed: ValueError: …\. That is the row with _rowid = 102: with"
    ):
        compute(code, policy, x=[1, 2, 3, 4], y=[2, 2, 0, 2])
