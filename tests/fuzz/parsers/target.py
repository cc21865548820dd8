"""A target: a parser of bytes that callers send, and what holds for every input."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

MAX_CPU_SECONDS = 5.0
"""Processor time of one input, of at most `MAX_INPUT_BYTES`: a thousand times what the slowest takes."""
MAX_INPUT_BYTES = 2048

PRODUCT = "tiltyard."
TARGETS: dict[str, Target] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test.

    `declared` are the errors that it says it raises, `words` are those of its language, and `also` are modules whose
    coverage guides the search besides those of what the property names.
    """

    name: str
    property: Callable[[bytes], None]
    declared: tuple[type[Exception], ...]
    words: tuple[str, ...]
    also: tuple[str, ...]

    def modules(self) -> list[ModuleType]:
        """Return the modules of this product that the property exercises."""
        code, place = self.property.__code__, self.property.__globals__
        found = {getattr(place.get(name), "__module__", None) for name in code.co_names}
        found |= {place[name].__name__ for name in code.co_names if isinstance(place.get(name), ModuleType)}
        names = sorted(name for name in found if name and name.startswith(PRODUCT))
        return [importlib.import_module(name) for name in (*names, *self.also)]

    def check(self, data: bytes) -> None:
        """Parse one input. Raises AssertionError, or any error that the parser does not declare."""
        begun = time.process_time()
        with contextlib.suppress(*self.declared):
            self.property(data)
        seconds = time.process_time() - begun
        assert seconds < MAX_CPU_SECONDS, f"{len(data)} bytes took {seconds:.1f} s of processor time"


def target(
    *declared: type[Exception], words: str = "", also: str = ""
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Register a function as a target under its own name; `words` and `also` are separated by spaces."""

    def register(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = function.__name__
        assert name not in TARGETS, name
        TARGETS[name] = Target(
            name, function, declared, tuple(words.split()), tuple(f"{PRODUCT}{each}" for each in also.split())
        )
        return function

    return register


def text_of(data: bytes) -> str:
    """Return bytes as a text: what is not UTF-8 becomes the sign for that, as no client can send it in JSON."""
    return data.decode(errors="replace")


def split_input(data: bytes, parts: int) -> list[bytes]:
    """Split an input at its first NUL bytes into so many parts; the last ones may be empty."""
    found = data.split(b"\0", parts - 1)
    return found + [b""] * (parts - len(found))
