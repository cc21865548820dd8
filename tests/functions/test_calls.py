"""How functions are called: retries, limits of time, memory and bytes, one instance a process, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions import calls
from tiltyard.pipeline.functions.call_options import CallOptions, make_policy
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.calls import GuardedFunction, call_in_parts, call_with_retries, error_kind
from tiltyard.pipeline.functions.processes import CallError
from tiltyard.pipeline.functions.user_functions import UserFunction
from tiltyard.pipeline.spark_tasks import resource_profile

ROWS = pa.record_batch({"n": list(range(16))})

CODE = """
import os, pathlib, time
import pyarrow as pa
import pyarrow.compute as pc

HERE = pathlib.Path({folder!r})

class Doubled:
    def setup(self):
        with (HERE / "setups").open("a") as file:
            file.write(f"{{os.getpid()}}\\n")

    def __call__(self, rows):
        numbers = rows.column(0).to_pylist()
        if 5 in numbers and (HERE / "slow").exists():
            time.sleep(60)
        if 5 in numbers and (HERE / "kill").exists():
            os.kill(os.getpid(), 9)
        if len(numbers) > 4 and (HERE / "large").exists():
            bytearray(2 << 30)
        if 5 in numbers and (HERE / "fail").exists():
            raise ConnectionResetError("try later")
        return pc.multiply(rows.column(0), 2)

def text(rows):
    return "text"
