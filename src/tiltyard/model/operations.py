"""Register which function serves which operation of the specification, and what the server has to know of it.

Each operation is one function, named snake_case(operationId), decorated with `@operation`. Its parameters follow from
the specification: `(ctx, request)`, and a third one, `data: ArrowBody`, where the request's body is Arrow. Whatever
else depends on the operation (privileges, thread pool, limits, audit, idempotency, recovery) is an argument of the
decorator, so that no other module lists operations by name. The server refuses to start on a function whose name the
specification does not have; an operation without a function answers 406 with code 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, overload

from lance_namespace.errors import PermissionDeniedError

from tiltyard.model.spec import Operation, Shape, operations_by_function

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.model.quotas import Resource

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")
U = TypeVar("U")
Inline = Callable[[Any, Any], Any]
"""Takes (ctx, request); returns the context to run in on the event loop, or None if the request needs a thread."""
Batch = Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]]
"""Runs several calls, each (ctx, request); returns the response or the exception of each, in their order."""


class PoolName(StrEnum):
    """The thread pool that runs an operation."""

    CATALOG = "catalog"
    """Reads and writes of the catalog."""
    QUERIES = "queries"
    """Reads of table data: as many threads as the processors can feed."""
    WRITES = "writes"
    """Uploads and other changes of table data, which wait for each other: they get the most threads."""


class CommitStep(StrEnum):
    """What an operation is in the commit protocol of Lance's clients (`tiltyard.api.execution.commit_queue`)."""

    READ_LATEST = "read_latest"
    """It returns the latest version, on which a client writes its manifest."""
    COMMIT = "commit"
    """It commits that manifest as the next version, or loses to another client."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The privileges that an operation needs: as text, and as the check that runs before it.

    `authorize(ctx, request)` returns the context to run in, which has the objects that the check resolved. It raises
    what the operation would raise if the object did not exist, PermissionDeniedError, or ServiceUnavailableError.
    """

    text: str
    authorize: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """A response that no thread waits for: `finish` makes it from the future's result."""

    future: Future[Any]
    finish: Callable[[Any], Any]

    def result(self) -> Any:
        """Wait for the response. Raises what the operation raises."""
        return self.finish(self.future.result())


class ArrowBody(Protocol):
    """Arrow data of a request: held in memory when small, streamed from the connection when large."""

    @property
    def size(self) -> int | None:
        """The size of the body in bytes if it is in memory (small bodies are), None while it is streamed."""

    @property
    def failure(self) -> BaseException | None:
        """The error by which reading failed, if it did: the response to the client, whatever Lance made of it."""

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the record batches; may be called once.

        Raises InvalidInputError if the bytes are no Arrow IPC stream or file; the reader raises it later, too, on a
        corrupt or half-sent stream. An empty body has an empty schema and no batches.
        """


@dataclass(frozen=True, slots=True)
class ArrowAnswer:
    """Record batches of a response: a list if all are in memory, else an iterator that is closed once they are sent.

    `media` is the format, where it is not the client's choice; `version` that of the table which was read.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]
    media: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class StreamedValue:
    """A row of one column whose value is read as it is sent: `read(offset, length)` returns some of its bytes."""

    size: int
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A response of one column of `large_binary` in Arrow's stream format; values that are too large are streamed."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch | StreamedValue]
    media: str


@dataclass(frozen=True, slots=True)
class BytesAnswer:
    """The bytes of one value, of which the server sends the range that the client asks for.

    - `size` is their number, None for a null.
    - `read(offset, length)` returns some of them; it raises what the operation raises.
    - `version` is the version of the table that has them.
    """

    size: int | None
    read: Callable[[int, int], bytes]
    version: int


def map_successes(
    outcomes: Sequence[T | Exception], work: Callable[[list[T]], Sequence[U | Exception]]
) -> list[U | Exception]:
    """Replace all results by those of `work`, and keep the errors; `work` is not called without results."""
    results = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    next_outcomes = iter(work(results) if results else ())
    return [outcome if isinstance(outcome, Exception) else next(next_outcomes) for outcome in outcomes]


