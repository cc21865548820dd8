"""Plan a change feed: compare the lists of fragments of each version and the one before it.

Files never change. So a fragment that both versions have, with the same files and deletions, has no changed rows, and
nothing of it is read. Of the others, deletion files and lists of row ids tell which rows were removed and added. Rows
themselves are read later, and only those that changed; before that, only keys are, where rows are matched by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance import LanceOperation

from tiltyard.change_feed.groups import (
    CHANGE_FIELDS,
    Change,
    ChangedRows,
    ChangeGroup,
    ChangePlan,
    RewrittenRows,
)
from tiltyard.change_feed.row_identity import RowList, match_rows
from tiltyard.change_feed.table_history import field_ids, is_same_fragment, open_version, read_transaction
from tiltyard.change_feed.version_rows import VersionRows
from tiltyard.model.columns.blob_columns import check_no_blobs
from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    import lance

    from tiltyard.change_feed.version_rows import FragmentOffsets

_WITHOUT_MATCHES = (LanceOperation.Append, LanceOperation.Delete)
_IN_PLACE = (
    LanceOperation.Merge,
    LanceOperation.DataReplacement,
    LanceOperation.DataOverlay,
    LanceOperation.Update,
)
"""Operations that write columns of a fragment anew, and leave its rows where they are."""


def change_schema(dataset: lance.LanceDataset, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a feed: those of changes, then the table's, or some of them.

    Raises RefusedError for a column that the table lacks, one of blobs, and one that is named as one of the feed's.
    """
    schema: pa.Schema = dataset.schema
    names = schema.names if columns is None else columns
    for name in names:
        if name not in schema.names:
            raise RefusedError(f"columns: there is no column '{name}'; there are {', '.join(schema.names)}.")
    if not names:
        raise RefusedError("columns: name at least one column.")
    check_no_blobs(schema, columns)
    fields = [schema.field(name).with_nullable(True).remove_metadata() for name in names]
    both = pa.schema([*CHANGE_FIELDS, *fields])
    if len(set(both.names)) < len(both):
        raise RefusedError("The table has a column named as one of the feed: choose others with columns.")
    return both


def plan_changes(
    dataset: lance.LanceDataset,
    since: int,
    *,
    columns: Sequence[str] | None = None,
    on: Sequence[str] = (),
    branch: str | None = None,
) -> ChangePlan:
    """Plan the changes after the version `since`, up to that of `dataset`, which is of `branch`.

    `on` are columns that identify a row. Raises RefusedError as `change_schema` does and for a `since` that is no
    earlier version, TableVersionNotFoundError for one that was removed.
    """
    until = int(dataset.version)
    if not 0 <= since <= until:
        raise RefusedError(f"since is {since}: it is a version from 0 to {until}, after which changes are read.")
    schema = change_schema(dataset, columns)
    if missing := [name for name in on if name not in dataset.schema.names]:
        raise RefusedError(f"on: there is no column '{missing[0]}'; there are {', '.join(dataset.schema.names)}.")
    newest = tuple(schema.names[len(CHANGE_FIELDS) :])
    after = VersionRows(dataset, branch, newest)
    steps: list[list[ChangeGroup]] = []
    for number in range(until - 1, since - 1, -1):
        before = _open_before(after, number, newest) if number else None
        steps.append(_changes_of(before, after, on))
        if before is not None:
            after = before
    return ChangePlan(since, until, schema, tuple(group for groups in reversed(steps) for group in groups))


def plan_rows(
    dataset: lance.LanceDataset, *, columns: Sequence[str] | None = None, branch: str | None = None
) -> ChangePlan:
    """Plan all rows of a version as insertions that it made, whichever did. Raises RefusedError as `change_schema`."""
    schema = change_schema(dataset, columns)
    rows = VersionRows(dataset, branch, tuple(schema.names[len(CHANGE_FIELDS) :]))
    return ChangePlan(0, rows.number, schema, tuple(_changes_of(None, rows, ())))


def _open_before(after: VersionRows, number: int, newest: tuple[str, ...]) -> VersionRows:
    """Open the version before another one. Raises TableVersionNotFoundError."""
    dataset = open_version(after.dataset, (after.branch, number) if after.branch else number)
    if dataset is None:
        from lance_namespace.errors import TableVersionNotFoundError  # noqa: PLC0415  # not for tasks: it takes long

        where = f"no version of the branch '{after.branch}', or was removed" if after.branch else "removed"
        raise TableVersionNotFoundError(
            f"Changes of version {number + 1} need version {number}, which is {where}: choose a later since."
        )
    return VersionRows(dataset, after.branch, _earlier_names(dataset, after, newest))


