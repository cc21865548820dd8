"""A caller's own function, found by name: `module:function`, or `file.py:function`, whose text travels with the job."""

from __future__ import annotations

import base64
import importlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from tiltyard.pipeline.task_errors import RefusedError


class Loadable(Protocol):
    """What has a function that tasks call: a caller's own code, or that of a view."""

    def load(self) -> Callable[..., Any]:
        """The function. Raises RefusedError if there is none."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """Where a function is: in a module that executors have, or in the text of a file."""

    module: str
    name: str
    text: str | None = None

    def load(self) -> Callable[..., Any]:
        """The function, once a process. Raises RefusedError if there is none, and what its module raises."""
        return _load(self)


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function as a table or a view declares it: a pickle in base64."""

    code: str

    def load(self) -> Callable[..., Any]:
        """Unpickle the function, once a process. Raises RefusedError if it cannot be, or is no callable."""
        return _unpickle(self.code)


def parse_user_function(where: str) -> UserFunction:
    """A function's code by `module:function` or `file.py:function`; nothing is run. Raises RefusedError."""
    module, colon, name = where.rpartition(":")
    if not colon or not module or not name:
        raise RefusedError(f"'{where}' names no function: write module:function or file.py:function.")
    if not module.endswith(".py"):
        return UserFunction(module, name)
    try:
        return UserFunction(module, name, Path(module).read_text())
    except OSError as error:
        raise RefusedError(f"Cannot read {module}: {error.strerror}.") from error


@lru_cache(maxsize=64)
def _load(code: UserFunction) -> Callable[..., Any]:
    if code.text is None:
        found = getattr(importlib.import_module(code.module), code.name, None)
    else:
        names: dict[str, Any] = {"__name__": Path(code.module).stem, "__file__": code.module}
        exec(compile(code.text, code.module, "exec"), names)  # noqa: S102  # the caller's own file, in a task
        found = names.get(code.name)
    if not callable(found):
        raise RefusedError(f"{code.module} has no function '{code.name}'.")
    function: Callable[..., Any] = found
    return function


@lru_cache(maxsize=16)
def _unpickle(code: str) -> Callable[..., Any]:
    try:
        unpickled = pickle.loads(base64.b64decode(code))  # noqa: S301  # in a Python worker of Spark, where code may run
    except Exception as error:
        raise RefusedError(f"The code cannot be unpickled here: {type(error).__name__}: {error}") from error
    if not callable(unpickled):
        raise RefusedError(f"The pickled code is {type(unpickled).__name__}, and not a function.")
    function: Callable[..., Any] = unpickled
    return function
