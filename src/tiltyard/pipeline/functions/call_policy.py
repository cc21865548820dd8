"""How tasks call a user's function: rows that it fails on, retries, limits of a call, its packages and resources."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

OnError = Literal["fail", "null", "park"]
"""What becomes of a row that a function fails on: the job fails, it has no value, or it is also kept with its error."""

RETRIES = 3
"""How often a call is repeated after one of the errors that are named, unless it is said."""

MAX_PAUSE_SECONDS = 30.0
"""Seconds between two attempts, at most."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How a function is called. `packages` have exact versions and hashes, which the driver has resolved.

    With a limit of time or memory, or packages, the function runs in a process of its own, one for each worker.
    """

    on_error: OnError = "fail"
    retry_on: tuple[str, ...] = ()
    retries: int = RETRIES
    batch_seconds: float | None = None
    batch_bytes: int | None = None
    memory_bytes: int | None = None
    packages: tuple[str, ...] = ()
    resources: tuple[tuple[str, str], ...] = ()

    @property
    def is_isolated(self) -> bool:
        """Return whether the function runs in a process of its own."""
        return bool(self.batch_seconds or self.memory_bytes or self.packages)

    @property
    def isolates_rows(self) -> bool:
        """Return whether rows that the function fails on are told from the others, which have values."""
        return self.on_error != "fail"


PLAIN_POLICY = CallPolicy()
"""A function is called here, once, and may not fail."""


def pause_after(attempt: int) -> float:
    """Return how many seconds to wait after attempt 0, 1, 2 …: about 1, 2, 4 … 30, each time others."""
    return min(MAX_PAUSE_SECONDS, 2.0**attempt) * random.uniform(0.5, 1.0)  # noqa: S311  # so that tasks do not call in step
