"""The base class of the store's repositories: it gives each method its connection and its transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar

from tiltyard.runtime.current_request import bind_to_request
from tiltyard.runtime.tracing import child_span, is_tracing

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection, Database

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")
Clock = Callable[[], int]


class Repository:
    """Base of the classes that hold the methods for one entity (`Namespaces`, `Tables`, …).

    An instance is either bound to the connection of an open transaction, or unbound: then each call runs in a
    transaction (or a read) of its own. So each method is written once and serves both.
    """

    __slots__ = ("_bound", "_clock", "_database")

    def __init__(self, database: Database, clock: Clock, bound: Connection | None = None) -> None:
        """Use a database, and a connection of it if the methods are to join that one's transaction.

        `clock` returns the time in ms since 1970.
        """
        self._database = database
        self._clock = clock
        self._bound = bound

    def bind(self, connection: Connection) -> Self:
        """Return the same methods bound to a connection."""
        return type(self)(self._database, self._clock, connection)

    @property
    def connection(self) -> Connection:
        """The connection, inside a method decorated with `reads` or `writes`."""
        if self._bound is None:
            raise RuntimeError("only methods decorated with `reads` or `writes` have a connection")
        return self._bound


Method: TypeAlias = Callable[Concatenate[R, P], T]


def reads(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate a method that only reads."""
    return _run_by(method, "read")


def writes(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate a method that writes: in the transaction that it is bound to, or in one of its own."""
    return _run_by(method, "write")


def writes_one_statement(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate an idempotent method that writes by a single statement and returns the same when run again.

    So it needs no transaction around it, and is retried after a lost connection.
    """
    return _run_by(method, "write_statement")


def _run_by(method: Method[R, P, T], runner: Literal["read", "write", "write_statement"]) -> Method[R, P, T]:
    """Return the method; an unbound repository runs it by this method of its database."""

    name = f"catalog {method.__name__}"

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._bound is not None:
            return method(self, *args, **kwargs)
        run = getattr(self._database, runner)
        if is_tracing():
            with child_span(name):
                # SQLite writes in a thread of its own.
                work = bind_to_request(lambda connection: method(self.bind(connection), *args, **kwargs))
                traced: T = run(work)
            return traced
        result: T = run(lambda connection: method(self.bind(connection), *args, **kwargs))
        return result

    return call
