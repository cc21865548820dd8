"""Requests to a database of lancedb's clients: find its namespace, and read and write ids relative to it.

Every client of a connection to `db://NAME` sends the header `x-lancedb-database: NAME`, and the ids of its requests and
responses are relative to that database. They are made absolute right after a request is bound, so that all that follows
(authorization, operations, the audit) knows real objects alone, and relative again before a response is rendered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tiltyard.access.databases import ROOT_DATABASE, DatabaseNames, resolve_database
from tiltyard.model.ids import DEFAULT_DELIMITER, Id
from tiltyard.runtime.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    from tiltyard.api.binding import Headers
    from tiltyard.context import Context, Services
    from tiltyard.model.principals import Principal
    from tiltyard.model.spec import Operation

DATABASE_HEADER = b"x-lancedb-database"
PREFIX_HEADER = b"x-lancedb-database-prefix"

CACHE_SECONDS = 1.0
"""How long a namespace that another server has changed may be unknown, where each look-up takes a thread."""
_MAX_CACHED = 4096

_OF_NAMESPACES = "/v1/namespace/"

_Key = tuple["Principal", bytes, bytes]


class Databases:
    """Finds the namespace of a request's database.

    Where the catalog is SQLite, each request looks it up in microseconds, on the event loop. Elsewhere a thread does,
    and the result is kept for CACHE_SECONDS.
    """

    def __init__(self, services: Services, pool: Executor) -> None:
        self._store = services.store
        self._rule = DatabaseNames(services.settings.databases.lower())
        self._pool = pool
        self._cached: Cache[_Key, Id] = Cache(
            "databases",
            "Namespaces by the names of lancedb's databases, where a look-up takes a thread",
            max_entries=_MAX_CACHED,
            seconds=CACHE_SECONDS,
            invalidated_by="a change of a namespace by this process",
        )

    async def find(self, ctx: Context, headers: Headers) -> Id:
        """Return the namespace that ids of a request are relative to. Raises as `resolve_database` does."""
        header = headers.get(DATABASE_HEADER)
        if not header or self._rule is DatabaseNames.IGNORED:
            return ROOT_DATABASE
        prefix = headers.get(PREFIX_HEADER, b"")
        if self._store.inline_reads or self._rule is DatabaseNames.STRICT:
            return resolve_database(ctx, _decode(header), _decode(prefix))
        key = (ctx.principal, header, prefix)
        if (known := self._cached.get(key)) is not None:
            return known
        arguments = ctx, _decode(header), _decode(prefix)
        database = await asyncio.get_running_loop().run_in_executor(self._pool, resolve_database, *arguments)
        self._cached.put(key, database)
        return database

    def forget(self) -> None:
        """Look all databases up again: this process has changed namespaces."""
        self._cached.clear()


def _decode(header: bytes) -> str:
    return header.decode(errors="replace")  # a name with U+FFFD is nobody's


def is_relative(operation: Operation) -> bool:
    """Return whether the id in an operation's path is that of an object: others are no names (transactions, jobs)."""
    return operation.path.startswith("/v1/") and "/transaction/" not in operation.path


def qualify(operation: Operation, request: Any, database: Id) -> None:
    """Make the ids of a bound request absolute, in place: those of its path, and those in its body.

    The empty id is the database itself where namespaces are meant. Nothing else has it: it stays, to be refused.
    """
    if not is_relative(operation):
        return
    if "{id}" in operation.path and (request.id or operation.path.startswith(_OF_NAMESPACES)):
        request.id = [*database, *(request.id or ())]
    if getattr(request, "new_namespace_id", None) is not None:
        request.new_namespace_id = [*database, *request.new_namespace_id]
    for entry in _entries(request):
        entry.id = [*database, *entry.id] if entry.id else entry.id
    if operation.name == "ListAllJobs" and request.table is not None:
        request.table = str(Id((*database, request.table)))
    for reference in _references(request):
        path = reference.get("namespace_path") or []
        if isinstance(path, list):  # else the operation refuses it
            reference["namespace_path"] = [*database, *path]


def _entries(request: Any) -> Iterable[Any]:
    """Iterate over the parts of a batch that have ids of their own."""
    yield from getattr(request, "entries", None) or ()
    for entry in getattr(request, "operations", None) or ():
        parts = (getattr(entry, name) for name in entry.__struct_fields__)
        yield from (part for part in parts if hasattr(part, "id"))


def _references(request: Any) -> Iterable[dict[str, Any]]:
    """Iterate over the names of secrets and functions within a body."""
    for binding in getattr(request, "secret_bindings", None) or ():
        if isinstance(reference := binding.get("secret_ref"), dict):
            yield reference
    function = getattr(request, "function", None)
    application = function.get("application") if isinstance(function, dict) else None
    reference = application.get("function") if isinstance(application, dict) else None
    if isinstance(reference, dict):
        yield reference


def relative_response(response: Any, database: Id) -> Any:
    """Make the ids of a response relative to its request's database, in place; return it."""
    for name in ("namespace", "id", "namespace_path"):
        path = getattr(response, name, None)
        if isinstance(path, list) and tuple(path[: len(database)]) == database:
            setattr(response, name, path[len(database) :])
    _make_relative(getattr(response, "secret_bindings", None), database)
    result = getattr(response, "result", None)  # of a job: a function that it has registered
    if isinstance(result, dict) and "namespace_path" in result:
        response.result = {**result, "namespace_path": _below(result["namespace_path"], database)}
        _make_relative(response.result.get("secret_bindings"), database)
    for entry in getattr(response, "functions", None) or ():
        relative_response(getattr(entry, "definition", entry), database)
    inside = f"{database}{DEFAULT_DELIMITER}"
    for job in getattr(response, "jobs", None) or ():
        if isinstance(table := getattr(job, "table", None), str):
            job.table = table.removeprefix(inside)
    return response


def _make_relative(bindings: Any, database: Id) -> None:
    """Make the names of secrets in a function's bindings relative, in place."""
    for binding in bindings or ():
        reference = binding.get("secret_ref", {})
        reference["namespace_path"] = _below(reference.get("namespace_path", ()), database)


def _below(path: Any, database: Id) -> Any:
    """Return a path below a database relative to it, and any other as it is."""
    return path[len(database) :] if tuple(path[: len(database)]) == database else path
