"""Compute what a view of the kind `select` loses and gains where rows of its source were changed or deleted.

    change feed → rows as they were, rows as they are → the view's query on both → rows to remove, rows to add

The query computes each row from one row of the source, so that of the rows in between nothing is read. They are copied
into a dataset in memory, some at a time, and Lance evaluates the query there: its SQL has one meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

from tiltyard.model.columns.blob_columns import is_stored_as_read
from tiltyard.model.views.definitions import query_columns
from tiltyard.tables.lance_sql.lexer import TOKEN
from tiltyard.view_refresh.added_columns import FILE_FORMAT
from tiltyard.view_refresh.net_changes import find_net_changes, version_opener
from tiltyard.view_refresh.removal import find_equal_rows
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tiltyard.tables.lance_sql.select_queries import SelectQuery
    from tiltyard.view_refresh.net_rows import NetRows

MAX_CHANGED_ROWS = 200_000
"""Changes that are followed at most: Python compares each, beside the requests of the process."""
MIN_CHANGED_ROWS = 1_000
"""So many changes are followed even of a table that has few rows."""
CHANGED_SHARE = 10
"""Of a table, one row in so many may be a change (an update is two): of more, Lance computes all rows as fast."""
MIN_CANDIDATES = 100_000
"""So many rows of a view may be compared with those to remove, even of a small view."""
CANDIDATE_SHARE = 5
"""Of a view, one row in so many may be compared."""
_BATCH_BYTES = 32 << 20
"""Bytes of rows, about, on which the query is evaluated at once."""
_NAMES = frozenset({"word", "quoted", "text"})
"""Kinds of tokens that may be names."""
_ROW_METADATA = "_row"
"""What Lance's names of a row's metadata begin with (`_rowid`, `_rowaddr`), which a copy of the row lacks."""


@dataclass(frozen=True, slots=True)
class ChangedViewRows:
    """The rows that a source lost and gained since a version, and the query that makes a view's rows of them."""

    query: SelectQuery
    source: lance.LanceDataset
    _branch: str | None
    _columns: Sequence[str]
    _lost: tuple[NetRows, ...]
    _gained: tuple[NetRows, ...]

    @classmethod
    def find(
        cls, name: str, query: SelectQuery, source: lance.LanceDataset, since: int, max_rows: int
    ) -> ChangedViewRows:
        """Find what changed. Raises FullRefreshRequiredError where that is too much, or cannot be told."""
        if query.limit is not None:
            raise FullRefreshRequiredError(f"rows of {name} were changed or deleted, and the query has a LIMIT")
        columns = columns_read(source.schema, query)
        branch = None if query.branch.is_main else query.branch.lance_name
        limit = min(max_rows, MAX_CHANGED_ROWS, max(MIN_CHANGED_ROWS, source.count_rows() // CHANGED_SHARE))
        changes = find_net_changes(name, source, since, columns, branch=branch, max_rows=limit)
        return cls(query, source, branch, columns, changes.lost, changes.gained)

    def __bool__(self) -> bool:
        return bool(self._lost or self._gained)

    def find_lost(self, view: lance.LanceDataset) -> NDArray[np.uint64]:
        """Return the addresses of the view's rows of the source's rows before they were changed or deleted.

        Raises FullRefreshRequiredError.
        """
        most = max(MIN_CANDIDATES, view.count_rows() // CANDIDATE_SHARE)
        columns = query_columns(view.schema)
        return find_equal_rows(view, self._evaluate(self._lost), columns, max_candidates=most)

    def gained(self) -> Iterator[pa.RecordBatch]:
        """Yield the view's rows of the source's rows that were changed or added, as they are."""
        return self._evaluate(self._gained)

    def _evaluate(self, parts: Iterable[NetRows]) -> Iterator[pa.RecordBatch]:
        open_version = version_opener(self.source, self._branch)
        for rows in _joined(batch for part in parts for batch in part.read(open_version, self._columns)):
            copy = lance.write_dataset(rows, "memory://", data_storage_version=FILE_FORMAT)
            yield from copy.scanner(
                columns=scan_columns(rows.schema, self.query), filter=self.query.filter
            ).to_batches()


def scan_columns(source: pa.Schema, query: SelectQuery) -> list[str] | dict[str, str]:
    """Return the columns that a scan of a source computes for a view."""
    return list(source.names) if query.columns is None else dict(query.columns)


def columns_read(source: pa.Schema, query: SelectQuery) -> list[str]:
    """Return the columns of a source that a query reads: those whose names are in its text, and maybe more.

    Raises FullRefreshRequiredError if it reads what a copy of a row does not have.
    """
    words = _words(query)
    if own := sorted(word for word in words if word.startswith(_ROW_METADATA) and word not in _folded(source)):
        raise FullRefreshRequiredError(f"rows were changed or deleted, and the query reads {own[0]}")
    fields = [field for field in source if query.columns is None or field.name.casefold() in words]
    if not fields:
        raise FullRefreshRequiredError("rows were changed or deleted, and the query reads no column")
    for field in fields:
        if not _is_plain(field):
            raise FullRefreshRequiredError(
                f"rows were changed or deleted, and the column {field.name} is stored in another form than it is read"
            )
    return [field.name for field in fields]


def _words(query: SelectQuery) -> frozenset[str]:
    """Return the case-folded words of a query's expressions and filter, without quotes: names, and what may be one."""
    expressions = [*(query.columns or {}).values(), query.filter or ""]
    tokens = (token for text in expressions for token in TOKEN.finditer(text))
    texts = (token[0] if token.lastgroup == "word" else token[0][1:-1] for token in tokens if token.lastgroup in _NAMES)
    return frozenset(text.casefold() for text in texts)


def _folded(schema: pa.Schema) -> frozenset[str]:
    return frozenset(name.casefold() for name in schema.names)


def _is_plain(field: pa.Field) -> bool:
    """Return whether the values of a field, and of those inside it, are stored as they are read."""
    kind = field.type
    return is_stored_as_read(field) and all(_is_plain(kind.field(at)) for at in range(kind.num_fields))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of a size that is bounded."""
    joined: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        joined.append(batch)
        size += batch.nbytes
        if size >= _BATCH_BYTES:
            yield pa.Table.from_batches(joined)
            joined, size = [], 0
    if joined:
        yield pa.Table.from_batches(joined)
