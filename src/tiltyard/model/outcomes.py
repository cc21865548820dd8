"""Several things done together, of which each succeeds or fails by itself: an error stands in the place of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
U = TypeVar("U")


def go_on(found: Sequence[T | Exception], work: Callable[[list[T]], Sequence[U | Exception]]) -> list[U | Exception]:
    """What `work` makes of all that is no error, in its place; it is not called for nothing."""
    good = [one for one in found if not isinstance(one, Exception)]
    done = iter(work(good) if good else ())
    return [one if isinstance(one, Exception) else next(done) for one in found]
