"""Tables whose rows come from a function: DataFusion asks it for some columns when the query runs, not before.

DataFusion takes datasets of pyarrow, of which this module implements as much as it calls. It never gets to pass one of
these a filter: they are put below a limit that no table reaches, which no optimizer moves a filter through. So what a
query computes is computed for the rows that the function returns, and for no others: that holds where a policy hides
rows, and an error or the duration of a filter on hidden rows would disclose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from datafusion import SessionContext

_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows by demand: `read(columns)` yields batches that have at least these columns of `schema`.

    `read` is called in a thread of DataFusion, as often as the query refers to the table.
    """

    schema: pa.Schema
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


class _Scan:
    """A scanner, as far as DataFusion uses it."""

    def __init__(self, source: RowSource, columns: Sequence[str]) -> None:
        self._source = source
        self._columns = list(columns)
        self.projected_schema = pa.schema([source.schema.field(name) for name in columns])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source.read(self._columns or self._source.schema.names[:1]):
            yield batch.select(self._columns)


class _SourceDataset(pa.dataset.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    """A dataset of one fragment, as far as DataFusion uses it."""

    def __init__(self, source: RowSource) -> None:
        self._source = source

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def scanner(self, *_: Any, columns: Sequence[str] | None = None, **__: Any) -> _Scan:
        return _Scan(self._source, self._source.schema.names if columns is None else columns)

    def get_fragments(self, *_: Any) -> list[_SourceDataset]:
        return [self]


def to_table(context: SessionContext, source: RowSource) -> Any:
    """Return a table of DataFusion for a source, which no filter of a query reaches."""
    return context.read_table(_SourceDataset(source)).limit(_NO_LIMIT).into_view()