"""


@pytest.fixture
def code(tmp_path: Path) -> UserFunction:
    """Return a class of a file: the files `slow`, `kill`, `large` and `fail` beside it say what it does."""
    return UserFunction("own.py", "Doubled", CODE.format(folder=str(tmp_path)))


def outcomes(function: GuardedFunction, rows: pa.RecordBatch = ROWS) -> list[tuple[int, int, Any]]:
    """Call a function; return the start and the length of each part, and its values or the name of its error."""
    return [
        (part.start, part.rows.num_rows, error_kind(part.error) if part.error else part.value.to_pylist())
        for part in call_in_parts(function.load(), rows, function.policy)
    ]


def test_class_is_set_up_once_for_all_calls_of_a_process(code: UserFunction, tmp_path: Path) -> None:
    for policy in (CallPolicy(), CallPolicy(batch_seconds=60)):
        for _ in range(2):
            assert outcomes(GuardedFunction(code, policy)) == [(0, 16, list(range(0, 32, 2)))]
    here, process = [int(line) for line in (tmp_path / "setups").read_text().split()]
    assert here == os.getpid() != process


def test_calls_take_no_more_bytes_than_allowed(code: UserFunction) -> None:
    parts = outcomes(GuardedFunction(code, CallPolicy(batch_bytes=4 * 8)))
    assert [(start, count) for start, count, _ in parts] == [(0, 4), (4, 4), (8, 4), (12, 4)]


@pytest.mark.extended
def test_call_that_takes_too_long_is_ended_and_its_row_is_found(code: UserFunction, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    few = ROWS.slice(4, 2)
    # A process that starts on a busy machine takes some of them.
    parts = outcomes(GuardedFunction(code, CallPolicy(on_error="park", batch_seconds=10)), few)
    assert parts == [(0, 1, [8]), (1, 1, "TimeoutError")]
    with pytest.raises(CallError, match="longer than 10 s") as raised:
        outcomes(GuardedFunction(code, CallPolicy(batch_seconds=10)), few)
    assert raised.value.ended_process


@pytest.mark.extended
def test_call_without_enough_memory_is_made_in_halves(code: UserFunction, tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    parts = outcomes(GuardedFunction(code, CallPolicy(memory_bytes=1 << 30)))
    assert [(start, count) for start, count, _ in parts] == [(0, 4), (4, 4), (8, 4), (12, 4)]


def test_call_whose_process_is_killed_costs_its_row_alone(code: UserFunction, tmp_path: Path) -> None:
    (tmp_path / "kill").touch()
    few = ROWS.slice(5, 2)
    policy = CallPolicy(on_error="null", memory_bytes=1 << 30)
    assert outcomes(GuardedFunction(code, policy), few) == [(0, 1, "MemoryError"), (1, 1, [12])]
    with pytest.raises(CallError, match="ended by SIGKILL"):
        outcomes(GuardedFunction(code, CallPolicy(memory_bytes=1 << 30)), few)


def test_function_that_ends_its_process_over_and_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def kill(rows: pa.RecordBatch) -> None:
        made.append(rows.num_rows)
        raise CallError("MemoryError", "the process of the function was ended by SIGKILL", ended_process=True)

    monkeypatch.setattr(calls, "MAX_ENDED", 5)
    with pytest.raises(RefusedError, match=r"5 times within one batch.*SIGKILL.*memory_mb"):
        list(call_in_parts(kill, ROWS, CallPolicy(on_error="park", memory_bytes=1 << 30)))
    assert made == [16, 8, 4, 2, 1]


@pytest.mark.parametrize("isolated", [None, pytest.param(60.0, marks=pytest.mark.extended)])
def test_error_of_a_function_is_its_own_and_of_its_row(
    code: UserFunction, tmp_path: Path, isolated: float | None
) -> None:
    (tmp_path / "fail").touch()
    parts = outcomes(GuardedFunction(code, CallPolicy(on_error="park", batch_seconds=isolated)))
    assert [part for part in parts if isinstance(part[2], str)] == [(5, 1, "ConnectionResetError")]
    text = UserFunction(code.module, "text", code.text)
    if isolated:
        with pytest.raises(RefusedError, match="nothing of Arrow"):
            GuardedFunction(text, CallPolicy(batch_seconds=isolated)).load()(ROWS)


@pytest.mark.parametrize(("name", "calls"), [("OSError", 4), ("builtins.ConnectionError", 4), ("KeyError", 1)])
def test_call_is_repeated_after_the_errors_that_are_named(name: str, calls: int) -> None:
    made: list[int] = []
    pauses: list[float] = []

    def fail() -> None:
        made.append(1)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        call_with_retries(fail, CallPolicy(retry_on=(name,), retries=3), pauses.append)
    assert len(made) == calls
    assert all(2**n / 2 <= pause <= 2**n for n, pause in enumerate(pauses)) and len(pauses) == calls - 1


def test_error_of_a_process_is_repeated_by_its_classes() -> None:
    error = CallError("ConnectionResetError", "gone", frozenset({"ConnectionResetError", "OSError"}))
    answers = iter([error, None])

    def call() -> str:
        if (failure := next(answers)) is not None:
            raise failure
        return "done"

    assert call_with_retries(call, CallPolicy(retry_on=("OSError",)), lambda _: None) == "done"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_seconds": 0.0}, "batch_seconds is 0"),
        ({"batch_mb": -1.0}, "batch_mb is -1"),
        ({"memory_mb": 0}, "memory_mb is 0"),
        ({"retries": 21}, "retries is 21"),
        ({"retry_on": ["no name"]}, "'no name' is not the name of an error"),
        ({"requirements": ["--index-url=http://elsewhere"]}, "is no name and versions"),
        ({"resources": {"cpus": "1.5"}}, "cpus=1.5 is no amount"),
        ({"resources": {"gpu": "many"}}, "gpu=many is no amount"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: CallOptions, word: str) -> None:
    with pytest.raises(RefusedError, match=word):
        make_policy(options)
    with pytest.raises(RefusedError, match=f"{next(iter(options))} is an option of functions"):
        make_policy(options, has_function=False)


def test_rejects_park_rows_and_nothing_else() -> None:
    assert (make_policy({}).on_error, make_policy({}, rejects="bad").on_error) == ("fail", "park")
    with pytest.raises(RefusedError, match="rejects is a folder for parked rows"):
        make_policy({"on_error": "null"}, rejects="bad")


def test_resources_of_spark_in_one_process_are_refused() -> None:
    class Context:
        master = "local[2]"

    class Session:
        sparkContext = Context()  # noqa: N815  # Spark's own name

    with pytest.raises(RefusedError, match=r"Spark runs in one process \(local\[2\]\)"):
        resource_profile(Session(), (("gpu", "1"),))  # type: ignore[arg-type]
    assert resource_profile(Session(), ()) is None  # type: ignore[arg-type]
