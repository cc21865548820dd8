"""Compare two manifests of a table: which fragments of the later one may have other values in some columns.

A manifest of a client may have messages that cannot be read: the functions raise InvalidInputError then.
Reads the protobuf messages of Lance's table format as `manifest_format` does, with these fields besides:

    1   column: 2 name, 3 id, 4 id of the parent column
    2   fragment: 1 id, 2 data file (1 path, 2 ids of its columns, packed; 7 id of its base),
        3 deletion file (4 number of deleted rows), 4 rows, deleted ones included
    23  position of the transaction, whose field above 99 is its operation
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.storage.manifests.manifest_format import (
    byte_fields,
    message_fields,
    message_of,
    number_of,
    read_varint,
    refuse_malformed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COLUMNS, _FRAGMENTS, _TRANSACTION = 1, 2, 23
_TOP_LEVEL = 2**64 - 1
_REWRITE = 104
_DELETING = (101, 105, 108)
"""Deletes, new columns, updates and merges: of a fragment that they leave, more rows are deleted than before."""
_FIRST_OPERATION = 100
_OPERATIONS = {
    100: "append",
    101: "delete",
    102: "overwrite",
    103: "create_index",
    104: "rewrite",
    105: "merge",
    106: "restore",
    107: "reserve_fragments",
    108: "update",
    109: "project",
    110: "update_config",
    111: "data_replacement",
}
"""The operations of transactions by their fields, as Lance names them."""
_ADDED_FRAGMENTS = {100: 1, 108: 3}
"""By operation, the field that has the fragments which it adds."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """How a version differs from an earlier one in the values of some columns, by the ids of its fragments.

    - `unchanged`: fragments that both versions have, with the same files and the same deletions.
    - `kept`: fragments whose values are those of the earlier version, of which more rows may be deleted by now.
    - `brought`: fragments that may have values which the earlier version did not have.
    """

    unchanged: frozenset[int]
    kept: frozenset[int]
    brought: frozenset[int]


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """What a version's own transaction says of it: its operation, and the rows of the fragments that it adds.

    None for what it does not say.
    """

    operation: str | None
    added: int | None


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A fragment: the files that have the columns in question, and its rows."""

    id: int
    files: tuple[tuple[object, object], ...]
    rows: int
    deleted: int
    deletions: bytes


@refuse_malformed()
def column_numbers(content: bytes) -> dict[str, int]:
    """Return the ids of a valid manifest's top-level columns by their names."""
    columns = (dict(message_fields(column)) for column in byte_fields(message_of(content), _COLUMNS))
    return {
        name.decode(): number
        for column in columns
        if column.get(4) == _TOP_LEVEL and isinstance(name := column.get(2), bytes)
        if isinstance(number := column.get(3, 0), int)
    }


@refuse_malformed()
def field_numbers(content: bytes) -> dict[str, frozenset[int]]:
    """Return the ids of a valid manifest's top-level columns by their names, each with those of the fields in it."""
    columns = [dict(message_fields(column)) for column in byte_fields(message_of(content), _COLUMNS)]
    parents = {number_of(column, 3): number_of(column, 4) for column in columns}
    numbers = {name: {number} for name, number in column_numbers(content).items()}
    names = {number: name for name, number in column_numbers(content).items()}
    for number in parents:
        top, levels = number, 0
        while parents.get(top, _TOP_LEVEL) != _TOP_LEVEL:
            top, levels = parents[top], levels + 1
            if levels > len(parents):
                raise IndexError("a column is within itself")
        if top in names:
            numbers[names[top]].add(number)
    return {name: frozenset(fields) for name, fields in numbers.items()}


@refuse_malformed()
def count_rows(content: bytes) -> int:
    """Return the number of rows of a valid manifest."""
    return _live_rows(_parse(raw, frozenset()) for raw in byte_fields(message_of(content), _FRAGMENTS))


@refuse_malformed()
def count_fewer_rows(before: bytes, after: bytes) -> int:
    """Return how many rows less a valid manifest has than one before it, at the cost of the fragments that differ."""
    earlier, later = (frozenset(byte_fields(message_of(content), _FRAGMENTS)) for content in (before, after))
    gone, new = ([_parse(raw, frozenset()) for raw in side] for side in (earlier - later, later - earlier))
    return _live_rows(gone) - _live_rows(new)


