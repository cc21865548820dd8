"""The registry: which function serves which operation of the specification.

Each operation is one function, named snake_case(operationId), decorated with `@operation`. What it takes follows from
the specification: `(ctx, request)`, and a third argument `data: ArrowBody` where the wire carries Arrow in. The server
refuses to start on a function whose name the specification does not know; an operation that has no function answers
406, code 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tiltyard.spec import Operation, operations

Function = TypeVar("Function", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}


class UnknownOperationError(RuntimeError):
    """A decorated function has no operation of its name in the specification."""


def operation(function: Function) -> Function:
    """Serve the operation of this function's name with it."""
    if function.__name__ in _functions:
        raise UnknownOperationError(f"Two functions serve {function.__name__}.")
    _functions[function.__name__] = function
    return function


def bound_operations() -> Mapping[str, tuple[Operation, Callable[..., Any] | None]]:
    """Every operation of the specification by name, with the function that serves it (None: unsupported).

    Raises UnknownOperationError for a function without an operation.
    """
    known = {facts.function: facts for facts in operations().values()}
    for name in _functions:
        if name not in known:
            raise UnknownOperationError(f"No operation of the specification is called {name}.")
    return {facts.name: (facts, _functions.get(name)) for name, facts in known.items()}
