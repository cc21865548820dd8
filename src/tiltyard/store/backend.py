"""What the store needs of a database, and the errors the two implementations turn their own into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
Row = tuple[Any, ...]
Soon: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Calls something once what is ready to run now has run."""


class UniqueError(Exception):
    """A unique constraint refused a row; the message names the constraint or its columns."""


class NullError(Exception):
    """A column that must have a value would have had none."""


class ForeignKeyError(Exception):
    """A foreign key refused a statement: the parent is missing, or children are left."""


class Connection(Protocol):
    """One connection, speaking the store's SQL: `?` placeholders, `/*+ … */` for what only PostgreSQL needs."""

    def row(self, sql: str, *values: object) -> Row | None:
        """Run a statement that yields at most one row, and return it."""

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Run a statement and return all its rows."""

    def change(self, sql: str, *values: object) -> int:
        """Run a statement and return how many rows it changed.

        Raises UniqueError, ForeignKeyError or NullError where a constraint refuses it (as `row` and `rows` do).
        """

    def change_many(self, sql: str, values: Iterable[Row]) -> None:
        """Run one statement for each row of values. Raises as `change` does."""


class Database(Protocol):
    """A catalog's database. Safe to use from several threads.

    `read` and `write` raise ServiceUnavailableError when the database cannot be reached or stays busy, and
    InvalidInputError for a value it cannot hold. `fn` may be run again after a lost connection or a
    serialization failure, so it must do nothing but SQL.
    """

    inline_reads: bool
    """Whether reads are quick enough to run on an event loop."""

    dialect: Mapping[str, str]
    """What the tokens in migrations stand for, such as `{text}`."""

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` outside any transaction: each statement sees its own snapshot."""

    def write(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in one transaction and return once that is durable."""

    def write_alone(self, fn: Callable[[Connection], T]) -> T:
        """Do that for an `fn` that changes things by one statement, and may be run again though that has happened."""

    def share_reads(self, soon: Soon) -> None:
        """Let reads of the thread that calls this, an event loop's, be made in one snapshot where they come together.

        `soon` is the loop's `call_soon`. A database whose snapshots cost nothing has nothing to share.
        """

    def gauges(self) -> Mapping[str, float]:
        """How much is held and waits in this process, by name."""

    def ping(self) -> None:
        """Raise ServiceUnavailableError unless the database answers."""

    def check_room(self) -> None:
        """Raise ServiceUnavailableError if its disk is full."""

    def close(self) -> None:
        """Finish the writes under way and let go of every connection."""
