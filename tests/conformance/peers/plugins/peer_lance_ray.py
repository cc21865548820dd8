"""Connect lance-ray's own tests to a running server: a dataset in a folder becomes a table of a namespace.

Its functions, and pylance's `dataset` and `write_dataset` with which the tests prepare and check, get the namespace of
the folder and the table's name in place of the path. Ray's workers get what lance-ray itself sends them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import lance_ray
from peer_server import is_folder, namespace_properties

ROOT = os.environ["PEER_ROOT"]
FUNCTIONS = (
    "add_columns",
    "add_columns_from",
    "compact_database",
    "compact_files",
    "create_index",
    "create_scalar_index",
    "merge_columns_from",
    "optimize_indices",
    "read_lance",
    "vector_search",
    "write_lance",
)

connect, dataset, write_dataset = lance_namespace.connect, lance.dataset, lance.write_dataset


def is_of_a_test(uri: object) -> bool:
    """Tell whether this is a dataset of a test: not one of the server, whose location lance-ray has from it."""
    return is_folder(uri) and str(uri).endswith(".lance") and not str(uri).removeprefix("file://").startswith(ROOT)


def table_of(uri: str | Path) -> dict[str, Any]:
    """Return the arguments of lance-ray for the table that stands for a dataset's folder."""
    path = Path(str(uri).removeprefix("file://"))
    return {
        "table_id": [path.name.removesuffix(".lance")],
        "namespace_impl": "rest",
        "namespace_properties": namespace_properties(path.parent),
    }


def redirect(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of lance-ray that takes a folder for a table of the server."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def redirected(*positional: Any, **named: Any) -> Any:
        try:
            arguments = signature.bind(*positional, **named).arguments
        except TypeError:
            return function(*positional, **named)  # which says what is wrong
        extra = {name: named[name] for name in named if name not in signature.parameters}
        arguments = {name: value for name, value in arguments.items() if name in signature.parameters} | extra
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments.pop(name, None)
        if is_of_a_test(arguments.get("uri")) and arguments.get("namespace_impl") is None:
            arguments |= table_of(arguments["uri"]) | {"uri": None}
        elif arguments.get("namespace_impl") == "dir":
            root = arguments["namespace_properties"]["root"]
            arguments |= {"namespace_impl": "rest", "namespace_properties": namespace_properties(root)}
        return function(**arguments)

    return redirected


def client_of(uri: str | Path) -> dict[str, Any]:
    """Return the arguments of pylance for the table that stands for a dataset's folder."""
    table = table_of(uri)
    return {"namespace_client": connect("rest", table["namespace_properties"]), "table_id": table["table_id"]}


def open_here(uri: Any = None, *positional: Any, **arguments: Any) -> Any:
    """Open a dataset as `lance.dataset` does, by its table where it is one of a test."""
    if not is_of_a_test(uri):
        return dataset(uri, *positional, **arguments)
    return dataset(None, *positional, **arguments, **client_of(uri))


def write_here(data: Any, uri: Any = None, *positional: Any, **arguments: Any) -> Any:
    """Write a dataset as `lance.write_dataset` does, to its table where it is one of a test."""
    if not is_of_a_test(uri):
        return write_dataset(data, uri, *positional, **arguments)
    return write_dataset(data, None, *positional, **arguments, **client_of(uri))


def connect_here(implementation: str, properties: dict[str, str]) -> Any:
    """Connect to the namespace of a folder on the server, as `lance_namespace.connect` to the folder."""
    if implementation == "dir":
        return connect("rest", namespace_properties(properties["root"]))
    return connect(implementation, properties)


for name in FUNCTIONS:
    setattr(lance_ray, name, redirect(getattr(lance_ray, name)))
lance.dataset, lance.write_dataset, lance_namespace.connect = open_here, write_here, connect_here