def _earlier_names(before: lance.LanceDataset, after: VersionRows, newest: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the names of the feed's columns, `newest`, in the version before.

    A renamed column has the same field id there. One that is missing in a version may be there before, by its name.
    """
    if before.schema.names == after.dataset.schema.names:
        return after.names
    earlier = {field.id(): field.name() for field in before.lance_schema.fields()}
    later = {field.name(): field.id() for field in after.dataset.lance_schema.fields()}
    paths = (
        {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}
        for dataset in (before, after.dataset)
    )
    has_same_ids = bool(set.intersection(*paths))  # rows that replace all others have fields that are counted anew

    def name_before(name: str | None, newest_name: str) -> str | None:
        name = name or newest_name
        if name in before.schema.names:
            return name
        return earlier.get(later[name]) if has_same_ids and name in later else None

    return tuple(map(name_before, after.names, newest))


def _changes_of(before: VersionRows | None, after: VersionRows, keys: Sequence[str]) -> list[ChangeGroup]:
    """Return the changes that the version `after` made."""
    if before is None:
        return [_changed(Change.INSERT, after, after, (number, None)) for number in after.fragments]
    pairs = {number: (before.fragments.get(number), after.fragments.get(number)) for number in before.fragments}
    pairs |= {number: (None, fragment) for number, fragment in after.fragments.items() if number not in pairs}
    has_same_columns = _has_same_columns(before, after)
    differing = [
        number
        for number, (old, new) in pairs.items()
        if old is None or new is None or not (has_same_columns and is_same_fragment(old.metadata, new.metadata))
    ]
    if not differing:
        return []
    transaction = read_transaction(after.dataset, after.number)
    operation = None if transaction is None else transaction.operation
    if isinstance(operation, LanceOperation.Rewrite):
        return []  # a compaction
    removed: list[FragmentOffsets] = []
    added: list[FragmentOffsets] = []
    groups: list[ChangeGroup] = []
    for number in differing:
        old, new = pairs[number]
        if old is not None and new is not None and _has_same_rows(old, new, operation):
            groups += _compare_fragment(before, after, number, removed, added)
            continue
        removed += [(number, None)] if old is not None else []
        added += [(number, None)] if new is not None else []
    has_identity = bool(keys) or (before.dataset.has_stable_row_ids and after.dataset.has_stable_row_ids)
    if removed and added and has_identity and not isinstance(operation, _WITHOUT_MATCHES):
        is_update = isinstance(operation, LanceOperation.Update)
        groups += _match(before, after, removed, added, keys, is_update=is_update)
    else:
        groups += [_changed(Change.DELETE, after, before, rows) for rows in removed]
        groups += [_changed(Change.INSERT, after, after, rows) for rows in added]
    return [group for group in groups if group.rows]


def _has_same_columns(before: VersionRows, after: VersionRows) -> bool:
    """Return whether two versions have the same ones of the feed's columns."""
    return [name is None for name in before.names] == [name is None for name in after.names]


def _has_same_rows(
    old: lance.LanceFragment, new: lance.LanceFragment, operation: LanceOperation.BaseOperation | None
) -> bool:
    """Return whether fragments of one id hold the same rows: others may take an id that a restore has freed."""
    old_files, new_files = ({file.path for file in fragment.metadata.files} for fragment in (old, new))
    return old.physical_rows == new.physical_rows and (bool(old_files & new_files) or isinstance(operation, _IN_PLACE))


def _compare_fragment(
    before: VersionRows,
    after: VersionRows,
    number: int,
    removed: list[FragmentOffsets],
    added: list[FragmentOffsets],
) -> list[ChangeGroup]:
    """Add the rows of a fragment that were deleted, or came back; return those whose values may have changed."""
    old, new = before.fragments[number].metadata, after.fragments[number].metadata
    if old.deletion_file != new.deletion_file:
        was_deleted, is_deleted = before.deletions(number), after.deletions(number)
        gone = np.setdiff1d(is_deleted, was_deleted, assume_unique=True)
        back = np.setdiff1d(was_deleted, is_deleted, assume_unique=True)
        removed += [(number, gone)] if len(gone) else []
        added += [(number, back)] if len(back) else []
    compared = _rewritten_columns(before, after, number)
    if not compared:
        return []
    if old.deletion_file == new.deletion_file:
        rows = before.select(number, None), after.select(number, None)
    else:
        live = np.intersect1d(before.live_offsets(number), after.live_offsets(number), assume_unique=True)
        rows = before.select(number, live), after.select(number, live)
    return [RewrittenRows(after.number, after.time, *rows, compared)]


def _rewritten_columns(before: VersionRows, after: VersionRows, number: int) -> tuple[int, ...]:
    """Return the feed's columns, by number, whose values in a fragment are in other files than before."""
    old, new = before.fragments[number].metadata, after.fragments[number].metadata
    if old.overlays != new.overlays:
        return tuple(range(len(after.names)))
    if old.files == new.files and _has_same_columns(before, after):
        return ()
    files = [
        {field: file.path for file in fragment.files for field in file.fields}  # of two files, the later one counts
        for fragment in (old, new)
    ]

    def paths(version: VersionRows, name: str | None, of: Mapping[int, str]) -> set[tuple[int, str | None]]:
        fields = frozenset[int]() if name is None else field_ids(version.dataset, name)
        return {(field, of[field]) for field in fields if field in of}

    names = enumerate(zip(before.names, after.names, strict=True))
    return tuple(
        column
        for column, (old_name, new_name) in names
        if paths(before, old_name, files[0]) != paths(after, new_name, files[1])
    )


def _match(
    before: VersionRows,
    after: VersionRows,
    removed: Sequence[FragmentOffsets],
    added: Sequence[FragmentOffsets],
    keys: Sequence[str],
    *,
    is_update: bool,
) -> list[ChangeGroup]:
    """Return deletions, insertions and updates: rows that were removed and added again.

    An `is_update` wrote only rows that it changed; others may have moved rows, whose values are compared.
    """
    old_rows, new_rows = RowList.of(before, removed), RowList.of(after, added)
    old_matched, new_matched = match_rows(old_rows, new_rows, keys)
    old_pairs, new_pairs = old_rows.take(old_matched), new_rows.take(new_matched)
    deleted = old_rows.take(np.setdiff1d(np.arange(len(old_rows)), old_matched))
    inserted = new_rows.take(np.setdiff1d(np.arange(len(new_rows)), new_matched))
    changes = [(Change.DELETE, before, deleted), (Change.INSERT, after, inserted)]
    groups: list[ChangeGroup] = [
        _changed(change, after, version, part) for change, version, rows in changes for part in rows.by_fragment()
    ]
    compared = () if is_update else tuple(range(len(after.names)))
    return groups + _rewritten(before, after, old_pairs, new_pairs, compared)


def _rewritten(
    before: VersionRows, after: VersionRows, old: RowList, new: RowList, compared: tuple[int, ...]
) -> list[ChangeGroup]:
    """Return rows that were written again, which are at the same place in both lists, by their two fragments."""
    groups: list[ChangeGroup] = []
    for left, right in np.unique(np.stack([old.fragments, new.fragments], axis=1), axis=0):
        chosen = np.flatnonzero((old.fragments == left) & (new.fragments == right))
        chosen = chosen[np.argsort(new.offsets[chosen])]
        before_rows = before.select(int(left), old.offsets[chosen].astype(np.uint32))
        after_rows = after.select(int(right), new.offsets[chosen].astype(np.uint32))
        groups.append(RewrittenRows(after.number, after.time, before_rows, after_rows, compared))
    return groups


def _changed(change: Change, version: VersionRows, source: VersionRows, rows: FragmentOffsets) -> ChangedRows:
    return ChangedRows(change, version.number, version.time, source.select(*rows))


def count_changed_rows(before: lance.LanceDataset, after: lance.LanceDataset, branch: str | None) -> dict[Change, int]:
    """Count the rows that one version inserted, updated and deleted, without reading values: by stable row ids.

    Rows that may have been rewritten as they were count as updated.
    """
    old, new = VersionRows(before, branch, ()), VersionRows(after, branch, ())
    counts = dict.fromkeys(Change, 0)
    for group in _changes_of(old, new, ()):
        if isinstance(group, ChangedRows):
            counts[group.change] += group.rows
        else:
            counts[Change.UPDATE_AFTER] += group.after.rows
    return counts