@refuse_malformed()
def committed_rows(content: bytes) -> CommittedRows:
    """Return what the transaction in a valid manifest says, at the cost of the fragments that it names."""
    found = _transaction(content)
    if found is None:
        return CommittedRows(None, None)
    number, operation = found
    field = _ADDED_FRAGMENTS.get(number)
    fragments = [] if field is None else [_parse(raw, frozenset()) for raw in byte_fields(operation, field)]
    is_known = field is not None and all(fragment.rows for fragment in fragments)  # a writer may not have said
    return CommittedRows(_OPERATIONS.get(number), _live_rows(fragments) if is_known else None)


@refuse_malformed()
def compare_rows(before: bytes | None, after: bytes, columns: frozenset[int], *, consecutive: bool) -> RowChange:
    """Compare the values of columns, by their ids, between two valid manifests; None before: all rows are brought.

    `consecutive` says that no version is between the two, so that the later one's transaction is all that happened. A
    compaction brings no values: it only moves rows, as many as it removes. A restore may bring deleted rows back.
    """
    earlier = frozenset(byte_fields(message_of(before), _FRAGMENTS)) if before is not None else frozenset()
    later = list(byte_fields(message_of(after), _FRAGMENTS))
    unchanged = frozenset(_fragment_id(raw) for raw in later if raw in earlier)
    changed = [_parse(raw, columns) for raw in later if raw not in earlier]
    if not changed:
        return RowChange(unchanged, frozenset(), frozenset())
    removed = [_parse(raw, columns) for raw in earlier.difference(later)]
    operation = _operation(after) if consecutive else None
    kept = [fragment for fragment in changed if fragment in removed]  # which have only gained columns
    if operation in _DELETING:
        deleted = {(fragment.id, fragment.files): fragment.deleted for fragment in removed}
        kept += [item for item in changed if item.deleted > deleted.get((item.id, item.files), item.deleted)]
    kept_ids = frozenset(fragment.id for fragment in kept)
    brought = [fragment for fragment in changed if fragment.id not in kept_ids]
    if operation == _REWRITE:
        gone = [fragment for fragment in removed if fragment.id not in kept_ids]
        if _live_rows(brought) == _live_rows(gone):
            return RowChange(unchanged, kept_ids | {fragment.id for fragment in brought}, frozenset())
    return RowChange(unchanged, kept_ids, frozenset(fragment.id for fragment in brought))


def _live_rows(fragments: Iterable[_Fragment]) -> int:
    return sum(fragment.rows - fragment.deleted for fragment in fragments)


def _fragment_id(raw: bytes) -> int:
    """Return the id of a fragment, which comes first in its message."""
    return read_varint(raw, 1)[0] if raw[:1] == b"\x08" else 0


def _parse(raw: bytes, columns: frozenset[int]) -> _Fragment:
    fields = dict(message_fields(raw))
    number, rows, deletions = number_of(fields, 1), number_of(fields, 4), fields.get(3, b"")
    if not isinstance(deletions, bytes):
        raise IndexError("a deletion file is no message")
    deleted = number_of(dict(message_fields(deletions)), 4)
    files = tuple(
        (file.get(1), file.get(7))
        for file in map(dict, map(message_fields, byte_fields(raw, 2)))
        if columns.intersection(_packed(file.get(2, b"")))
    )
    return _Fragment(number, files or ((number, None),), rows, deleted, deletions)


def _packed(values: int | bytes | None) -> Iterator[int]:
    """Iterate over packed integers."""
    if not isinstance(values, bytes):
        return
    at = 0
    while at < len(values):
        value, at = read_varint(values, at)
        yield value


def _operation(content: bytes) -> int | None:
    """Return the number of the operation of the transaction in a valid manifest; None for one without it."""
    found = _transaction(content)
    return None if found is None else found[0]


def _transaction(content: bytes) -> tuple[int, bytes] | None:
    """Return the operation of the transaction in a valid manifest, its number and its message; None without one."""
    position = dict(message_fields(message_of(content), skipping=_FRAGMENTS)).get(_TRANSACTION)
    if not isinstance(position, int):
        return None
    (length,) = struct.unpack_from("<I", content, position)
    transaction = content[position + 4 : position + 4 + length]
    fields = message_fields(transaction)
    return next(
        ((number, value) for number, value in fields if number >= _FIRST_OPERATION and isinstance(value, bytes)), None
    )
