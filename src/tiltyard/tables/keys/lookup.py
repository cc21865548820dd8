"""Find out which of some keys a version has: by an index and in memory where they are few, else by one scan.

A few keys are looked up in the index of a key's columns; fragments that it does not cover yet are in `RecentKeys`. The
index does not say which rows a later version has deleted, so it decides for fragments that both have alike, and the
later version is scanned for the others. Many keys, or a table without an index, cost a scan of the key's columns.

Which fragments an index covers is read once for a version; the version of an append gets it from the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.storage.caches.recent_keys import MAX_KEYS
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.pylance_internals import data_file_path
from tiltyard.tables.keys.key_values import (
    MAX_LISTED,
    has_literals,
    is_dense,
    key_hashes,
    lookup_filter,
    matching_keys,
)
from tiltyard.tables.opening import existing_fragments, read_fragments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.storage.caches.recent_keys import RecentKeys
    from tiltyard.storage.caches.version_cache import CachedVersion

_ROWS_PER_LOOKUP = 500
"""How many rows a scan reads in the time that the index takes for one key."""
_INDICES = frozenset({"btree", "bitmap"})
_SMALL_FRAGMENT_ROWS = 1 << 17
"""Rows of a fragment whose keys are worth keeping in memory."""
_SCANNED_ROWS = 1 << 18
"""Rows of a batch of a scan: comparing one begins with a hash table of all keys that are looked for."""


def indexed_columns(dataset: lance.LanceDataset) -> frozenset[str]:
    """Return the columns of a version that have an index for equality."""
    return frozenset(_covered_fragments(dataset))


def _covered_fragments(dataset: lance.LanceDataset) -> dict[str, frozenset[int]]:
    """Return the fragments that indexes for equality cover, by column."""
    covered: dict[str, frozenset[int]] = {}
    for index in dataset.describe_indices():
        if index.index_type.lower() in _INDICES and len(index.field_names) == 1:
            numbers = frozenset(number for segment in index.segments for number in segment.fragment_ids)
            covered[index.field_names[0]] = covered.get(index.field_names[0], frozenset()) | numbers
    return covered


class _KeyFiles(NamedTuple):
    """A fragment that no index covers: its files with the key's columns, which never change, and its rows."""

    files: str
    rows: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The key's columns that have an index; the fragments that all of these cover; and all others by their ids."""

    columns: tuple[str, ...]
    field_ids: frozenset[int]
    indexed: frozenset[int]
    others: Mapping[int, _KeyFiles]

    @classmethod
    def read(cls, dataset: lance.LanceDataset, names: Sequence[str]) -> Coverage:
        """Read the coverage of a version from its manifest."""
        covered, schema = _covered_fragments(dataset), dataset.schema
        columns = tuple(name for name in names if name in covered and has_literals(schema.field(name).type))
        wanted = frozenset(names)
        field_ids = frozenset(each.id() for each in dataset.lance_schema.fields() if each.name() in wanted)
        fragments = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
        indexed = frozenset(fragments)
        for column in columns:
            indexed &= covered[column]
        if not columns:
            indexed = frozenset()
        others = {
            number: _KeyFiles(key_files(fragment.metadata, field_ids), fragment.physical_rows)
            for number, fragment in fragments.items()
            if number not in indexed
        }
        return cls(columns, field_ids, indexed, others)

    def with_appended(self, dataset: lance.LanceDataset, written: Sequence[FragmentMetadata]) -> Coverage | None:
        """Return the coverage of the next version, which has only these fragments besides; None if it has others."""
        first = max(max(self.indexed, default=-1), max(self.others, default=-1)) + 1
        others = dict(self.others)
        for number, fragment in enumerate(written, first):
            appended = dataset.get_fragment(number)
            files = key_files(fragment, self.field_ids)
            if appended is None or key_files(appended.metadata, self.field_ids) != files:
                return None
            others[number] = _KeyFiles(files, fragment.physical_rows)
        return replace(self, others=others)


def key_files(fragment: FragmentMetadata, field_ids: frozenset[int]) -> str:
    """Return what tells the keys of a fragment from those of every other one: its files with the key's columns."""
    return " ".join(data_file_path(file) for file in fragment.files if not field_ids.isdisjoint(file.fields))


@dataclass(slots=True)
class KeyFacts:
    """What is known of one version by declarations of keys: which it fulfils, and the coverage of each."""

    fulfilled: set[str] = field(default_factory=set)
    coverage: dict[str, Coverage] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: CachedVersion) -> KeyFacts:
        """Return the facts that are kept with a snapshot."""
        return snapshot.fact(_no_facts)


