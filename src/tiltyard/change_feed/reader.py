"""Read changed rows, in the driver or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.change_feed.groups import CHANGE_FIELDS, Change, ChangedRows, ChangeGroup, RewrittenRows
from tiltyard.change_feed.table_history import get_fragment
from tiltyard.change_feed.version_rows import take_rows
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import cast_array

if TYPE_CHECKING:
    from datetime import datetime

    import lance
    from numpy.typing import NDArray

    from tiltyard.change_feed.groups import RowSelection

    Mask = NDArray[np.bool_]
    Positions = NDArray[np.uint32]

OpenVersion = Callable[[int], "lance.LanceDataset"]

BATCH_ROWS = 8192
"""Rows that are read at once."""
_UPDATE = (Change.UPDATE_BEFORE, Change.UPDATE_AFTER)


def read_changes(
    groups: Iterable[ChangeGroup], schema: pa.Schema, open_version: OpenVersion
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of groups, with the columns of a plan. Raises RefusedError for a value that no longer fits."""
    for batches in read_groups(groups, schema, open_version):
        yield from batches


def read_groups(
    groups: Iterable[ChangeGroup], schema: pa.Schema, open_version: OpenVersion
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows of each group, as `read_changes`, to be read before those of the next one."""
    opened: dict[int, lance.LanceDataset] = {}

    def open_once(version: int) -> lance.LanceDataset:
        if version not in opened:
            while len(opened) > 1:  # groups are in the order of versions, and each reads one or two
                del opened[min(opened)]
            opened[version] = open_version(version)
        return opened[version]

    for group in groups:
        if isinstance(group, ChangedRows):
            yield _read_rows(group, schema, open_once)
        else:
            yield _read_updates(group, schema, open_once)


def _read_rows(group: ChangedRows, schema: pa.Schema, open_version: OpenVersion) -> Iterator[pa.RecordBatch]:
    for columns in _read_selection(open_version(group.selection.version), group.selection, schema):
        yield _batch(group.change, group.version, group.time, columns, schema)


def _read_selection(
    dataset: lance.LanceDataset, selection: RowSelection, schema: pa.Schema
) -> Iterator[list[pa.Array]]:
    """Yield the columns of the table, batch by batch."""
    fields = list(schema)[len(CHANGE_FIELDS) :]
    names = [name for name in selection.names if name is not None]
    if selection.positions is not None or not names:
        for positions in _windows(selection):
            yield _take(dataset, selection, fields, positions)
        return
    fragment = get_fragment(dataset, selection.fragment)
    for batch in dataset.scanner(fragments=[fragment], columns=names, batch_size=BATCH_ROWS).to_batches():
        yield _columns(batch, selection, fields)


def _read_updates(group: RewrittenRows, schema: pa.Schema, open_version: OpenVersion) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose values differ, each as it was and then as it is; of others read what is compared alone."""
    fields = list(schema)[len(CHANGE_FIELDS) :]
    compared = [fields[column] for column in group.compared]
    sides = [(open_version(selection.version), selection) for selection in (group.before, group.after)]
    narrow = [
        (dataset, replace(selection, names=tuple(selection.names[column] for column in group.compared)))
        for dataset, selection in sides
    ]
    for places in zip(_windows(group.before), _windows(group.after), strict=True):
        differs = np.full(len(places[0]), not compared)
        values = (_take(*side, compared, positions) for side, positions in zip(narrow, places, strict=True))
        for left, right in zip(*values, strict=True):
            differs |= differing_rows(left, right)
        if not differs.any():
            continue
        before, after = (
            _batch(change, group.version, group.time, _take(*side, fields, positions[differs]), schema)
            for change, side, positions in zip(_UPDATE, sides, places, strict=True)
        )
        yield _pair_rows(before, after)


def _pair_rows(before: pa.RecordBatch, after: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of two batches of one length, each of the first before that of the second."""
    order = pa.array(np.arange(2 * before.num_rows).reshape(2, -1).T.ravel())
    columns = [pa.concat_arrays(pair).take(order) for pair in zip(before.columns, after.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=before.schema)


def _windows(selection: RowSelection) -> Iterator[Positions]:
    """Yield the positions of a selection, some at a time."""
    for start in range(0, selection.rows, BATCH_ROWS):
        end = min(start + BATCH_ROWS, selection.rows)
        if selection.positions is None:
            yield np.arange(start, end, dtype=np.uint32)
        else:
            yield np.frombuffer(selection.positions, np.uint32, end - start, 4 * start)


def _take(
    dataset: lance.LanceDataset, selection: RowSelection, fields: Sequence[pa.Field], positions: Positions
) -> list[pa.Array]:
    names = [name for name in selection.names if name is not None]
    if not names:
        return [pa.nulls(len(positions), field.type) for field in fields]
    return _columns(take_rows(dataset, selection.fragment, names, positions), selection, fields)


def _columns(rows: pa.RecordBatch | pa.Table, selection: RowSelection, fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return the columns in the types of the newest version; nulls for one that this version lacks."""
    columns = []
    for name, field in zip(selection.names, fields, strict=True):
        if name is None:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        try:
            columns.append(array if array.type == field.type else cast_array(array, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RefusedError(
                f"Column '{name}' was {array.type} in version {selection.version}, and has a value that is no "
                f"{field.type}: leave the column out, or read changes since a later version."
            ) from error
    return columns


def _batch(
    change: Change, version: int, time: datetime, columns: Sequence[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    rows = len(columns[0]) if columns else 0
    facts = [
        pa.repeat(pa.scalar(value, field.type), rows)
        for value, field in zip((change.value, version, time), CHANGE_FIELDS, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*facts, *columns], schema=schema)


def differing_rows(before: pa.Array, after: pa.Array) -> Mask:
    """Return for each row whether the values differ, of two arrays of one type and length.

    Nulls are the same, and floating-point numbers of the same bits, so that NaN is.
    """
    valid_before, valid_after = (np.asarray(array.is_valid()) for array in (before, after))
    differs: Mask = valid_before != valid_after
    both = np.flatnonzero(valid_before & valid_after)
    if len(both):
        positions = pa.array(both)
        differs[both] = _differing_values(before.take(positions), after.take(positions))
    return differs


def _differing_values(before: pa.Array, after: pa.Array) -> Mask:
    """Return as `differing_rows`, of arrays without nulls."""
    kind = before.type
    if isinstance(before, pa.ExtensionArray):
        return differing_rows(before.storage, after.storage)
    if pa.types.is_dictionary(kind):
        return differing_rows(before.dictionary_decode(), after.dictionary_decode())
    if pa.types.is_floating(kind):
        bits = f"u{kind.bit_width // 8}"
        return np.asarray(before.to_numpy().view(bits) != after.to_numpy().view(bits))
    if pa.types.is_struct(kind):
        differs = np.zeros(len(before), bool)
        for left, right in zip(before.flatten(), after.flatten(), strict=True):
            differs |= differing_rows(left, right)
        return differs
    if pa.types.is_fixed_size_list(kind):
        values = differing_rows(before.flatten(), after.flatten())
        return np.asarray(values.reshape(len(before), kind.list_size).any(axis=1))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _differing_lists(before, after)
    if pa.types.is_nested(kind):
        pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
        return np.fromiter((left != right for left, right in pairs), bool, len(before))
    return np.asarray(pc.not_equal(before, after))


def _differing_lists(before: pa.Array, after: pa.Array) -> Mask:
    differs = np.array(pc.not_equal(pc.list_value_length(before), pc.list_value_length(after)))
    same_length = pa.array(np.flatnonzero(~differs))
    left, right = before.take(same_length), after.take(same_length)
    parents = np.asarray(pc.list_parent_indices(left))
    values = differing_rows(left.flatten(), right.flatten())
    differs[np.asarray(same_length)[parents[values]]] = True
    return differs