def never(ctx: Any, request: Any) -> Any:
    """Return None, as `inline` of an operation that always takes a thread."""
    return None


def always(ctx: Any, request: Any) -> Any:
    """Return the context, as `inline` of an operation that makes only a few reads of the catalog."""
    return ctx


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The part of inline requests that is done at once for all that wait at the same time.

    `call(ctx)` returns what is to be done for a request, None for nothing. `run(calls)` does it for several, and leaves
    what it found in them.
    """

    call: Callable[[Any], Any]
    run: Callable[[Sequence[Any]], None]


@dataclass(frozen=True, slots=True)
class Handler:
    """The function that serves an operation, and its facts.

    How it runs:
    - `inline(ctx, request)` returns the context to run in, possibly with more objects resolved, if this request needs
      only a few reads of the catalog: where those are fast (SQLite), the server runs it on its event loop, without a
      thread. Otherwise it returns None.
    - `shared` is the part of inline requests that is done for several at once, before the function runs.
    - `begin` has the function's parameters. It does the short part that precedes the long one and returns a
      `PendingResponse`, or None where the function itself has to run.
    - `batch` runs several calls that wait at the same time for less than the sum of each alone.
    - `pool` is the thread pool, where it does not follow from the specification (see `pool_of`).
    - `query`: it is a query, with a slot, a deadline and a streamed response.
    - `commit_step` puts clients that commit to one table in turn.

    What it changes:
    - `changes`: it changes data or the catalog, so the audit has its successes and a request may have a key.
    - `audited`: its successes are recorded as changes. Not so bookkeeping that comes many times a minute.
    - `keyed`: a repeat gets the stored response. Not so a response with a secret, of which none is stored, and
      bookkeeping that comes many times a minute, of which a second run changes nothing.
    - `while_read_only`: it goes on while its object, or the server, is read-only: it changes none of that, or ends what
      was begun before.
    - `removes`: it removes its object. Where one such operation needs the approval of a second principal, all do.
    - `stores` is what it uses of quotas: it is refused where one of them is full. One that is `unlimited` runs
      where all requests are used up, too.
    - `doubles`: a repeat without a key does it twice. A caller that sends none does not send it again.
    - `retried_with_new_ids`: lancedb retries it under a new request id each time, so repeats are found by their body.
    - `recovered_by(ctx, request, commit)` makes the response of an interrupted request from its commit, for operations
      that must not run twice; of all others a second run changes nothing, or is refused.
    - `replayed_by(ctx, request, response)` completes the response that the catalog stored for an interrupted request.

    `below_mount(ctx, request, mount, below)` serves it instead of `function` for what lies below a mount, `below` being
    the id there: where the other catalog has to be asked for more than the table's place. Not for uploads.

    `entries` is the field of the request whose entries are each work of their own, which `max_operations` limits.
    """

    function: Callable[..., Any]
    inline: Inline
    needs: Needs | None
    shared: SharedWork | None = None
    begin: Callable[..., PendingResponse | None] | None = None
    batch: Batch | None = None
    pool: PoolName | None = None
    query: bool = False
    commit_step: CommitStep | None = None
    changes: bool = True
    audited: bool = True
    keyed: bool = True
    while_read_only: bool = False
    removes: bool = False
    stores: Sequence[Resource] = ()
    unlimited: bool = False
    doubles: bool = False
    retried_with_new_ids: bool = False
    recovered_by: Callable[[Any, Any, Any], Any] | None = None
    replayed_by: Callable[[Any, Any, Any], Any] | None = None
    entries: str | None = None
    below_mount: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The name of the operation in the specification."""
        return operations_by_function()[self.function.__name__].name

    def authorize(self, ctx: Any, request: Any) -> Any:
        """Return the context to run in, if the principal may run this, what it changes is not read-only, and no quota
        of what it stores is full.

        Raises as `Needs` says.
        """
        if not ctx.is_unchecked:
            if self.needs is None:
                raise PermissionDeniedError("Only administrators may do this.")
            decisions, needs = ctx.services.decisions, self.needs
            if decisions is None:
                ctx = needs.authorize(ctx, request)
            else:
                ctx = decisions.authorized(ctx, self.name, lambda asking: needs.authorize(asking, request))
            if not self.unlimited:
                ctx.services.quotas.check_requests("", getattr(request, "id", None) or ())
        if self.changes and not self.while_read_only:
            ctx.services.protections.check_request_writable(request)
        if self.stores:
            ctx.services.quotas.check_storing(ctx.principal.name, request, self.stores)
        return ctx

    def run(self, ctx: Any, request: Any, *upload: Any) -> Any:
        """Run the operation in the catalog that has its object; `upload` is the third argument where it takes Arrow.

        A call that needs the approval of a second principal runs once with it, and is refused without.
        """
        if self.changes and ctx.services.protections.has_approvals:
            with ctx.services.protections.running_approved(ctx, self.name, request) as approved:
                return self._run(approved, request, *upload)
        return self._run(ctx, request, *upload)

    def _run(self, ctx: Any, request: Any, *upload: Any) -> Any:
        if self.below_mount is not None and (found := ctx.services.mounts.find(request.id or ())) is not None:
            return self.below_mount(ctx, request, *found)
        return self.function(ctx, request, *upload)


