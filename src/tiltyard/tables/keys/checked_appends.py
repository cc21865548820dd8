"""Check the rows of appends before they are written, while they are in memory: one look-up for all of a commit.

The result holds for the version after the one that the rows were compared with. Where another commit takes that number
first, the append is checked again by its manifest, like any other commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.model.columns.primary_keys import PrimaryKey
from tiltyard.tables.keys.enforcement import MAX_KEYS, check_new_keys, is_checked, key_lookup
from tiltyard.tables.keys.errors import duplicate_error
from tiltyard.tables.keys.key_values import key_hashes, key_tuples, matching_keys
from tiltyard.tables.keys.lookup import KeyFacts, key_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.store import NewVersion, TableRecord
    from tiltyard.tables.keys.key_values import Key
    from tiltyard.tables.keys.lookup import Coverage, KeyLookup
    from tiltyard.tables.rows.write_target import WriteTarget


@dataclass(frozen=True, slots=True, eq=False)
class CheckedAppend:
    """An append to a version whose rows fulfil a declaration of a key together with all rows of that version."""

    primary_key: str
    token: str
    branch: str
    version: int
    hashes: NDArray[np.uint64]
    coverage: Coverage

    def covers(self, table: TableRecord, new: NewVersion) -> bool:
        """Return whether a version is this append, to the version that it was checked against."""
        is_next = new.version == self.version + 1 and new.branch == self.branch
        return is_next and table.primary_key == self.primary_key

    def remember(self, ctx: Context, committed: CachedVersion, fragments: Sequence[FragmentMetadata]) -> None:
        """Keep what is known of the committed version and its new fragments in memory, for the appends to come."""
        files = [key_files(fragment, self.coverage.field_ids) for fragment in fragments]
        ctx.services.recent_keys.add(self.token, files, self.hashes)
        if committed.dataset.version == self.version + 1:
            facts = KeyFacts.of(committed)
            facts.fulfilled.add(self.token)
            if (coverage := self.coverage.with_appended(committed.dataset, fragments)) is not None:
                facts.coverage[self.token] = coverage


def check_append(
    target: WriteTarget, version: int, requests: Sequence[pa.Table]
) -> tuple[CheckedAppend | None, dict[int, LanceNamespaceError]]:
    """Check the rows of several requests that are to be appended to a version by one commit.

    Return the check, and the errors of requests whose rows break the key, by their positions: it holds for the others.
    None where the rows are to be checked by their manifest: the table has no key, they are many, the version is not
    known to fulfil the key, or looking them up would take a scan.
    """
    ctx, table = target.ctx, target.record
    rows = sum(request.num_rows for request in requests)
    if table.primary_key is None or not 0 < rows <= MAX_KEYS:
        return None, {}
    key = PrimaryKey.from_json(table.primary_key)
    names = list(key.columns)
    if any(name not in request.column_names for request in requests for name in names):
        return None, {}
    lookup = key_lookup(ctx, table, target.branch, version, key)
    if not _is_fulfilled(ctx, table, target.branch, key, lookup):
        return None, {}
    selected = [request.select(names) for request in requests]
    if not lookup.is_fast_for(pa.concat_tables(selected)):
        return None, {}
    accepted, errors = _check_requests(ctx, table, key, selected)
    if not accepted:
        return None, errors
    keys = pa.concat_tables(list(accepted.values()))
    existing = [found for found, _ in lookup.find(keys)]
    if existing:
        found = pa.concat_tables(existing)
        for position, request in accepted.items():
            if (matches := matching_keys(request, found)).num_rows:
                values = tuple(column[0].as_py() for column in matches.columns)
                errors[position] = duplicate_error(ctx, table, key, values, "exists in this table already")
        left = [request for position, request in accepted.items() if position not in errors]
        keys = pa.concat_tables(left) if left else keys.slice(0, 0)
    branch = target.branch.key
    return CheckedAppend(table.primary_key, key.token, branch, version, key_hashes(keys), lookup.coverage), errors


def _is_fulfilled(ctx: Context, table: TableRecord, branch: Branch, key: PrimaryKey, lookup: KeyLookup) -> bool:
    """Return whether a version is known to fulfil a declaration, by an append of this process or by the catalog."""
    facts = KeyFacts.of(lookup.snapshot)
    if key.token not in facts.fulfilled and is_checked(ctx, table, branch, lookup.snapshot.dataset.version, key):
        facts.fulfilled.add(key.token)
    return key.token in facts.fulfilled


def _check_requests(
    ctx: Context, table: TableRecord, key: PrimaryKey, requests: Sequence[pa.Table]
) -> tuple[dict[int, pa.Table], dict[int, LanceNamespaceError]]:
    """Check requests in themselves, and against those before them; return the accepted ones, and the others' errors."""
    accepted: dict[int, pa.Table] = {}
    errors: dict[int, LanceNamespaceError] = {}
    seen: set[Key] = set()
    for position, request in enumerate(requests):
        try:
            check_new_keys(ctx, table, key, request)
        except LanceNamespaceError as error:
            errors[position] = error
            continue
        tuples = key_tuples(request) if len(requests) > 1 else []
        if (twice := next((index for index, values in enumerate(tuples) if values in seen), None)) is not None:
            values = tuple(column[twice].as_py() for column in request.columns)
            errors[position] = duplicate_error(ctx, table, key, values, "was inserted by another request just now")
            continue
        seen.update(tuples)
        accepted[position] = request
    return accepted, errors
