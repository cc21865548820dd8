"""What a sweep is of: an operation, what there is before it, and what holds after a kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.sweep.installation import Installation

Begin = Callable[[], None]


@dataclass(frozen=True)
class SweptOperation:
    """An operation. Each of its steps runs in a process of its own.

    `run` calls its second argument right before the operation: writes count from then on, and one of them kills the
    process. `finish` runs after each kill, and also if all writes were done: it does what is promised to be possible
    then, mostly to run the operation again, and asserts that nothing is lost, twice or half there.
    """

    prepare: Callable[[Installation], None]
    run: Callable[[Installation, Begin], None]
    finish: Callable[[Installation], None]
    in_tasks: bool = False
    """Whether the writes are those of Spark's Python workers, of which one is killed: their driver goes on."""
    on_disk: bool = False
    """Whether it is of files of a disk, and cannot be tried with an object store."""
