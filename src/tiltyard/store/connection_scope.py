"""How a method of the store finds its connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection, Database

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Scope")
Clock = Callable[[], int]


class Scope:
    """Where the store's methods run: bound to the connection of a transaction, or free.

    On a free one every call is a transaction (or a read) of its own. The rooms of the store (`Namespaces`,
    `Tables`, …) derive from it, so each method is written once and serves both.
    """

    __slots__ = ("_bound", "_clock", "_database")

    def __init__(self, database: Database, clock: Clock, bound: Connection | None = None) -> None:
        """Be free, or bound to a connection. `clock` gives the time in ms."""
        self._database = database
        self._clock = clock
        self._bound = bound

    def bind(self, connection: Connection) -> Self:
        """Return the same methods bound to a connection."""
        return type(self)(self._database, self._clock, connection)

    @property
    def connection(self) -> Connection:
        """The connection, inside a method marked `reads` or `writes`."""
        if self._bound is None:
            raise RuntimeError("only methods marked `reads` or `writes` have a connection")
        return self._bound


Method: TypeAlias = Callable[Concatenate[S, P], T]


def reads(method: Method[S, P, T]) -> Method[S, P, T]:
    """Mark a method that only reads."""
    return _bound_by(method, "read")


def writes(method: Method[S, P, T]) -> Method[S, P, T]:
    """Mark a method that changes something: in the transaction it is bound to, or in one of its own."""
    return _bound_by(method, "write")


def writes_alone(method: Method[S, P, T]) -> Method[S, P, T]:
    """Mark a method that changes something by one statement, and answers the same if that has happened before.

    So it needs no transaction around it, and is run again where a connection is lost.
    """
    return _bound_by(method, "write_alone")


def _bound_by(method: Method[S, P, T], way: Literal["read", "write", "write_alone"]) -> Method[S, P, T]:
    """The method, which a free scope runs by this method of its database."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._bound is not None:
            return method(self, *args, **kwargs)
        result: T = getattr(self._database, way)(lambda connection: method(self.bind(connection), *args, **kwargs))
        return result

    return call
