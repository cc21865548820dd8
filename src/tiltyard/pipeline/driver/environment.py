"""Variables that a driver was handed by its worker: they are in the memory of its Python, never in that of a JVM.

`os.environ` is written when the process has long begun, so `/proc/PID/environ` does not show them, and no child
inherits them: they are taken away while one starts. Python in tasks of a local master gets those of clouds with its
payload, as storage is opened there; executors of a cluster have what their operator gave them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_CLOUD = re.compile(r"(AWS|AZURE|GOOGLE|IDENTITY|MSI)_\w+")

_adopted: dict[str, str] = {}


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables that were handed to this process."""
    _adopted.update(variables)
    os.environ.update(variables)


@contextmanager
def withheld() -> Iterator[None]:
    """Keep what was handed to this process from the children that start in the block."""
    taken = {name: os.environ.pop(name) for name in _adopted if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


def for_tasks(master: str | None) -> Mapping[str, str]:
    """Return the variables that Python in tasks of this master sets before it opens storage; None is Spark Connect."""
    if master is None or not master.startswith("local"):
        return {}
    return {name: value for name, value in _adopted.items() if _CLOUD.fullmatch(name)}


def set_in_task(variables: Mapping[str, str]) -> None:
    """Set the variables that came with a task, in the memory of its Python worker."""
    os.environ.update(variables)
