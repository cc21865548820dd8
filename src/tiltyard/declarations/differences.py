"""Differences between what a catalog has and what a file declares, by paths: `columns.price.type`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ANY_KEY = "*"


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of an object that differs; a value of None is one that is not there.

    `needs_word` says that something is taken away, which is done only where the caller says so; `problem` why no
    operation makes the change.
    """

    path: tuple[str, ...]
    before: Any
    after: Any
    needs_word: bool = False
    problem: str = ""

    @property
    def removes(self) -> bool:
        """Whether the catalog has something that the file has not."""
        return self.after is None


def find_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], parts: frozenset[tuple[str, ...]], path: tuple[str, ...] = ()
) -> Iterator[Difference]:
    """Yield what differs between two mappings, in the order of their keys.

    Mappings at the paths of `parts` are compared key by key ("*" stands for any key), all other values as a whole.
    """
    for key in {**before, **after}:
        old, new, here = before.get(key), after.get(key), (*path, key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and _is_in(here, parts):
            yield from find_differences(old, new, parts, here)
            continue
        yield Difference(here, old, new, needs_word=new is None)


def _is_in(path: tuple[str, ...], parts: frozenset[tuple[str, ...]]) -> bool:
    return any(
        len(pattern) == len(path) and all(one in (ANY_KEY, other) for one, other in zip(pattern, path, strict=True))
        for pattern in parts
    )
