"""The catalog in process: all operations as a `lance_namespace.LanceNamespace`, without a server.

It runs the same functions as a server, on the same catalog and storage, also next to running servers. It can be the
`namespace_client` of pylance, lancedb or a pipeline:

    namespace = tiltyard.Namespace(root="./data")
    lance.write_dataset(rows, namespace_client=namespace, table_id=["films"])

Requests may be upstream's models or mappings; responses are upstream's models.
"""

from __future__ import annotations

import atexit
import os
import re
import weakref
from typing import TYPE_CHECKING, Any, Self

import lance_namespace as upstream
import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableBranchNotFoundError,
)

from tiltyard.api.bodies.arrow_responses import encode
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.bootstrap import open_services, run_sql
from tiltyard.calls.caller import find_operation, make_request
from tiltyard.calls.in_process_caller import InProcessCaller, internal_errors
from tiltyard.config import load_settings
from tiltyard.identity import in_process_principal
from tiltyard.model.jobs import DRIVER_VARIABLE
from tiltyard.model.operations import ArrowAnswer, BytesAnswer
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.spec import ARROW_FILE, Operation, Shape, operations
from tiltyard.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.context import CommitLog, QuotaChecks

STOP_SECONDS = 5.0


class Namespace(upstream.LanceNamespace):
    """A catalog and its tables. `root`, `db` and further properties are the server's settings (docs/settings.md).

    Queued work (index builds, deletions) runs in `jobs` threads here; with `jobs=0` it is left to servers and workers.
    With a `principal`, or the name of one, it has the privileges of that one; without, all: whoever can open the
    database has them anyway. Raises ConfigError, StorageError, StoreVersionError, ServiceUnavailableError,
    UnauthenticatedError for a principal that is disabled.
    """

    def __init__(
        self,
        root: str | None = None,
        db: str | None = None,
        *,
        principal: Principal | str = EVERYBODY,
        **properties: Any,
    ) -> None:
        self._properties = {"root": root, "db": db, **properties}
        self._services = open_services(load_settings(self._properties))
        try:
            self._principal = (
                in_process_principal(self._services.store, principal) if isinstance(principal, str) else principal
            )
        except LanceNamespaceError:
            self._services.close()
            raise
        # Where nobody calls close(): what these have yet to write is written by their timers, or when Python ends.
        _open_logs.update((self._services.commit_log, self._services.quotas))
        if os.environ.get(DRIVER_VARIABLE) == "worker":
            self._services.quotas.start()  # what jobs write is used by who has asked for them
        self._worker = Worker(self._services, self._services.settings.jobs)
        if self._services.settings.jobs:
            self._worker.start()

    def namespace_id(self) -> str:
        """Return an identifier of this catalog: its root, and its database without credentials."""
        settings = self._services.settings
        return f"tiltyard {settings.root} {re.sub(r'//[^@/]*@', '//', settings.database_url)}"

    def close(self) -> None:
        """Stop the background threads, and close the database."""
        if self._services.settings.jobs:
            self._worker.stop(STOP_SECONDS)
        self._services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Namespace], tuple[dict[str, Any]]]:
        """Pickle the properties alone: another process opens the catalog anew."""
        return _reopen, ({**self._properties, "principal": self._principal},)

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """Run ListTableVersions, as the specification has it.

        A branch that is not there has no versions, for a request for the latest one, which Lance sends before it
        creates a branch: lancedb's bridge to Lance passes on no errors but failures of the storage.
        """
        try:
            response: upstream.ListTableVersionsResponse = self.call("ListTableVersions", request)
        except TableBranchNotFoundError:
            fields = _to_model(operations()["ListTableVersions"], request)
            if not (fields.descending and fields.limit == 1):
                raise
            return upstream.ListTableVersionsResponse(versions=[])
        return response

    def call(self, name: str, request: Any, data: bytes | None = None) -> Any:
        """Run the operation of this name (`CreateTable`); `data` is an Arrow IPC stream, where it takes one.

        Raises lance_namespace.errors, UnsupportedOperationError for an operation that is not served.
        """
        operation = find_operation(name)
        model, body = _to_model(operation, request), None
        if operation.request_shape is Shape.ARROW:
            try:
                body = MemoryBody(bytes(memoryview(data or b"")))
            except TypeError:
                raise InvalidInputError(f"{name} takes an Arrow IPC stream as bytes.") from None
        with internal_errors(name):
            return _to_upstream(operation, self.caller().run(operation, model, body))

    def caller(self, retry_seconds: float = 0) -> InProcessCaller:
        """Return what calls the operations as this namespace does, with plain mappings, and sends them again."""
        return InProcessCaller(self._services, self._principal, retry_seconds=retry_seconds, run_sql=run_sql)


class ArrowFile(bytes):
    """The response to a query, an Arrow file, as lancedb reads it; `data` is the same, as upstream's model has it."""

    @property
    def data(self) -> bytes:
        return self


_open_logs: weakref.WeakSet[CommitLog | QuotaChecks] = weakref.WeakSet()
"""Logs of this process, and counts of what is used. None is closed when its namespace is collected: that happens in any
thread at any point, which may be within the log itself, holding the locks that closing takes.
"""


@atexit.register
def _close_logs() -> None:
    for commit_log in list(_open_logs):
        commit_log.close()


os.register_at_fork(after_in_child=_open_logs.clear)  # a fork has the logs' entries, too, but none of their threads


def _reopen(properties: dict[str, Any]) -> Namespace:
    return Namespace(**properties)


def _to_model(operation: Operation, request: Any) -> Any:
    """Convert upstream's request, or a mapping, to our model. Raises InvalidInputError."""
    if hasattr(request, "to_dict"):
        fields = request.to_dict()
    elif hasattr(request, "model_dump"):
        fields = request.model_dump()
    else:
        fields = dict(request or {})
    return make_request(operation, _without_nulls(fields))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _to_upstream(operation: Operation, result: Any) -> Any:
    """Convert our response to upstream's model; plans are text, as in its other namespaces."""
    if isinstance(result, BytesAnswer):
        return None if result.size is None else result.read(0, result.size)
    if isinstance(result, ArrowAnswer):
        return ArrowFile(b"".join(encode(result, ARROW_FILE)))
    if operation.response_shape is Shape.STRING:
        return result
    if operation.response_shape is Shape.INTEGER:
        return upstream.CountTableRowsResponse(count=result)
    if operation.response_shape is Shape.MAP and isinstance(result, dict):
        result = {"metadata": result}
    kind = getattr(upstream, operation.response or f"{operation.name}Response", None)
    fields = {} if result is None else msgspec.to_builtins(result)
    return kind.from_dict(fields) if kind else fields


def _method(name: str) -> Callable[..., Any]:
    def method(self: Namespace, request: Any, request_data: bytes | None = None) -> Any:
        return self.call(name, request, request_data)

    method.__name__ = operations()[name].function
    method.__doc__ = f"Run {name}, as the specification has it."
    return method


for _name, _operation in operations().items():
    if _operation.function not in vars(Namespace):
        setattr(Namespace, _operation.function, _method(_name))

upstream.register_namespace_impl("tiltyard", "tiltyard.namespace.Namespace")
