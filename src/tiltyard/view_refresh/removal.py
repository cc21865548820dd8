"""Find the rows that a refresh removes from a view: equal ones to given rows, or those of given groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceOperation

from tiltyard.change_feed.deletions import write_deletions
from tiltyard.change_feed.row_digests import row_digests
from tiltyard.change_feed.table_history import split_by_fragment
from tiltyard.change_feed.version_rows import VersionRows, take_rows
from tiltyard.view_refresh.net_rows import is_filtered_type, values_filter
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

    Addresses = NDArray[np.uint64]

_MAX_FILTER_VALUES = 10_000
"""Values by which storage filters rows; of more, the column is read."""
_BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Removal:
    """Fragments of a view without the removed `rows`, to commit, and the ids of those that have none left."""

    rows: int
    remaining: tuple[FragmentMetadata, ...]
    emptied: tuple[int, ...]

    def with_rows(self, written: Sequence[FragmentMetadata]) -> LanceOperation.BaseOperation:
        """Return the operation that removes these rows and adds others, which the view's indexes are without."""
        if not (self.remaining or self.emptied):
            return LanceOperation.Append(list(written))
        return LanceOperation.Update(
            removed_fragment_ids=list(self.emptied),
            updated_fragments=list(self.remaining),
            new_fragments=list(written),
            fields_modified=[],
            update_mode="rewrite_rows",
        )


def remove_rows(view: lance.LanceDataset, addresses: Addresses) -> Removal:
    """Delete rows by their addresses; nothing is committed."""
    remaining, emptied = write_deletions(view, addresses)
    return Removal(len(addresses), tuple(remaining), tuple(emptied))


def find_group_rows(view: lance.LanceDataset, values: Mapping[str, pa.Array]) -> Addresses:
    """Return the addresses of the rows that have one of the values in each column."""
    return _join(batch["_rowaddr"].to_numpy() for batch in _scan(view, [], values))


def find_equal_rows(
    view: lance.LanceDataset,
    rows: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    *,
    max_candidates: int | None = None,
) -> Addresses:
    """Return the addresses of as many rows as are given, each equal to one of them in `columns` of the view.

    Raises FullRefreshRequiredError if the view lacks one, and where more than `max_candidates` are to be compared.
    """
    missing: Counter[bytes] = Counter()
    column = ""
    values: list[pa.Array] = []
    for batch in rows:
        missing.update(row_digests([batch.column(name) for name in columns]))
        column = column or _most_distinct_column(batch)
        values += [pc.unique(batch.column(column))] if column else []
    found: list[Addresses] = []
    count = missing.total()
    compared = 0
    for candidates in _candidates(view, column, values) if count else ():
        compared += len(candidates)
        if max_candidates is not None and compared > max_candidates:
            raise FullRefreshRequiredError(
                f"{count:,} rows of the view are to be removed, and more than {max_candidates:,} may be these"
            )
        addresses = np.sort(candidates)
        digests = read_digests(view, addresses, columns)
        is_removed = np.zeros(len(digests), bool)
        for place, digest in enumerate(digests):
            if missing.get(digest):
                missing[digest] -= 1
                is_removed[place] = True
        found.append(addresses[is_removed])
        if sum(map(len, found)) == count:
            return _join(found)
    if count:
        raise FullRefreshRequiredError(f"the view lacks {missing.total():,} rows that its query makes of earlier rows")
    return _join([])


def _most_distinct_column(rows: pa.RecordBatch) -> str:
    """Return the column with the most values among those that storage filters; "" if there is none."""
    counts = {
        name: pc.count_distinct(rows.column(name), mode="all").as_py()
        for name in rows.schema.names
        if is_filtered_type(rows.schema.field(name).type)
    }
    return max(counts, key=lambda name: counts[name], default="")


def _candidates(view: lance.LanceDataset, column: str, values: Iterable[pa.Array]) -> Iterator[Addresses]:
    """Yield addresses of all rows that have one of the values in a column, or (without a column) of all rows."""
    if not column:
        yield from (batch["_rowaddr"].to_numpy() for batch in _scan(view, [], {}))
        return
    distinct = pc.unique(pa.chunked_array(values))
    if len(distinct) <= _MAX_FILTER_VALUES:
        yield from (batch["_rowaddr"].to_numpy() for batch in _scan(view, [], {column: distinct}))
        return
    for batch in _scan(view, [column], {}):
        yield batch["_rowaddr"].to_numpy()[np.asarray(pc.is_in(batch[column], value_set=distinct))]


def _scan(view: lance.LanceDataset, columns: list[str], values: Mapping[str, pa.Array]) -> Iterator[pa.RecordBatch]:
    scanner = view.scanner(columns=columns, filter=values_filter(values), with_row_address=True, batch_size=_BATCH_ROWS)
    yield from scanner.to_batches()


def read_digests(view: lance.LanceDataset, addresses: Addresses, columns: Sequence[str]) -> list[bytes]:
    """Return the digests of rows by their sorted addresses, in their order."""
    names = list(columns)
    version = VersionRows(view, None, tuple(names))
    digests: list[bytes] = []
    numbers, fragment_offsets, _ = split_by_fragment(addresses)
    for number, offsets in zip(numbers, fragment_offsets, strict=True):
        positions = version.positions(number, offsets.astype(np.uint32))
        rows = take_rows(view, number, names, positions).combine_chunks()
        digests += row_digests([rows[name].combine_chunks() for name in names])
    return digests


def _join(parts: Iterable[Addresses]) -> Addresses:
    return np.concatenate([np.empty(0, np.uint64), *parts])
