"""Functions of a user, as jobs take them: by the text of their file, by a module, or pickled.

A job's driver does not call them: Spark's Python workers do.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lance_namespace.errors import InvalidInputError

from tiltyard.functions.ready_made import ReadyMade, list_functions
from tiltyard.model.text.typed_ids import format_id
from tiltyard.pipeline.functions.row_functions import RowFunction, parse_row_function
from tiltyard.pipeline.functions.user_functions import PICKLE_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller


@dataclass(frozen=True, slots=True)
class ListedFunction:
    """A function of columns: a `ready-made` one, or one that is `registered` in a namespace, by its id, each version.

    `digest` is that of what decides its values; `missing` are packages that a ready-made one lacks here.
    """

    name: str
    kind: Literal["ready-made", "registered"]
    version: str
    digest: str
    about: str
    missing: tuple[str, ...] = ()


def list_lake_functions(calls: Caller, path: Sequence[str]) -> list[ListedFunction]:
    """Return the ready-made functions, and those that are registered in a namespace. Raises NamespaceNotFoundError."""
    ready = [
        ListedFunction(
            each.name, "ready-made", str(each.version), each.digest, inspect.cleandoc(each.__doc__).partition("\n")[0],
            tuple(each.missing_packages),
        )
        for each in list_functions()
    ]  # fmt: skip
    registered = [
        ListedFunction(
            format_id((*path, entry["name"])), "registered", entry["definition"]["version"],
            entry["definition"]["image"]["manifest_digest"].removeprefix("sha256:"), "",
        )
        for entry in calls.entries("ListFunctions", "functions", id=list(path))
    ]  # fmt: skip
    return ready + registered


Function: TypeAlias = "str | Callable[..., Any]"
"""A function of batches, or for columns one of a row's values, whose hints name columns and types (`title: str`): the
callable itself; one of batches also by its name, `module:function` or `file.py:function`; or a ready-made one.
"""


def column_function(
    function: Callable[..., Any], inputs: list[str] | None, kind: pa.DataType | None
) -> tuple[Callable[..., Any], list[str] | None, pa.DataType | None]:
    """Return a function of batches, its columns and its type: those that hints name, where they are left out.

    A ready-made function names its type. Raises RefusedError.
    """
    if isinstance(function, ReadyMade):
        own_kind = function.result_type
        return function, inputs, own_kind if kind is None else kind
    parsed = parse_row_function(function, None if inputs is None else tuple(inputs))
    if parsed is None:
        return function, inputs, kind
    row_function, hinted = parsed
    return row_function, list(row_function.inputs), hinted if kind is None else kind


def function_name(function: Function, argument: str) -> str:
    """Return a function as jobs name one.

    One of a plain Python file travels with the text of that file, one of an installed package by its name, a ready-made
    one with its arguments as text, and any other one (a lambda, one of a notebook or of the main script) pickled.
    Raises InvalidInputError for what is none.
    """
    if isinstance(function, str | ReadyMade):
        return str(function)
    if not callable(function):
        raise InvalidInputError(
            f"{argument} is a {type(function).__name__}: give a function of a pyarrow.RecordBatch, or its name as "
            "module:function or file.py:function."
        )
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    is_importable = inspect.isfunction(function) and name.isidentifier() and getattr(module, name, None) is function
    if module is None or not is_importable or module.__name__ == "__main__":
        return PICKLE_PREFIX + pickled_function(function)
    if _is_plain_file(module):
        return f"{module.__file__}:{name}"
    return f"{module.__name__}:{name}"


def pickled_function(function: Callable[..., Any]) -> str:
    """Return a function pickled, in base64, with all that it uses of plain files. Raises SparkMissingError.

    A ready-made one is its name, version and arguments: raises RefusedError for one that lacks an argument.
    """
    if isinstance(function, ReadyMade):
        return function.pickled()
    from tiltyard.pipeline.java import pyspark_sql  # noqa: PLC0415  # PySpark has cloudpickle in it

    pyspark_sql()
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    own = function.function if isinstance(function, RowFunction) else function
    module = sys.modules.get(getattr(own, "__module__", None) or "")
    if module is not None and _is_plain_file(module):
        cloudpickle.register_pickle_by_value(module)
        try:
            return base64.b64encode(cloudpickle.dumps(function)).decode()
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    return base64.b64encode(cloudpickle.dumps(function)).decode()


def _is_plain_file(module: ModuleType) -> bool:
    """Return whether a module is a Python file of its own, which other processes need not have."""
    file = getattr(module, "__file__", None)
    return "." not in module.__name__ and bool(file) and Path(str(file)).name == f"{module.__name__}.py"
