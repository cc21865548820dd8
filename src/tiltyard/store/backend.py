"""The interface of a catalog's database, which SQLite and PostgreSQL implement, and the errors of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")
Row = tuple[Any, ...]
CallSoon: TypeAlias = "Callable[[Callable[[], None]], object]"
"""`call_soon` of an event loop: it calls back once all callbacks that are ready now have run."""


class UniqueError(Exception):
    """A unique constraint refused a row; the message names the constraint or its columns."""


class NullError(Exception):
    """A NOT NULL constraint refused a row."""


class ForeignKeyError(Exception):
    """A foreign key refused a statement: the parent is missing, or children are left."""


class Connection(Protocol):
    """One connection. It takes the store's SQL: `?` placeholders, and `/*+ … */` around what only PostgreSQL needs."""

    def row(self, sql: str, *values: object) -> Row | None:
        """Run a statement that yields at most one row, and return it."""

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Run a statement and return all its rows."""

    def texts(self, sql: str, *values: object) -> list[str]:
        """Run a query of one column of text, `text`, and return it in the query's order; the query has a LIMIT."""

    def pages(self, sql: str, size: int) -> Iterator[list[Row]]:
        """Run a query in a transaction, and yield its rows in lists of up to `size`: never all are in memory."""

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
    """Whether reads are fast enough to run on an event loop."""

    dialect: Mapping[str, str]
    """What the placeholders in migrations, such as `{text}`, stand for."""

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` outside any transaction: each statement sees its own snapshot."""

    def read_snapshot(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn`, which only reads, in one transaction: its statements see one snapshot. Blocks no writer."""

    def write(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in one transaction and return once that is durable."""

    def write_statement(self, fn: Callable[[Connection], T]) -> T:
        """Run an idempotent `fn` that writes by a single statement, and return once that is durable."""

    def share_reads(self, call_soon: CallSoon) -> None:
        """Let the reads of the calling thread's event loop share a snapshot where several are ready at once.

        `call_soon` is the loop's. A database whose snapshots cost nothing has nothing to share.
        """

    def clock(self) -> int:
        """Return the time in ms since 1970, by the clock that all processes of the catalog have in common."""

    def gauges(self) -> Mapping[str, float]:
        """Return this process's counts of connections and of calls that wait, by name."""

    def ping(self) -> None:
        """Raise ServiceUnavailableError unless the database answers."""

    def check_disk_space(self) -> None:
        """Raise ServiceUnavailableError if its disk is full."""

    def purge_deleted(self) -> bool:
        """Leave nothing of deleted rows in the database's files, nor in its log; return whether it could."""

    def close(self) -> None:
        """Finish the writes under way and close every connection."""
