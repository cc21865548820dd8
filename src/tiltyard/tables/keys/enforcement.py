"""Check that a version to commit fulfils its table's primary key: no key twice, and none without a value.

Every commit to a managed table ends in one place, the record of its version in the catalog, whoever makes it: the
server for an insert, a merge or an update, Spark or any other client of Lance, a publication. There it is checked, and
this is why no two commits together can break the key, on whatever servers they meet:

1. A version is a manifest, which never changes, and the list of its rows with it. Whether version N + 1 has a key twice
   depends on that manifest alone, not on when it is looked at.
2. A record says of version N + 1 that it was checked (`checked_key`), by the same statement that gives it its number.
   The number is unique in the catalog, so of two commits with one number one is refused, stages another manifest on top
   of the winner, and asks for N + 2: that manifest has the winner's rows, and is checked with them. Lance rebases an
   append silently, but not without a new manifest and a new record.
3. So it is enough to check what N + 1 brings since a version that was checked, by induction. That is N, unless N came
   round the server or was recorded before the key was declared: then an earlier one, or none, and all rows are read.
4. A declaration is a row of the catalog. It is made under a lock of the table's record that each record of a version
   takes, too, and a version is recorded only while the table has the declaration that it was checked by.

What a version brings is found by the fragments of the two manifests: files with the key's columns that the earlier one
does not have. Deletes, new columns, indexes and compactions bring none, and nothing is read for them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from msgspec import structs

from tiltyard.model.branches import Branch
from tiltyard.model.columns.primary_keys import PrimaryKey, is_key_type
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_rows import RowChange, column_numbers, compare_rows
from tiltyard.tables.commits.staged_manifests import open_staged, read_manifest
from tiltyard.tables.keys.errors import duplicate_error, null_error
from tiltyard.tables.keys.key_values import first_duplicate, first_key, first_null, other_keys
from tiltyard.tables.keys.lookup import KeyLookup, read_keys, scan_for_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tiltyard.context import Context
    from tiltyard.store import NewVersion, TableRecord
    from tiltyard.tables.keys.key_values import Key

log = logging.getLogger("tiltyard.keys")

MAX_KEYS = 1 << 20
MAX_KEY_BYTES = 64 << 20
"""Keys that are held in memory at a time, and their bytes: more of them cost another scan."""


def check_version(ctx: Context, table: TableRecord, new: NewVersion, content: bytes) -> NewVersion:
    """Return a version to commit as one that fulfils its table's key; `content` is its manifest, which is valid.

    Raises DuplicateKeyError, TableSchemaValidationError (a null), InvalidInputError (a column of the key is gone).
    """
    if table.primary_key is None:
        return new
    key = PrimaryKey.from_json(table.primary_key)
    branch = Branch(new.branch)
    numbers = column_numbers(content)
    if missing := [column for column in key.columns if column not in numbers]:
        raise _column_error(missing[0])
    base = _checked_version(ctx, table, branch, new.version - 1, key)
    before = None if base is None else read_manifest(ctx, table, branch, base, new.naming_scheme)
    columns = frozenset(numbers[column] for column in key.columns)
    change = compare_rows(before, content, columns, consecutive=base == new.version - 1)
    if base != new.version - 1 and new.version > 1:
        log.info("version %s of table %s is compared with %s, by its key", new.version, table.id, base)
    if change.brought:
        _VersionCheck(ctx, table, key, branch, base if before is not None else None, content, change).run()
    return structs.replace(new, checked_key=key.token)


def _column_error(column: str) -> InvalidInputError:
    return InvalidInputError(
        f"The column '{column}' is part of this table's primary key: it keeps its name, and a type that a key may "
        "have, until the key is dropped (DropTablePrimaryKey); nothing was committed."
    )


def _checked_version(ctx: Context, table: TableRecord, branch: Branch, latest: int, key: PrimaryKey) -> int | None:
    """Return the latest version of a branch, up to `latest`, that fulfils the key; None where none is known to."""
    declared = key.checked.get(branch.key)
    if declared == latest:
        return latest
    recorded = ctx.store.latest_checked_version(table.id, branch.key, latest, key.token)
    candidates = [version for version in (recorded, declared) if version is not None and version <= latest]
    return max(candidates, default=None)


def first_taken_key(
    ctx: Context, table: TableRecord, key: PrimaryKey, new: NewVersion, content: bytes, latest: lance.LanceDataset
) -> Key | None:
    """Return a key that a refused version adds to the one before it, and that the latest version has by now, if any.

    `content` is the refused version's manifest. Of more than MAX_KEYS keys the first that many are looked up. None,
    too, where that version, or the one before it, cannot be read as one of the key.
    """
    branch, numbers = Branch(new.branch), column_numbers(content)
    before = read_manifest(ctx, table, branch, new.version - 1, new.naming_scheme)
    if before is None or any(column not in numbers or column not in latest.schema.names for column in key.columns):
        return None
    change = compare_rows(before, content, frozenset(numbers[column] for column in key.columns), consecutive=True)
    staged = open_staged(ctx, table, branch, content)
    if any(staged.schema.field(column).type != latest.schema.field(column).type for column in key.columns):
        return None
    keys = next(_chunks(read_keys(staged, key.columns, change.brought)), None)
    if keys is None:
        return None
    known = list(_present_keys(open_staged(ctx, table, branch, before), keys))
    added = other_keys(keys, pa.concat_tables(known)) if known else keys
    return _first_found(_present_keys(latest, added))


def _present_keys(dataset: lance.LanceDataset, keys: pa.Table) -> Iterator[pa.Table]:
    """Yield those of some keys that a version has, by a scan."""
    with lance_errors(dataset):
        fragments = frozenset(fragment.fragment_id for fragment in dataset.get_fragments())
    return scan_for_keys(dataset, keys, fragments)


def is_checked(ctx: Context, table: TableRecord, branch: Branch, version: int, key: PrimaryKey) -> bool:
    """Return whether a version of a branch is known to fulfil the key."""
    return _checked_version(ctx, table, branch, version, key) == version


@dataclass(frozen=True, slots=True)
class _VersionCheck:
    """The check of the rows that one version brings; `base` is the version that they are compared with."""

    ctx: Context
    table: TableRecord
    key: PrimaryKey
    branch: Branch
    base: int | None
    content: bytes
    change: RowChange

    def run(self) -> None:
        """Raise the error of the first key that is there twice, or has no value."""
        staged = open_staged(self.ctx, self.table, self.branch, self.content)
        schema = staged.schema
        for column in self.key.columns:
            if not is_key_type(schema.field(column).type):
                raise _column_error(column)
        for chunk, is_all in _with_last(_chunks(read_keys(staged, self.key.columns, self.change.brought))):
            self._check_chunk(staged, chunk, is_all=is_all)

    def _check_chunk(self, staged: lance.LanceDataset, keys: pa.Table, *, is_all: bool) -> None:
        """Check some of the new keys; unless these are all, against each other one as well."""
        check_new_keys(self.ctx, self.table, self.key, keys)
        if not is_all:
            _check_others(self.ctx, self.table, self.key, staged, keys, self.change.brought)
        if (existing := self._find_existing(staged, keys)) is not None:
            raise duplicate_error(self.ctx, self.table, self.key, existing, "exists in this table already")

    def _find_existing(self, staged: lance.LanceDataset, keys: pa.Table) -> Key | None:
        """Return a key that a row has which the version does not bring."""
        unchanged, kept = self.change.unchanged, self.change.kept
        if self.base is None or not unchanged:
            return _first_found(scan_for_keys(staged, keys, unchanged | kept))
        lookup = key_lookup(self.ctx, self.table, self.branch, self.base, self.key)
        if not lookup.is_fast_for(keys):
            return _first_found(scan_for_keys(staged, keys, unchanged | kept))
        if (existing := _first_found(found for found, _ in lookup.find(keys, unchanged))) is not None:
            return existing
        return _first_found(scan_for_keys(staged, keys, kept))


def check_rows(ctx: Context, table: TableRecord, key: PrimaryKey, dataset: lance.LanceDataset) -> None:
    """Check all rows of a version. Raises DuplicateKeyError, TableSchemaValidationError."""
    with lance_errors(dataset):
        fragments = frozenset(fragment.fragment_id for fragment in dataset.get_fragments())
    for chunk, is_all in _with_last(_chunks(read_keys(dataset, key.columns, fragments))):
        check_new_keys(ctx, table, key, chunk)
        if not is_all:
            _check_others(ctx, table, key, dataset, chunk, fragments)


def _check_others(
    ctx: Context,
    table: TableRecord,
    key: PrimaryKey,
    dataset: lance.LanceDataset,
    keys: pa.Table,
    fragments: Collection[int],
) -> None:
    """Raise for one of the keys that these fragments have twice, `keys` being some of theirs, all different."""
    found, count = [], 0
    for batch in scan_for_keys(dataset, keys, fragments):
        found.append(batch)
        count += batch.num_rows
        if count > keys.num_rows:
            duplicate = first_duplicate(pa.concat_tables(found))
            assert duplicate is not None
            raise duplicate_error(ctx, table, key, duplicate, "comes twice in these rows")


def check_new_keys(ctx: Context, table: TableRecord, key: PrimaryKey, keys: pa.Table) -> None:
    """Check the keys of one request among themselves. Raises DuplicateKeyError, TableSchemaValidationError."""
    if (column := first_null(keys)) is not None:
        raise null_error(column)
    if (duplicate := first_duplicate(keys)) is not None:
        raise duplicate_error(ctx, table, key, duplicate, "comes twice in these rows")


def key_lookup(ctx: Context, table: TableRecord, branch: Branch, version: int, key: PrimaryKey) -> KeyLookup:
    """Return what looks up keys in a version of a branch that fulfils the key."""
    snapshot = ctx.storage.datasets.open_snapshot(table.location, branch, version)
    return KeyLookup(snapshot, key.columns, key.token, ctx.services.recent_keys)


def _first_found(batches: Iterable[pa.Table]) -> Key | None:
    return next((first_key(batch) for batch in batches), None)


def _with_last(chunks: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Yield chunks, each with whether it is the only one."""
    first, second = next(chunks, None), next(chunks, None)
    if first is not None:
        yield first, second is None
    if second is not None:
        yield second, False
        yield from ((chunk, False) for chunk in chunks)


def _chunks(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Gather batches to tables of MAX_KEYS rows and MAX_KEY_BYTES or a little more."""
    gathered, rows, size = [], 0, 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= MAX_KEYS or size >= MAX_KEY_BYTES:
            yield pa.concat_tables(gathered)
            gathered, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(gathered)
