"""Read the rows of a request's Arrow body, for Lance to write."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.storage.errors import lance_errors
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.schema.column_declarations import without_declarations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.model.operations import ArrowBody
    from tiltyard.tables.contracts.incoming_rows import IncomingContract

_REPLAYABLE_BATCHES = 4
"""Batches at the start of a body that can be read a second time."""


@dataclass(frozen=True, slots=True)
class EmptyBody:
    """The body of a table without rows that the server itself makes: what its columns declare has been authorized."""

    schema: pa.Schema
    size: int = 0
    failure: None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader without batches."""
        return pa.RecordBatchReader.from_batches(self.schema, [])


class IncomingRows:
    """The rows of an Arrow body, read once: as a whole if it is small, batch by batch if it streams in.

    Lance turns an exception of a reader into text, so the first exception is kept here and raised for the response.
    """

    def __init__(self, data: ArrowBody) -> None:
        """Read the schema. Raises InvalidInputError for a body that is no Arrow IPC stream."""
        self._data = data
        reader = data.reader()
        plain_schema = None if isinstance(data, EmptyBody) else without_declarations(reader.schema)
        self._reader = reader if plain_schema is None else reader.cast(plain_schema)
        self._failure: BaseException | None = None
        self._first_batches: list[pa.RecordBatch] = []
        self._read_count = 0
        self._batch_iterator = iter(self._reader)
        self._lock = threading.Lock()
        self.schema: pa.Schema = self._reader.schema

    @property
    def is_small(self) -> bool:
        """Return whether the whole body is in memory already."""
        return self._data.size is not None

    @classmethod
    def with_columns(cls, data: ArrowBody) -> IncomingRows:
        """Return rows that have columns. Raises InvalidInputError for those without, as of an empty body."""
        rows = cls(data)
        if not rows.schema.names:
            raise InvalidInputError("The body has no columns: send an Arrow IPC stream with the rows.")
        return rows

    def table(self) -> pa.Table:
        """Read all rows of a small body. Raises InvalidInputError for a corrupt one."""
        with self.errors():
            return self._reader.read_all()

    def reader(
        self,
        adapter: SchemaAdapter | None = None,
        before_batch: Callable[[], None] | None = None,
        contract: IncomingContract | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of the rows as they stream in, adapted to a table; `before_batch` is called for every batch.

        `contract` checks them, and leaves out those that it rejects.

        A second reader starts from the first batch as long as only a few batches were read: Lance reads the first one
        before it finds that it cannot write. After that the reader raises ConcurrentModificationError.
        """
        schema = adapter.schema if adapter else self.schema
        batches = self._batches(adapter, before_batch)
        return pa.RecordBatchReader.from_batches(
            schema, batches if contract is None else self._checked(batches, contract)
        )

    def _checked(self, batches: Iterator[pa.RecordBatch], contract: IncomingContract) -> Iterator[pa.RecordBatch]:
        contract.restart()  # after a reader before this one
        try:
            yield from contract.take_batches(batches)
        except Exception as error:
            self._failure = error
            raise

    def _batches(
        self, adapter: SchemaAdapter | None, before_batch: Callable[[], None] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for position in count():
                batch = self._batch(position)
                if batch is None:
                    return
                if before_batch:
                    before_batch()
                yield adapter.adapt_batch(batch) if adapter else batch
        except Exception as error:
            self._failure = error
            raise

    def _batch(self, position: int) -> pa.RecordBatch | None:
        """Return the batch at a position, None after the end; an abandoned thread that reads ahead loses no batch."""
        with self._lock:
            if position < self._read_count:
                if position >= len(self._first_batches):
                    raise ConcurrentModificationError("A concurrent request changed this table: send the body again.")
                return self._first_batches[position]
            batch = next(self._batch_iterator, None)
            if batch is not None:
                self._read_count += 1
                if self._read_count <= _REPLAYABLE_BATCHES:
                    self._first_batches.append(batch)
                else:
                    self._first_batches.clear()
            return batch

    @contextmanager
    def errors(self, table: Any = None) -> Iterator[None]:
        """Translate Lance's errors as `lance_errors` does, but prefer an error of the body or of its rows."""
        try:
            with lance_errors(table):
                yield
        except BaseException as error:
            failure = self._data.failure or self._failure
            if failure is None or failure is error:
                raise
            if isinstance(failure, LanceNamespaceError) or failure is self._data.failure:
                raise failure from error
            with lance_errors(table):
                raise failure from error
