"""Runs that the process of their submitter drove, and that is gone: they end as Lost, and no worker adopts them.

Only submitted jobs are the workers' to start again. Whoever ran a command here knows whether, and where, it is to go
on: the run's error says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.model.jobs import ENDLESS_JOBS

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TransactionRecord

MAX_RUNS = 1_000
"""How many are ended at once."""


def end_lost_runs(ctx: Context) -> int:
    """End the runs whose lease has ended; return how many. Raises ServiceUnavailableError."""
    return ctx.store.end_lost_runs(describe_loss, MAX_RUNS) if ctx.store.has_lost_runs() else 0


def describe_loss(record: TransactionRecord) -> str:
    """Return what became of a run, and how to go on."""
    again = "run its command again, or " if record.kind in ENDLESS_JOBS else ""
    return (
        "The process that ran this job has ended without a word, or is cut off, and no worker goes on with a run that "
        f"was not submitted: {again}`tiltyard job resume {record.id}`, which repeats nothing that is done."
    )
