"""Load a function by its name: `module:function`, `file.py:function` (whose text travels), or a ready-made one."""

from __future__ import annotations

import base64
import importlib
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.functions.ready_made import is_ready_made, parse_ready_made
from tiltyard.model.refusals import RefusedError
from tiltyard.runtime.cache import cached

if TYPE_CHECKING:
    import pyarrow as pa


class Loadable(Protocol):
    """A function that tasks call: a user's own, or that of a view."""

    def load(self) -> Callable[..., Any]:
        """Load the function. Raises RefusedError if it does not exist."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """The location of a function: in a module that executors have, or in the text of a file."""

    module: str
    name: str
    text: str | None = None

    def load(self) -> Callable[..., Any]:
        """Load the function, once per process. Raises RefusedError if it does not exist, and what its module raises."""
        return _load(self)


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function as a table or a view declares it: a pickle in base64."""

    code: str

    def load(self) -> Callable[..., Any]:
        """Unpickle the function, once a process. Raises RefusedError if it cannot be, or is no callable."""
        return _load(self)


PICKLE_PREFIX = "pickle:"
"""Before a function that is pickled, in base64: one that has no name which other processes could import."""


def parse_user_function(path: str) -> UserFunction | PickledFunction:
    """Parse `module:function`, `file.py:function`, `pickle:BASE64`, or a ready-made one such as `chunk_words(size=9)`.

    No code of the caller is run. Raises RefusedError.
    """
    if path.startswith(PICKLE_PREFIX):
        return PickledFunction(path.removeprefix(PICKLE_PREFIX))
    if is_ready_made(path):
        return PickledFunction(parse_ready_made(path).pickled())
    module, colon, name = path.rpartition(":")
    if not colon or not module or not name:
        raise RefusedError(f"'{path}' names no function: write module:function or file.py:function.")
    if not module.endswith(".py"):
        return UserFunction(module, name)
    try:
        return UserFunction(module, name, Path(module).read_text())
    except OSError as error:
        raise RefusedError(f"Cannot read {module}: {error.strerror}.") from error


def find_result_type(path: str | None) -> pa.DataType | None:
    """Return the type of a ready-made function's values; None for another function, which has none of its own.

    Raises RefusedError.
    """
    return parse_ready_made(path).result_type if path is not None and is_ready_made(path) else None


@cached("user functions", "Functions of users as they were loaded and set up in this process", max_entries=64)
def _load(source: UserFunction | PickledFunction) -> Callable[..., Any]:
    if isinstance(source, PickledFunction):
        return _unpickle(source.code)
    if source.text is None:
        loaded = getattr(importlib.import_module(source.module), source.name, None)
    else:
        namespace: dict[str, Any] = {"__name__": Path(source.module).stem, "__file__": source.module}
        exec(compile(source.text, source.module, "exec"), namespace)  # noqa: S102  # the caller's own file, in a task
        loaded = namespace.get(source.name)
    if not callable(loaded):
        raise RefusedError(f"{source.module} has no function '{source.name}'.")
    return _instance(loaded, source.name)


def _instance(loaded: Any, name: str) -> Callable[..., Any]:
    """Return a function, or the instance of a class, whose `setup` is called first. Raises RefusedError."""
    instance: Any = loaded() if inspect.isclass(loaded) else loaded
    if not callable(instance):
        raise RefusedError(f"'{name}' is a class whose instances cannot be called: give it a __call__.")
    if not inspect.isroutine(instance) and callable(setup := getattr(instance, "setup", None)):
        setup()
    function: Callable[..., Any] = instance
    return function


def _unpickle(code: str) -> Callable[..., Any]:
    try:
        unpickled = pickle.loads(base64.b64decode(code))  # noqa: S301  # in a Python worker of Spark, where code may run
    except Exception as error:
        raise RefusedError(f"The code cannot be unpickled here: {type(error).__name__}: {error}") from error
    if not callable(unpickled):
        raise RefusedError(f"The pickled code is {type(unpickled).__name__}, and not a function.")
    return _instance(unpickled, getattr(unpickled, "__name__", type(unpickled).__name__))
