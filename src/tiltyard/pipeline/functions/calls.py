"""Call a user's function as its policy says: with retries, in a process of its own, in smaller parts where it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY, CallPolicy, pause_after
from tiltyard.pipeline.functions.host import class_names
from tiltyard.pipeline.functions.processes import CallError, call_in_process
from tiltyard.pipeline.functions.user_functions import Loadable
from tiltyard.pipeline.task_errors import RowsFailedError

R = TypeVar("R")

MAX_ENDED = 64
"""Processes that a function may end within one batch: to find one row among 8,192 takes 14, and each a second."""


@dataclass(frozen=True, slots=True)
class GuardedFunction:
    """A function that is called as a policy says."""

    code: Loadable
    policy: CallPolicy = PLAIN_POLICY

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """Return what Spark reserves for each task that calls it."""
        return self.policy.resources

    def load(self) -> Callable[..., Any]:
        """Load the function, once a process. Raises RefusedError, and what its module raises."""
        if self.policy.is_isolated:
            call: Callable[..., Any] = call_in_process(self.code, self.policy)
        else:
            call = self.code.load()
        if not (self.policy.retry_on and self.policy.retries):
            return call
        return lambda rows: call_with_retries(lambda: call(rows), self.policy)


def call_with_retries(call: Callable[[], R], policy: CallPolicy, sleep: Callable[[float], None] = time.sleep) -> R:
    """Call again after the errors that the policy names, ever later. Raises what the last call raises."""
    for attempt in range(policy.retries):
        try:
            return call()
        except Exception as error:
            if not _is_named(error, policy.retry_on):
                raise
            sleep(pause_after(attempt))
    return call()


def _is_named(error: BaseException | None, names: tuple[str, ...]) -> bool:
    """Return whether a class of the error, or of its cause, has one of the names, with or without its module."""
    return error is not None and not set(names).isdisjoint(_class_names(error))


def _class_names(error: BaseException) -> frozenset[str]:
    return error.kinds if isinstance(error, CallError) else frozenset(class_names(error))


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error, which a function raised here or in its process."""
    return str(error) if isinstance(error, CallError | RowsFailedError) else f"{type(error).__name__}: {error}"


def error_kind(error: BaseException) -> str:
    """Return the name of an error's type."""
    return error.kind if isinstance(error, CallError) else type(error).__name__


@dataclass(frozen=True, slots=True)
class PartResult(Generic[R]):
    """What a call returned for the rows from `start` on; of a row that it failed on alone, the `error`."""

    start: int
    rows: pa.RecordBatch
    value: R | None = None
    error: Exception | None = None


def call_in_parts(
    call: Callable[[pa.RecordBatch], R], rows: pa.RecordBatch, policy: CallPolicy
) -> Iterator[PartResult[R]]:
    """Call a function with parts of rows, in their order, none larger than the policy allows.

    A part that it fails on is called in halves: where the policy isolates rows, until each failing row stands alone,
    and in any case where it ran out of memory. Raises what the function raises else, for a row alone too, and
    RefusedError, of which only RowsFailedError is a failure of rows; RefusedError, too, for a function that has ended
    MAX_ENDED processes within the batch.
    """
    start, ended = 0, _EndedProcesses()
    for part in split_by_bytes(rows, policy.batch_bytes):
        yield from _call_halves(call, part, start, policy, ended)
        start += part.num_rows


class _EndedProcesses:
    """Counts the processes that a function has ended within a batch."""

    def __init__(self) -> None:
        self._number = 0

    def count(self, error: Exception) -> None:
        """Count an error that has cost a process. Raises RefusedError for one too many."""
        self._number += ended_process(error)
        if self._number >= MAX_ENDED:
            raise RefusedError(
                f"The function has ended its process {MAX_ENDED} times within one batch, at last because "
                f"{describe_error(error)}. Give it more memory or time (memory_mb, batch_seconds), or mend it."
            ) from error


def _call_halves(
    call: Callable[[pa.RecordBatch], R], rows: pa.RecordBatch, start: int, policy: CallPolicy, ended: _EndedProcesses
) -> Iterator[PartResult[R]]:
    try:
        value = call(rows)
    except Exception as error:
        ended.count(error)
        if isinstance(error, RefusedError) and not isinstance(error, RowsFailedError):
            raise
        if not (policy.isolates_rows or (ran_out_of_memory(error) and rows.num_rows > 1)):
            raise
        if rows.num_rows <= 1:
            yield PartResult(start, rows, error=error)
            return
    else:
        yield PartResult(start, rows, value)
        return
    middle = rows.num_rows // 2
    yield from _call_halves(call, rows.slice(0, middle), start, policy, ended)
    yield from _call_halves(call, rows.slice(middle), start + middle, policy, ended)


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether there was not enough memory for a call, or its process was killed."""
    cause = error.__cause__ or error
    return "MemoryError" in _class_names(cause)


def ended_process(error: BaseException) -> bool:
    """Return whether a call has cost its process: it would cost another one to call again."""
    cause = error.__cause__ or error
    return isinstance(cause, CallError) and cause.ended_process


def split_by_bytes(rows: pa.RecordBatch, most_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Yield slices of rows, each of so many bytes at most, or of one row."""
    if most_bytes is None or rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from split_by_bytes(rows.slice(0, middle), most_bytes)
    yield from split_by_bytes(rows.slice(middle), most_bytes)
