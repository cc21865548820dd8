"""The rows of a request on their way into a table."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from tiltyard.storage.errors import lance_errors
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.schema.column_declarations import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.model.arrow_bodies import ArrowBody

_KEPT = 4


class IncomingRows:
    """An Arrow body, read once: whole if it is small, batch by batch if it streams in.

    Between Lance's readers and ours an exception becomes a text, so the first one is kept for the answer.
    """

    def __init__(self, data: ArrowBody) -> None:
        """Read the schema. Raises InvalidInputError for a body that is no Arrow IPC stream."""
        self._data = data
        reader = data.reader()
        undeclared = plain(reader.schema)
        self._reader = reader if undeclared is None else reader.cast(undeclared)
        self._failure: BaseException | None = None
        self._first: list[pa.RecordBatch] = []
        self._taken = 0
        self._rest = iter(self._reader)
        self._lock = threading.Lock()
        self.schema: pa.Schema = self._reader.schema

    @property
    def is_small(self) -> bool:
        """Whether the whole body is in memory already."""
        return self._data.size is not None

    def require_columns(self) -> None:
        """Raise InvalidInputError for a body without any column, such as one without any byte."""
        if not self.schema.names:
            raise InvalidInputError("The body has no columns: send an Arrow IPC stream with the rows.")

    def table(self) -> pa.Table:
        """All rows of a small body. Raises InvalidInputError for a corrupt one."""
        with self.errors():
            return self._reader.read_all()

    def reader(
        self, adapter: SchemaAdapter | None = None, each: Callable[[], None] | None = None
    ) -> pa.RecordBatchReader:
        """The rows as they come, fitted to a table; `each` is called for every batch.

        It may be asked for again as long as only a few batches were taken: Lance looks at the first one before it
        finds that it cannot write. After that the reader raises ConcurrentModificationError.
        """
        schema = adapter.schema if adapter else self.schema
        return pa.RecordBatchReader.from_batches(schema, self._batches(adapter, each))

    def _batches(self, adapter: SchemaAdapter | None, each: Callable[[], None] | None) -> Iterator[pa.RecordBatch]:
        try:
            for position in count():
                batch = self._batch(position)
                if batch is None:
                    return
                if each:
                    each()
                yield adapter.batch(batch) if adapter else batch
        except Exception as error:
            self._failure = error
            raise

    def _batch(self, position: int) -> pa.RecordBatch | None:
        """One batch of the body, None after its end; a thread that reads ahead for nobody loses none of them."""
        with self._lock:
            if position < self._taken:
                if position >= len(self._first):
                    raise ConcurrentModificationError("Another request changed this table meanwhile: send it again.")
                return self._first[position]
            batch = next(self._rest, None)
            if batch is not None:
                self._taken += 1
                if self._taken <= _KEPT:
                    self._first.append(batch)
                else:
                    self._first.clear()
            return batch

    @contextmanager
    def errors(self, table: Any = None) -> Iterator[None]:
        """Like `lance_errors`, but what went wrong with the rows themselves comes first."""
        try:
            with lance_errors(table):
                yield
        except BaseException as error:
            known = self._data.failure or self._failure
            if known is None or known is error:
                raise
            if isinstance(known, LanceNamespaceError) or known is self._data.failure:
                raise known from error
            with lance_errors(table):
                raise known from error
