"""The server without a server: the operations as a `lance_namespace.LanceNamespace` in this process.

It runs the very functions that the server runs, on the same catalog and the same storage, next to running servers.
What pylance, lancedb or a pipeline take as `namespace_client` it can be:

    namespace = tiltyard.Namespace(root="./data")
    lance.write_dataset(rows, namespace_client=namespace, table_id=["films"])

Requests may be upstream's models or mappings; responses are upstream's models.
"""

from __future__ import annotations

import os
import re
import uuid
import weakref
from typing import TYPE_CHECKING, Any, Self

import lance_namespace as upstream
import msgspec
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.api.bodies.arrow_encoder import encode
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import load_settings
from tiltyard.context import Context
from tiltyard.identity import named
from tiltyard.model.arrow_bodies import ArrowAnswer
from tiltyard.model.operations import Served, bound_operations
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.spec import ARROW_FILE, Operation, Shape, models, operations
from tiltyard.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.tables.commits.process_state import FinalizedLog

STOP_SECONDS = 5.0


class Namespace(upstream.LanceNamespace):
    """A catalog and its tables. `root`, `db` and further properties are the server's settings (docs/settings.md).

    Queued work (index builds, deletions) runs in `jobs` threads here; with `jobs=0` it is left to servers and workers.
    With a `principal`, or the name of one, it does what that one may do; without, everything: whoever can open the
    database could anyway. Raises ConfigError, StorageError, StoreVersionError, ServiceUnavailableError,
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
        register_operations()
        self._bound = bound_operations()
        self._services = open_services(load_settings(self._properties))
        try:
            self._principal = named(self._services.store, principal) if isinstance(principal, str) else principal
        except LanceNamespaceError:
            self._services.store.close()
            raise
        # One that nobody closes: what became final a moment ago is noted when it is let go, or Python ends.
        weakref.finalize(self, _note_final, self._services.finalized_log, os.getpid())
        self._worker = Worker(self._services, self._services.settings.jobs)
        if self._services.settings.jobs:
            self._worker.start()

    def namespace_id(self) -> str:
        """What tells this catalog from others: where its tables and its records are."""
        settings = self._services.settings
        return f"tiltyard {settings.root} {re.sub(r'//[^@/]*@', '//', settings.database_url)}"

    def close(self) -> None:
        """Stop what runs in the background, and let go of the database."""
        if self._services.settings.jobs:
            self._worker.stop(STOP_SECONDS)
        self._services.finalized_log.close()
        self._services.storage.close()
        self._services.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Namespace], tuple[dict[str, Any]]]:
        """Pickled, it is its properties: another process opens the catalog anew."""
        return _reopened, ({**self._properties, "principal": self._principal},)

    def list_table_versions(self, request: Any) -> upstream.ListTableVersionsResponse:
        """ListTableVersions, as the specification has it.

        A branch that is about to be made has no version, for whoever asks for the latest as Lance does: the bridge of
        lancedb hands it no errors but failures of the storage.
        """
        try:
            found: upstream.ListTableVersionsResponse = self.call("ListTableVersions", request)
        except TableBranchNotFoundError:
            asked = _request(operations()["ListTableVersions"], request)
            if not (asked.descending and asked.limit == 1):
                raise
            return upstream.ListTableVersionsResponse(versions=[])
        return found

    def call(self, name: str, request: Any, data: bytes | None = None) -> Any:
        """Run the operation of this name (`CreateTable`); `data` is an Arrow IPC stream, where it takes one.

        Raises lance_namespace.errors, UnsupportedOperationError for an operation that is not served.
        """
        operation, served = self._bound.get(name, (None, None))
        if operation is None or served is None:
            raise UnsupportedOperationError(f"{name} is not supported.")
        ctx = Context(self._services, uuid.uuid4().hex, principal=self._principal)
        try:
            return _response(operation, self._run(ctx, operation, served, request, data))
        except LanceNamespaceError:
            raise
        except Exception as error:
            raise InternalError(f"{name} failed: {error}") from error

    @staticmethod
    def _run(ctx: Context, operation: Operation, served: Served, request: Any, data: bytes | None) -> Any:
        asked = _request(operation, request)
        ctx = served.admit(ctx, asked)
        if operation.request_shape is not Shape.ARROW:
            return served.function(ctx, asked)
        try:
            body = MemoryBody(bytes(memoryview(data or b"")))
        except TypeError:
            raise InvalidInputError(f"{operation.name} takes an Arrow IPC stream as bytes.") from None
        try:
            return served.function(ctx, asked, body)
        except Exception as error:
            if body.failure in (None, error):
                raise
            raise body.failure from error


class Rows(bytes):
    """An Arrow file: the answer to a query, as lancedb takes it; `data` is the same, as upstream's model has it."""

    @property
    def data(self) -> bytes:
        return self


def _note_final(finalized_log: FinalizedLog, process: int) -> None:
    if os.getpid() == process:  # a fork has the notes, too, and none of the threads
        finalized_log.close()


def _reopened(properties: dict[str, Any]) -> Namespace:
    return Namespace(**properties)


def _request(operation: Operation, request: Any) -> Any:
    """Upstream's request, or a mapping, as our model. Raises InvalidInputError."""
    if operation.request is None:
        return None
    if hasattr(request, "to_dict"):
        fields = request.to_dict()
    elif hasattr(request, "model_dump"):
        fields = request.model_dump()
    else:
        fields = dict(request or {})
    try:
        return msgspec.convert(_without_nulls(fields), getattr(models, operation.request), strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The request is not what {operation.name} takes: {error}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _response(operation: Operation, result: Any) -> Any:
    """Our response as upstream's model; plans are text, as in its other namespaces."""
    if isinstance(result, ArrowAnswer):
        return Rows(b"".join(encode(result, ARROW_FILE)))
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
    method.__doc__ = f"{name}, as the specification has it."
    return method


for _name, _operation in operations().items():
    if _operation.function not in vars(Namespace):
        setattr(Namespace, _operation.function, _method(_name))

upstream.register_namespace_impl("tiltyard", "tiltyard.namespace.Namespace")
