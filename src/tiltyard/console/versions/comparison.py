"""Two versions of a table compared: columns by name and type, rows as a whole, within bounds."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.grid import LAZY, Grid, fetched_names, read_grid
from tiltyard.console.table.heads import read_head
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.schemas.python_values import python_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.console.table.heads import TableHead
    from tiltyard.console.table.schema_tree import Column

MAX_ROWS = 20_000
"""Rows of a version that a page compares; of larger tables it compares the columns and the counts alone."""
MAX_BYTES = 64 << 20
"""Bytes of rows of one version that a page reads for it."""
SHOWN_ROWS = 50
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that one version lacks, or has with another type: `before` and `after`, "" where there is none."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows that only one of two versions has: how many, and the first of them. A changed row counts as both."""

    added: int
    removed: int
    first_added: Grid
    first_removed: Grid


def show(page: PageRequest) -> Page:
    """Compare the versions `old` and `new` (as `at` names them). Raises what describing and reading them raise."""
    old, new = read_head(page, page.text("old")), read_head(page, page.text("new"))
    counts = [_count_rows(page, head) for head in (old, new)]
    shared = shared_columns(old, new)
    is_small = max(counts) <= MAX_ROWS
    values = new.values(page, "versions") | {
        "old": old,
        "new": new,
        "counts": counts,
        "column_changes": compare_columns(old.columns, new.columns),
        "rows": compare_rows(page, old, new, shared) if is_small and shared else None,
        "most_rows": MAX_ROWS,
        "is_small": is_small,
        "unread": [column.name for column in new.columns if column.kind in LAZY or column.name in new.hidden],
    }
    return Page("compare.html", values)


def compare_columns(old: Sequence[Column], new: Sequence[Column]) -> list[ColumnChange]:
    """Return the columns that differ, in the order of the old version, then of the new one."""
    before, after = ({column.name: _describe(column) for column in columns} for columns in (old, new))
    return [
        ColumnChange(name, before.get(name, ""), after.get(name, ""))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _describe(column: Column) -> str:
    return column.type if column.nullable else f"{column.type} not null"


def shared_columns(old: TableHead, new: TableHead) -> list[Column]:
    """Return the columns that both versions have with one type, and whose values a page reads at once."""
    types = {column.name: _describe(column) for column in old.columns}
    names = set(fetched_names(new.columns, new.hidden | old.hidden))
    return [column for column in new.columns if column.name in names and types.get(column.name) == _describe(column)]


def _count_rows(page: PageRequest, head: TableHead) -> int:
    if head.table.is_only_declared:
        return 0
    count: int = page.calls.call("CountTableRows", id=list(page.path), branch=head.branch, version=_number(head))
    return count


def _number(head: TableHead) -> int | None:
    return None if head.is_view else head.version


def compare_rows(page: PageRequest, old: TableHead, new: TableHead, columns: Sequence[Column]) -> RowChanges | None:
    """Compare rows as they stream in, by digests; None where they are more than may be read.

    Rows of the same values are told apart by their number alone.
    """
    counts: Counter[bytes] = Counter()
    for head, sign in ((new, 1), (old, -1)):
        for _, _, digest in (stream := _Rows(page, head, columns)):
            counts[digest] += sign
        if stream.is_cut:
            return None
    added = sum(count for count in counts.values() if count > 0)
    removed = -sum(count for count in counts.values() if count < 0)
    return RowChanges(
        added,
        removed,
        _first(page, new, columns, Counter({key: count for key, count in counts.items() if count > 0})),
        _first(page, old, columns, Counter({key: -count for key, count in counts.items() if count < 0})),
    )


class _Rows:
    """The rows of a version with the digest of each; `is_cut` says that there were more than MAX_BYTES."""

    def __init__(self, page: PageRequest, head: TableHead, columns: Sequence[Column]) -> None:
        self._page, self._head, self._columns = page, head, columns
        self.is_cut = False

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, int, bytes]]:
        fields = {
            "id": list(self._page.path),
            "branch": self._head.branch,
            "version": _number(self._head),
            "columns": {"column_names": [column.name for column in self._columns]},
            "k": MAX_ROWS,
            "vector": {},
        }
        size = 0
        with self._page.calls.rows(**fields) as answer:
            for batch in answer.batches:
                self._page.calls.check()
                size += batch.nbytes
                if size > MAX_BYTES:
                    self.is_cut = True
                    return
                for index, digest in enumerate(_digests(batch)):
                    yield batch, index, digest


def _digests(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield a digest of each row's values, as Arrow writes them as text."""
    columns = [python_values(batch[name]) for name in sorted(batch.schema.names)]
    for index in range(batch.num_rows):
        row = repr([column[index] for column in columns])
        yield hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _first(page: PageRequest, head: TableHead, columns: Sequence[Column], wanted: Counter[bytes]) -> Grid:
    """Return the first rows of a version whose digests are wanted, as often as they are."""
    rows: list[pa.RecordBatch] = []
    if wanted:
        for batch, index, digest in _Rows(page, head, columns):
            if wanted[digest] > 0:
                wanted[digest] -= 1
                rows.append(batch.slice(index, 1))
                if len(rows) == SHOWN_ROWS:
                    break
    return read_grid(ArrowAnswer(rows[0].schema if rows else pa.schema([]), rows), columns, SHOWN_ROWS)
