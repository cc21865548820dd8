"""Deadlines of requests: the server's query timeout, and the time that a lancedb client gives its request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, ServiceUnavailableError
from msgspec import structs

from tiltyard.api.errors import HttpError

if TYPE_CHECKING:
    from tiltyard.context import Context


class DeadlineExceededError(HttpError):
    """A request's time is over. 504 is what clients do not retry by themselves, as they do 503."""

    def __init__(self, message: str) -> None:
        super().__init__(504, ErrorCode.SERVICE_UNAVAILABLE, message)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When work has to be done, by the clock `time.monotonic`; `seconds` is how long it was given."""

    seconds: float
    at: float
    work: str = "query"

    @classmethod
    def for_query(cls, seconds: float) -> Deadline | None:
        """Start the deadline of a query; None where `seconds` is 0."""
        return cls.start(seconds, "query") if seconds else None

    @classmethod
    def start(cls, seconds: float, work: str) -> Deadline:
        """Start the deadline of work that begins now; with 0 seconds it is over at once."""
        return cls(seconds, time.monotonic() + seconds, work)

    @property
    def remaining(self) -> float:
        """Seconds until then; negative once it is over."""
        return self.at - time.monotonic()

    def check(self) -> None:
        """Raise ServiceUnavailableError once it is over, in the thread that works: its client was answered already."""
        if self.remaining <= 0:
            raise ServiceUnavailableError(self._message)

    def check_start(self) -> None:
        """Raise DeadlineExceededError if there is no time left to start in."""
        if self.remaining <= 0:
            raise self.exceeded()

    def exceeded(self) -> DeadlineExceededError:
        """Return the error for the client."""
        return DeadlineExceededError(self._message)

    def apply_to(self, ctx: Context) -> Context:
        """Return the context whose operation checks this deadline."""
        return structs.replace(ctx, check_deadline=self.check)

    @property
    def _message(self) -> str:
        if self.work == "query":  # in the words of lancedb's own tables, as is "merge insert timed out"
            event, advice = "Query timeout", "narrow it, or index what it filters by"
        else:
            event, advice = f"The {self.work} timed out", "give it more time, or send less"
        return f"{event}: it took more than {self.seconds:g} s and was stopped; {advice}."


def earliest(first: Deadline | None, second: Deadline | None) -> Deadline | None:
    """Return the deadline that comes first; None where neither is set."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda deadline: deadline.at)
