"""Results of a batch whose items succeed or fail one by one: an item's error stands in the place of its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
U = TypeVar("U")


def map_successes(
    outcomes: Sequence[T | Exception], work: Callable[[list[T]], Sequence[U | Exception]]
) -> list[U | Exception]:
    """Replace all results by those of `work`, and keep the errors; `work` is not called without results."""
    results = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    next_outcomes = iter(work(results) if results else ())
    return [outcome if isinstance(outcome, Exception) else next(next_outcomes) for outcome in outcomes]
