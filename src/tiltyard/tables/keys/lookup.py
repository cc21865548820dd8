"""Find out which of some keys a version has: by an index and in memory where they are few, else by one scan.

A few keys are looked up in the index of a key's columns; fragments that it does not cover yet are in `RecentKeys`. The
index does not say which rows a later version has deleted, so it decides for fragments that both have alike, and the
later version is scanned for the others. Many keys, or a table without an index, cost a scan of the key's columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.runtime.recent_keys import MOST_KEYS
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.keys.key_values import MAX_LISTED, has_literals, key_tuples, lookup_filter, matching_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.runtime.recent_keys import RecentKeys
    from tiltyard.storage.version_cache import Snapshot

_ROWS_PER_LOOKUP = 500
"""How many rows a scan reads in the time that the index takes for one key."""
_INDICES = frozenset({"btree", "bitmap"})
_SMALL_FRAGMENT = 10_000
"""Rows of a fragment whose keys are worth keeping in memory."""
_SCANNED_ROWS = 1 << 18
"""Rows of a batch of a scan: comparing one begins with a hash table of all keys that are looked for."""


@dataclass(frozen=True, slots=True)
class _Indexes:
    """The columns of a version with an index for equality, with the fragments that each covers; and all fragments."""

    covered: dict[str, frozenset[int]]
    fragments: frozenset[int]


def _read_indexes(dataset: lance.LanceDataset) -> _Indexes:
    covered: dict[str, frozenset[int]] = {}
    for index in dataset.describe_indices():
        if index.index_type.lower() in _INDICES and len(index.field_names) == 1:
            numbers = frozenset(number for segment in index.segments for number in segment.fragment_ids)
            covered[index.field_names[0]] = covered.get(index.field_names[0], frozenset()) | numbers
    return _Indexes(covered, frozenset(fragment.fragment_id for fragment in dataset.get_fragments()))


def indexed_columns(dataset: lance.LanceDataset) -> frozenset[str]:
    """Return the columns of a version that have an index for equality."""
    return frozenset(_read_indexes(dataset).covered)


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Looks up keys of one declaration, `scope`, in a version that fulfils it."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    scope: str
    recent: RecentKeys

    def is_fast_for(self, count: int) -> bool:
        """Return whether an index finds so many keys faster than a scan of the key's columns."""
        if not self._indexed_columns():
            return False
        return count <= MAX_LISTED or count * _ROWS_PER_LOOKUP <= self.snapshot.count_rows()

    def find(self, keys: pa.Table, fragments: Collection[int] | None = None) -> Iterator[tuple[pa.Table, int]]:
        """Yield keys that the version has, with the fragment of each; `fragments` limits where they are looked for.

        Needs an index: see `is_fast_for`. Raises what Lance raises, translated.
        """
        indexes, columns = self.snapshot.fact(_read_indexes), self._indexed_columns()
        wanted = indexes.fragments if fragments is None else indexes.fragments.intersection(fragments)
        covered = wanted.intersection(*(indexes.covered[column] for column in columns))
        for start in range(0, keys.num_rows if covered else 0, MAX_LISTED):
            yield from self._query_index(keys.slice(start, MAX_LISTED), columns, covered)
        if uncovered := wanted - covered:
            yield from self._find_uncovered(keys, sorted(uncovered))

    def _indexed_columns(self) -> list[str]:
        schema, covered = self.snapshot.dataset.schema, self.snapshot.fact(_read_indexes).covered
        return [name for name in self.columns if name in covered and has_literals(schema.field(name).type)]

    def _query_index(
        self, keys: pa.Table, columns: Sequence[str], covered: Collection[int]
    ) -> Iterator[tuple[pa.Table, int]]:
        """Yield the keys that rows of indexed fragments have."""
        dataset, names = self.snapshot.dataset, list(self.columns)
        with lance_errors(dataset):
            scanner = dataset.scanner(
                columns=names, filter=lookup_filter(keys, columns), with_row_address=True, fast_search=True
            )
            for batch in scanner.to_batches():
                rows = pa.Table.from_batches([batch])
                numbers = pc.shift_right(rows.column("_rowaddr"), pa.scalar(32, pa.uint64()))
                for number in pc.unique(numbers).to_pylist():
                    if number in covered:
                        found = matching_keys(rows.filter(pc.equal(numbers, number)).select(names), keys)
                        if found.num_rows:
                            yield found, number

    def _find_uncovered(self, keys: pa.Table, uncovered: Sequence[int]) -> Iterator[tuple[pa.Table, int]]:
        """Find keys in fragments without index: those of small ones are kept in memory, others are scanned."""
        dataset = self.snapshot.dataset
        with lance_errors(dataset):
            fragments = _fragments(dataset, uncovered)
        small = [fragment for fragment in fragments if fragment.physical_rows <= _SMALL_FRAGMENT]
        if sum(fragment.physical_rows for fragment in small) > MOST_KEYS // 2:
            small = []
        scanned = set(uncovered).difference(fragment.fragment_id for fragment in small)
        if small:
            by_file = {fragment_file(fragment.metadata): fragment for fragment in small}
            if missing := self.recent.missing(self.scope, list(by_file)):
                self._load({file: by_file[file] for file in missing})
            if self.recent.may_have(self.scope, by_file, key_tuples(keys)):
                scanned.update(fragment.fragment_id for fragment in small)
        for number in sorted(scanned):
            for found in scan_for_keys(dataset, keys, [number]):
                yield found, number

    def _load(self, fragments: Mapping[str, lance.LanceFragment]) -> None:
        """Read all keys of fragments, those of deleted rows included: a later version may have these rows again."""
        dataset = self.snapshot.dataset
        with lance_errors(dataset):
            scanner = dataset.scanner(
                columns=list(self.columns),
                fragments=list(fragments.values()),
                with_row_id=True,
                include_deleted_rows=True,
            )
            rows = scanner.to_table().select(list(self.columns))
        self.recent.add(self.scope, fragments, key_tuples(rows))


def fragment_file(fragment: FragmentMetadata) -> str:
    """Return what tells the rows of a fragment from those of every other one: its first file, which never changes."""
    return str(fragment.files[0].path)


def scan_for_keys(dataset: lance.LanceDataset, keys: pa.Table, fragments: Collection[int]) -> Iterator[pa.Table]:
    """Yield the keys of `keys` that rows of some fragments have, each as often as they have it."""
    for batch in read_keys(dataset, tuple(keys.column_names), fragments):
        found = matching_keys(batch, keys)
        if found.num_rows:
            yield found


def read_keys(
    dataset: lance.LanceDataset, columns: tuple[str, ...], fragments: Collection[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the keys of fragments, None for all, in batches. Raises what Lance raises, translated."""
    if fragments is not None and not fragments:
        return
    with lance_errors(dataset):
        chosen = None if fragments is None else _fragments(dataset, sorted(fragments))
        scanner = dataset.scanner(columns=list(columns), fragments=chosen, batch_size=_SCANNED_ROWS)
        for batch in scanner.to_batches():
            yield pa.Table.from_batches([batch])


def _fragments(dataset: lance.LanceDataset, numbers: Iterable[int]) -> list[lance.LanceFragment]:
    """Return fragments by their ids; those that the version does not have are left out."""
    fragments = (dataset.get_fragment(number) for number in numbers)
    return [fragment for fragment in fragments if fragment is not None]
