"""From a raw path and a method to an operation.

Matching is on the raw path: `%2F` inside a name is not a separator. The routes come from the specification alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_namespace.errors import ErrorCode

from tiltyard.api.errors import HttpError
from tiltyard.model.operations import Served, bound_operations
from tiltyard.model.spec import Operation

Segments = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Route:
    """An operation and what serves it (None: unsupported)."""

    operation: Operation
    served: Served | None


@dataclass(slots=True)
class _Node:
    children: dict[bytes, _Node] = field(default_factory=dict)
    wildcard: tuple[str, _Node] | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """A tree of path segments, built once at start."""

    def __init__(self, bound: Mapping[str, tuple[Operation, Served | None]] | None = None) -> None:
        self._root = _Node()
        self._named: dict[str, Route] = {}
        for facts, served in (bound_operations() if bound is None else bound).values():
            node = self._root
            for part in facts.path.strip("/").split("/"):
                if part.startswith("{"):
                    if node.wildcard is None:
                        node.wildcard = (part[1:-1], _Node())
                    node = node.wildcard[1]
                else:
                    node = node.children.setdefault(part.encode(), _Node())
            route = self._named[facts.name] = Route(facts, served)
            for method in (facts.method, *facts.also):
                node.routes[method] = route

    def named(self, name: str) -> Route:
        """The route of an operation."""
        return self._named[name]

    def find(self, method: str, raw_path: bytes, dot_delimiter: bool = False) -> tuple[Route, Segments]:
        """The route of a request, and its raw path segments by name.

        Empty segments do not count: a base URL that ends in a slash gives `//v1/…`. Literal segments win over
        names; a name that equals a literal (a table called `version`) is still reached where only it leads on.
        With the delimiter "." the root is `/v1/namespace/./list`, and HTTP clients drop the `/./` before they send it:
        `dot_delimiter` puts it back.
        Raises HttpError 404 for an unknown path, 406 for one under /v1, 405 for a wrong method.
        """
        parts = [part for part in raw_path.split(b"/") if part]
        end = None
        if dot_delimiter and parts[:2] == [b"v1", b"namespace"]:
            end = self._walk([*parts[:2], b".", *parts[2:]])
        end = end or self._walk(parts)
        if end is None:
            if parts[:1] == [b"v1"]:
                raise HttpError(406, ErrorCode.UNSUPPORTED, "No operation has this path: see /openapi.json.")
            raise HttpError(
                404, ErrorCode.UNSUPPORTED, "Nothing is here: the operations are under /v1, see /openapi.json."
            )
        node, found = end
        route = node.routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.routes))
            raise HttpError(
                405,
                ErrorCode.UNSUPPORTED,
                f"{method} is not how this path is called: use {allowed}.",
                ((b"allow", allowed.encode()),),
            )
        return route, found

    def _walk(self, parts: list[bytes]) -> tuple[_Node, Segments] | None:
        node, at, found = self._root, 0, Segments()
        names_left: list[tuple[_Node, int, Segments]] = []
        while at < len(parts) or not node.routes:
            part = parts[at] if at < len(parts) else None
            child = None if part is None else node.children.get(part)
            if child is not None:
                if node.wildcard is not None:
                    names_left.append((node, at, dict(found)))
                node = child
            else:
                if part is None or node.wildcard is None:
                    if not names_left:
                        return None
                    node, at, found = names_left.pop()
                assert node.wildcard is not None
                name, node = node.wildcard
                found[name] = parts[at]
            at += 1
        return node, found