def _no_facts(_dataset: lance.LanceDataset) -> KeyFacts:
    return KeyFacts()


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Looks up keys of one declaration, `scope`, in a version that fulfils it."""

    snapshot: CachedVersion
    columns: tuple[str, ...]
    scope: str
    recent: RecentKeys

    @property
    def coverage(self) -> Coverage:
        """Return what the indexes cover. Raises what Lance raises, translated."""
        known = KeyFacts.of(self.snapshot).coverage
        if (coverage := known.get(self.scope)) is None:
            with lance_errors(self.snapshot.dataset):
                coverage = known[self.scope] = Coverage.read(self.snapshot.dataset, self.columns)
        return coverage

    def is_fast_for(self, keys: pa.Table) -> bool:
        """Return whether an index finds these keys faster than a scan of the key's columns."""
        if not self.coverage.columns:
            return False
        if keys.num_rows <= MAX_LISTED or is_dense(keys):
            return True
        return bool(keys.num_rows * _ROWS_PER_LOOKUP <= self.snapshot.count_rows())

    def find(self, keys: pa.Table, fragments: Collection[int] | None = None) -> Iterator[tuple[pa.Table, int]]:
        """Yield keys that the version has, with the fragment of each; `fragments` limits where they are looked for.

        Needs an index: see `is_fast_for`. Raises what Lance raises, translated.
        """
        coverage = self.coverage
        covered, others = coverage.indexed, coverage.others
        if fragments is not None:
            covered = covered.intersection(fragments)
            others = {number: others[number] for number in others.keys() & fragments}
        size = keys.num_rows if is_dense(keys) else MAX_LISTED
        for start in range(0, keys.num_rows if covered else 0, size):
            yield from self._query_index(keys.slice(start, size), coverage.columns, covered)
        if others:
            yield from self._find_uncovered(keys, others)

    def _query_index(
        self, keys: pa.Table, columns: Sequence[str], covered: Collection[int]
    ) -> Iterator[tuple[pa.Table, int]]:
        """Yield the keys that rows of indexed fragments have."""
        dataset, names, condition = self.snapshot.dataset, list(self.columns), lookup_filter(keys, columns)
        with lance_errors(dataset):
            # Counting alone takes half the time, and nearly always there is none.
            if not dataset.scanner(filter=condition, fast_search=True).count_rows():
                return
            scanner = dataset.scanner(columns=names, filter=condition, with_row_address=True, fast_search=True)
            for batch in scanner.to_batches():
                rows = pa.Table.from_batches([batch])
                numbers = pc.shift_right(rows.column("_rowaddr"), pa.scalar(32, pa.uint64()))
                for number in pc.unique(numbers).to_pylist():
                    if number in covered:
                        found = matching_keys(rows.filter(pc.equal(numbers, number)).select(names), keys)
                        if found.num_rows:
                            yield found, number

    def _find_uncovered(self, keys: pa.Table, uncovered: Mapping[int, _KeyFiles]) -> Iterator[tuple[pa.Table, int]]:
        """Find keys in fragments without index: those of small ones are kept in memory, others are scanned."""
        small = {fragment.files: number for number, fragment in _small_fragments(uncovered)}
        scanned = set(uncovered).difference(small.values())
        if small:
            if missing := self.recent.missing(self.scope, list(small)):
                self._load({files: small[files] for files in missing})
            if self.recent.may_have(self.scope, small, key_hashes(keys)):
                scanned.update(small.values())
        dataset = self.snapshot.dataset
        for number in sorted(scanned):
            for found in scan_for_keys(dataset, keys, [number]):
                yield found, number

    def _load(self, fragments: Mapping[str, int]) -> None:
        """Read all keys of fragments, those of deleted rows included: a later version may have these rows again."""
        dataset = self.snapshot.dataset
        with lance_errors(dataset):
            scanner = dataset.scanner(
                columns=list(self.columns),
                fragments=existing_fragments(dataset, fragments.values()),
                with_row_id=True,
                include_deleted_rows=True,
            )
            rows = scanner.to_table().select(list(self.columns))
        self.recent.add(self.scope, fragments, key_hashes(rows))


def _small_fragments(fragments: Mapping[int, _KeyFiles]) -> list[tuple[int, _KeyFiles]]:
    """Return the fragments whose keys are kept in memory: where they are too many, the smallest of them."""
    small = [(number, fragment) for number, fragment in fragments.items() if fragment.rows <= _SMALL_FRAGMENT_ROWS]
    rows = sum(fragment.rows for _, fragment in small)
    if rows > MAX_KEYS // 2:
        small.sort(key=lambda item: item[1].rows)
        while rows > MAX_KEYS // 2:
            rows -= small.pop()[1].rows
    return small


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
    return read_fragments(dataset, columns, fragments, _SCANNED_ROWS)
