"""Environment variables that a worker hands its driver in private: in the memory of its Python, never in a JVM's.

`os.environ` is changed long after the process has started, so that `/proc/PID/environ` does not show them, and no child
inherits them: they are withheld while one starts. Of them, Python in tasks of a local master gets the clouds' variables
with its payload, as it opens storage; executors of a cluster have the variables that their operator set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_CLOUD_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE|IDENTITY|MSI)_\w+")

_private: dict[str, str] = {}


def adopt_variables(variables: Mapping[str, str]) -> None:
    """Set the variables that this process was handed in private."""
    _private.update(variables)
    os.environ.update(variables)


@contextmanager
def withhold_variables() -> Iterator[None]:
    """Keep the private variables from child processes that start in the block."""
    withheld = {name: os.environ.pop(name) for name in _private if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(withheld)


def variables_for_tasks(master: str | None) -> Mapping[str, str]:
    """Return the variables that Python in tasks of this master sets before it opens storage; None is Spark Connect."""
    if master is None or not master.startswith("local"):
        return {}
    return {name: value for name, value in _private.items() if _CLOUD_VARIABLE.fullmatch(name)}


def set_task_variables(variables: Mapping[str, str]) -> None:
    """Set the variables that came with a task, in the memory of its Python worker."""
    os.environ.update(variables)