_handlers: dict[str, Handler] = {}


class UnknownOperationError(RuntimeError):
    """A decorated function has no operation of its name in the specification, or two have the same."""


class UndeclaredNeedsError(RuntimeError):
    """A decorated function does not declare its needs, so no caller could be refused."""


class Facts(TypedDict, total=False):
    """The further arguments of `@operation`: fields of `Handler`."""

    shared: SharedWork
    begin: Callable[..., PendingResponse | None]
    batch: Batch
    pool: PoolName
    query: bool
    commit_step: CommitStep
    changes: bool
    audited: bool
    keyed: bool
    while_read_only: bool
    removes: bool
    stores: Sequence[Resource]
    unlimited: bool
    doubles: bool
    retried_with_new_ids: bool
    recovered_by: Callable[[Any, Any, Any], Any]
    replayed_by: Callable[[Any, Any, Any], Any]
    entries: str
    below_mount: Callable[..., Any]


@overload
def operation(function: Function, /) -> Function: ...
@overload
def operation(
    *, needs: Needs | None = None, inline: Inline = never, **facts: Unpack[Facts]
) -> Callable[[Function], Function]: ...
def operation(
    function: Any = None, /, *, needs: Needs | None = None, inline: Inline = never, **facts: Unpack[Facts]
) -> Any:
    """Serve the operation of this function's name with it, for principals who have what it needs.

    Raises UnknownOperationError if another function has the name.
    """

    def register(function: Function) -> Function:
        if function.__name__ in _handlers:
            raise UnknownOperationError(f"Two functions serve {function.__name__}.")
        _handlers[function.__name__] = Handler(function, inline, needs, **facts)
        return function

    return register if function is None else register(function)


def pool_of(operation: Operation, handler: Handler) -> PoolName:
    """Return the pool of an operation: the declared one; else uploads write, and operations tagged `Data` read data."""
    if handler.pool is not None:
        return handler.pool
    if operation.request_shape is Shape.ARROW:
        return PoolName.WRITES
    return PoolName.QUERIES if "Data" in operation.tags else PoolName.CATALOG


def bound_operations() -> Mapping[str, tuple[Operation, Handler | None]]:
    """Return every operation of the specification by name, with its handler (None: unsupported).

    Raises UnknownOperationError for a function without an operation, UndeclaredNeedsError for one that does not declare
    its needs.
    """
    by_function = operations_by_function()
    for name, handler in _handlers.items():
        if name not in by_function:
            raise UnknownOperationError(f"No operation of the specification is called {name}.")
        if handler.needs is None:
            raise UndeclaredNeedsError(f"{name} does not declare its needs: @operation(needs=…), see tiltyard.access.")
    return {operation.name: (operation, _handlers.get(name)) for name, operation in by_function.items()}
