"""An HTTP API in this process that takes only requests which its published description allows, and notes all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tests.services.stub_catalog import Answer, StubRequest


class ApiError(Exception):
    """An error to answer with: a status and its content."""

    def __init__(self, status: int, content: object) -> None:
        super().__init__(status)
        self.answer: Answer = (status, content)


@dataclass(frozen=True)
class Call:
    """A request that the description allows: names from its path, its query, its body."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Route:
    """An operation: its path with {names}, which parameters its query may have, the type of its body if it has one."""

    method: str
    path: str
    handle: Callable[[Call], Answer]
    body: type[msgspec.Struct] | None = None
    query: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()

    def names(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return what a path has for the names; None for a path of another operation."""
        template = self.path.split("/")
        if len(template) != len(segments):
            return None
        pairs = list(zip(template, segments, strict=True))
        if any(not name.startswith("{") and name != segment for name, segment in pairs):
            return None
        return {name[1:-1]: unquote(segment) for name, segment in pairs if name.startswith("{")}


@dataclass
class CheckedApi:
    """Answers by its routes, one request at a time; `violations` has what the description does not allow."""

    routes: Sequence[Route] = ()
    violations: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: StubRequest) -> Answer:
        """Answer a request."""
        with self.lock:
            try:
                return self._answer(request)
            except ApiError as error:
                return error.answer

    def _answer(self, request: StubRequest) -> Answer:
        parts = urlsplit(request.path)
        for route in self.routes:
            names = route.names(parts.path.split("/"))
            if names is not None and route.method == request.method:
                return route.handle(self._call(route, names, parts.query, request))
        raise self._violation(request, "no such operation")

    def _call(self, route: Route, names: Mapping[str, str], query_text: str, request: StubRequest) -> Call:
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        if unknown := query.keys() - route.query - route.required:
            raise self._violation(request, f"the query has {unknown}")
        if missing := route.required - query.keys():
            raise self._violation(request, f"the query lacks {missing}")
        if route.body is None:
            if request.body:
                raise self._violation(request, "there is a body")
            return Call(names, query, None, request.headers)
        if request.headers.get("content-type") != "application/json":
            raise self._violation(request, "the body is not said to be JSON")
        try:
            body = msgspec.json.decode(request.body, type=route.body)
        except msgspec.MsgspecError as error:
            raise self._violation(request, str(error)) from error
        return Call(names, query, body, request.headers)

    def _violation(self, request: StubRequest, reason: str) -> ApiError:
        self.violations.append(f"{request.method} {request.path}: {reason}")
        return ApiError(400, {"error": {"type": "BadRequestException", "message": reason, "code": 400}})


def page_of(names: Sequence[str], size: str | None, token: str | None) -> tuple[list[str], str | None]:
    """Return a page of sorted names and the token of the next one; all of them without a size."""
    rest = sorted(name for name in names if not token or name > token)
    if size is None or len(rest) <= int(size):
        return rest, None
    return rest[: int(size)], rest[int(size) - 1]
