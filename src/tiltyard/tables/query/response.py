"""Read the response of a search: all of it if it is small, else its first batch, with the others to stream."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError

from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.principals import EVERYBODY
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.query.integer_filters import ROW_OFFSET
from tiltyard.tables.query.plan import QUERY_INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import lance

    from tiltyard.context import Context
    from tiltyard.runtime.budgets import Reservation
    from tiltyard.tables.query.plan import Search

SMALL_ROWS = 1000
"""Rows up to which a response is read as a whole, unless it has more than `_SMALL_BYTES`."""
_SMALL_BYTES = 1 << 20
_QUERY_INDEX = pa.field(QUERY_INDEX, pa.int32(), nullable=False)


class Reader(Protocol):
    """The part of a RecordBatchReader that a response uses."""

    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


@contextmanager
def query_errors(dataset: lance.LanceDataset) -> Iterator[None]:
    """Translate Lance's errors, with two that only queries raise."""
    try:
        with lance_errors(dataset):
            yield
    except TableColumnNotFoundError as error:
        if f"'{ROW_OFFSET}'" not in str(error):
            raise
        raise InvalidInputError(  # Lance has the offset of a row only where a filter selects rows by it
            f"{ROW_OFFSET} picks rows by value alone: write `{ROW_OFFSET} IN (0, 1, …)`, or page with offset and k."
        ) from error
    except UnsupportedOperationError as error:
        if "AggregateFunction" not in str(error):
            raise
        raise InvalidInputError("A filter or expression is about one row: count() and the like are not.") from error


def reserve_memory(ctx: Context, search: Search) -> Reservation | None:
    """Reserve what a search holds at once; None for little. Raises InvalidInputError, ThrottlingError."""
    if not search.memory_bytes:
        return None
    principal = None if ctx.principal is EVERYBODY else ctx.principal.name
    return ctx.services.query_memory.reserve(principal, search.memory_bytes)


def read_response(ctx: Context, search: Search, open_readers: Callable[[], Iterator[Reader]]) -> ArrowAnswer:
    """Read a response: all of it if small, else its first batch, with the others to stream.

    `open_readers` yields a reader for each query vector, or one. Raises Lance's errors, and what reserving its memory
    raises.
    """
    reservation = reserve_memory(ctx, search)
    readers = open_readers()
    first = next(readers)
    schema = _response_schema(search, first.schema)
    if search.max_rows == 0:
        return ArrowAnswer(schema, [])
    batches = _response_batches(ctx, search, chain((first,), readers))
    is_small = search.max_rows is not None and search.max_rows * max(1, len(search.nearest)) <= SMALL_ROWS
    head: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        head.append(batch)
        size += batch.nbytes
        if not is_small or size > _SMALL_BYTES:
            return ArrowAnswer(schema, _chain_batches(head, batches, reservation))
    return ArrowAnswer(schema, head)


def _response_schema(search: Search, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a response, from the schema of its scanners."""
    if not search.hidden_columns and not search.is_numbered:
        return schema
    fields = [field for field in schema if field.name not in search.hidden_columns]
    return pa.schema([_QUERY_INDEX, *fields] if search.is_numbered else fields, schema.metadata)


def _response_batches(ctx: Context, search: Search, readers: Iterable[Reader]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one search after the other, with the columns of the response."""
    with query_errors(search.dataset):
        for number, reader in enumerate(readers):
            ctx.check_deadline()
            remaining = search.max_rows
            for batch in reader:
                ctx.check_deadline()
                output = batch
                if search.hidden_columns:
                    output = batch.select([name for name in batch.schema.names if name not in search.hidden_columns])
                if search.is_numbered:
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    output = output.add_column(0, _QUERY_INDEX, numbers)
                yield output
                if remaining is not None and (remaining := remaining - batch.num_rows) <= 0:
                    break  # reading on to the end would cost another round trip to Lance's threads


def _chain_batches(
    head: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch], reservation: Reservation | None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `head`, which are freed as they are sent, then the others; release their memory then."""
    try:
        while head:
            yield head.pop(0)
        yield from batches
    finally:
        if reservation is not None:
            reservation.release()
