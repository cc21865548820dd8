"""Match a request's method and raw path to an operation.

Matching is on the raw path: `%2F` inside a name is not a separator. The routes come from the specification alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode

from tiltyard.api.binding import Binder, Segments
from tiltyard.api.errors import HttpError
from tiltyard.model.spec import Operation, Shape

if TYPE_CHECKING:
    from tiltyard.api.execution.threaded import Execution
    from tiltyard.model.operations import Handler

_UNWRAPPED = (Shape.STRING, Shape.MAP, Shape.INTEGER)


_TABLE_PATHS = ("/table/{id}", "/materialized_view/{id}")


class Route:
    """An operation, the handler that serves it (None: unsupported), and how it runs.

    `idempotent` is how a request with an idempotency key runs. `names_object` says whether its path has the id of a
    table or a namespace, `names_namespace` whether of a namespace.
    """

    __slots__ = (
        "_binder",
        "execution",
        "handler",
        "has_bare_response",
        "idempotent",
        "names_namespace",
        "names_object",
        "operation",
        "takes_upload",
    )

    def __init__(
        self,
        operation: Operation,
        handler: Handler | None,
        execution: Execution | None = None,
        idempotent: Execution | None = None,
    ) -> None:
        self.operation = operation
        self.handler = handler
        self.execution = execution
        self.idempotent = idempotent
        self.takes_upload = operation.request_shape is Shape.ARROW
        self.has_bare_response = operation.response_shape in _UNWRAPPED
        self.names_namespace = "/namespace/{id}" in operation.path
        self.names_object = self.names_namespace or any(kind in operation.path for kind in _TABLE_PATHS)
        self._binder: Binder | None = None

    @property
    def binder(self) -> Binder:
        """The binder of the operation's requests; made at the first one, since ninety take a server's start."""
        binder = self._binder
        if binder is None:
            binder = self._binder = Binder(self.operation)
        return binder


@dataclass(slots=True)
class _Node:
    children: dict[bytes, _Node] = field(default_factory=dict)
    wildcard: tuple[str, _Node] | None = None
    routes: dict[str, Route] = field(default_factory=dict)


_NamedParts = tuple[tuple[str, bytes], ...]


class Router:
    """A tree of path segments, built once at start."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._by_name: dict[str, Route] = {}
        for route in routes:
            operation = route.operation
            self._by_name[operation.name] = route
            for path in (operation.path, *operation.earlier_paths):
                node = self._node(path)
                for method in (operation.method, *operation.also):
                    node.routes[method] = route

    def _node(self, path: str) -> _Node:
        node = self._root
        for part in path.strip("/").split("/"):
            if part.startswith("{"):
                if node.wildcard is None:
                    node.wildcard = (part[1:-1], _Node())
                node = node.wildcard[1]
            else:
                node = node.children.setdefault(part.encode(), _Node())
        return node

    def named(self, name: str) -> Route:
        """Return the route of an operation."""
        return self._by_name[name]

    def match(self, method: str, raw_path: bytes, has_dot_delimiter: bool = False) -> tuple[Route, Segments]:
        """Return the route of a request, and its raw path segments by name.

        Empty segments do not count: a base URL that ends in a slash gives `//v1/…`. Literal segments win over
        names; a name that equals a literal (a table called `version`) is still reached where only it leads on.
        With the delimiter "." the root is `/v1/namespace/./list`, and HTTP clients drop the `/./` before they send it:
        `has_dot_delimiter` puts it back.
        Raises HttpError 404 for an unknown path, 406 for one under /v1, 405 for a wrong method.
        """
        parts = list(filter(None, raw_path.split(b"/")))
        end = None
        if has_dot_delimiter and parts[:2] == [b"v1", b"namespace"]:
            end = _walk(self._root, [*parts[:2], b".", *parts[2:]], 0, ())
        end = end or _walk(self._root, parts, 0, ())
        if end is None:
            if parts[:1] == [b"v1"]:
                raise HttpError(406, ErrorCode.UNSUPPORTED, "No operation has this path: see /openapi.json.")
            raise HttpError(
                404, ErrorCode.UNSUPPORTED, "Nothing has this path: the operations are under /v1, see /openapi.json."
            )
        node, segments = end
        route = node.routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.routes))
            raise HttpError(
                405,
                ErrorCode.UNSUPPORTED,
                f"{method} is not allowed on this path: use {allowed}.",
                ((b"allow", allowed.encode()),),
            )
        return route, dict(segments)


def _walk(node: _Node, parts: Sequence[bytes], at: int, segments: _NamedParts) -> tuple[_Node, _NamedParts] | None:
    """Return the node of the parts from `at` on, and the segments that have names; None where there is none.

    Tries a name where a literal leads nowhere.
    """
    if at == len(parts):
        return (node, segments) if node.routes else None
    part = parts[at]
    child = node.children.get(part)
    if child is not None and (end := _walk(child, parts, at + 1, segments)) is not None:
        return end
    if node.wildcard is None:
        return None
    name, child = node.wildcard
    return _walk(child, parts, at + 1, (*segments, (name, part)))
