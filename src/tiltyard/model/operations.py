"""The registry: which function serves which operation of the specification.

Each operation is one function, named snake_case(operationId), decorated with `@operation`. What it takes follows from
the specification: `(ctx, request)`, and a third argument `data: ArrowBody` where the wire carries Arrow in. The server
refuses to start on a function whose name the specification does not know; an operation that has no function answers
406, code 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from lance_namespace.errors import PermissionDeniedError

from tiltyard.model.spec import Operation, operations

Function = TypeVar("Function", bound=Callable[..., Any])
Inline = Callable[[Any, Any], Any]
"""Takes (ctx, request): gives the context to run in on the event loop, or None."""
Together = Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]]
"""Runs several calls, each (ctx, request): what each answers, or the exception it raises, in their order."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an operation needs of whoever asks: in words, and as the check that is made before it runs.

    `admit(ctx, request)` answers the context to run in, which knows what the check has found. It raises what the
    operation would raise if the object did not exist, PermissionDeniedError, or ServiceUnavailableError.
    """

    text: str
    admit: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Later:
    """A response that comes without a thread that waits: `finish` makes it of what the future will have."""

    future: Future[Any]
    finish: Callable[[Any], Any]

    def result(self) -> Any:
        """The response, waited for. Raises what the operation raises."""
        return self.finish(self.future.result())


@dataclass(frozen=True, slots=True)
class Served:
    """A function, what it needs, and how it may run.

    `inline(ctx, request)` gives the context to run in, which may know more by then, if this request needs nothing but a
    few reads of the catalog: where those are fast (SQLite), the server then answers on its event loop, without a
    thread. Else it gives None. `begin` takes what the function takes, does what little comes before the long part, and
    answers a `Later`, or None where the function itself has to run.
    `together`, where there is one, runs several calls that wait at the same time for less than each alone costs.
    """

    function: Callable[..., Any]
    inline: Inline
    needs: Needs | None
    begin: Callable[..., Later | None] | None = None
    together: Together | None = None

    def admit(self, ctx: Any, request: Any) -> Any:
        """The context to run in, if whoever asks may do this. Raises as `Needs` says."""
        if ctx.principal.administrator:
            return ctx
        if self.needs is None:
            raise PermissionDeniedError("Only administrators may do this.")
        return self.needs.admit(ctx, request)


_served: dict[str, Served] = {}


class UnknownOperationError(RuntimeError):
    """A decorated function has no operation of its name in the specification, or two have the same."""


class UndeclaredNeedsError(RuntimeError):
    """A decorated function does not say what it needs: nobody could be refused."""


def never(ctx: Any, request: Any) -> Any:
    """For `inline`: this operation always takes a thread."""
    return None


@overload
def operation(function: Function, /) -> Function: ...
@overload
def operation(
    *,
    needs: Needs | None = None,
    inline: Inline = never,
    begin: Callable[..., Later | None] | None = None,
    together: Together | None = None,
) -> Callable[[Function], Function]: ...
def operation(
    function: Any = None,
    /,
    *,
    needs: Needs | None = None,
    inline: Inline = never,
    begin: Callable[..., Later | None] | None = None,
    together: Together | None = None,
) -> Any:
    """Serve the operation of this function's name with it, for those who have what it needs."""

    def register(function: Function) -> Function:
        if function.__name__ in _served:
            raise UnknownOperationError(f"Two functions serve {function.__name__}.")
        _served[function.__name__] = Served(function, inline, needs, begin, together)
        return function

    return register if function is None else register(function)


def always(ctx: Any, request: Any) -> Any:
    """For `inline`: this operation only ever reads a little of the catalog."""
    return ctx


def bound_operations() -> Mapping[str, tuple[Operation, Served | None]]:
    """Every operation of the specification by name, with what serves it (None: unsupported).

    Raises UnknownOperationError for a function without an operation, UndeclaredNeedsError for one that does not say
    what it needs.
    """
    known = {facts.function: facts for facts in operations().values()}
    for name, served in _served.items():
        if name not in known:
            raise UnknownOperationError(f"No operation of the specification is called {name}.")
        if served.needs is None:
            raise UndeclaredNeedsError(f"{name} does not say what it needs: @operation(needs=…), see tiltyard.access.")
    return {facts.name: (facts, _served.get(name)) for name, facts in known.items()}
