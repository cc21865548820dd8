"""Connect lance's own tests of namespaces to a running server, where they name a folder or an adapter of their own."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import lance.namespace
import lance_namespace
from peer_server import namespace_properties

connect = lance_namespace.connect
_roots: dict[str, str] = {}


class RunningServer:
    """Takes the place of `lance.namespace.RestAdapter`: the server runs already."""

    def __init__(self, implementation: str, properties: dict[str, str], port: int = 0, **arguments: Any) -> None:
        self.port = port
        _roots[f"http://127.0.0.1:{port}"] = properties["root"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def connect_here(implementation: str, properties: dict[str, str]) -> Any:
    """Connect to the namespace of a folder on the server, as `lance_namespace.connect` to the folder or its adapter."""
    root = properties["root"] if implementation == "dir" else _roots[properties["uri"]]
    return connect("rest", {**properties, **namespace_properties(root)})


lance.namespace.RestAdapter = RunningServer
lance_namespace.connect = connect_here
