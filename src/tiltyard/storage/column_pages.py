"""What the columns of a version are made of: for each fragment a page, known by its content; and rows of such pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import lance
    from lance.fragment import FragmentMetadata

MOST_FRAGMENTS = 64
"""To look at so many, once a version, takes about as long as to open the table."""
_GUESSED_WIDTH = 64
"""Bytes of a value whose length varies, as guessed before it is read; what is read is measured."""
_OFFSETS = 0xFFFF_FFFF
_VARYING = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list)


class Rows:
    """Columns of one version of a table, all its rows, by row address."""

    def __init__(self, schema: pa.Schema, fragments: Mapping[int, pa.RecordBatch], by_id: bool) -> None:
        """`by_id`: row ids are addresses in this table."""
        self.fields = {one.name: one for one in schema}
        self.address = "_rowid" if by_id else "_rowaddr"
        self._fragments = fragments
        self._only = fragments.get(0) if len(fragments) == 1 else None

    def take(self, addresses: pa.UInt64Array) -> list[pa.Array]:
        """The columns at these rows, in their order. Raises KeyError, pa.ArrowIndexError for what is no row here."""
        if self._only is not None:
            return list(self._only.take(addresses).columns)
        places = addresses.to_numpy()
        numbers, offsets = places >> 32, places & _OFFSETS
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        parts = [
            self._fragments[int(numbers[rows[0]])].take(pa.array(offsets[rows]))
            for rows in np.split(order, starts[1:])
            if len(rows)
        ]
        if not parts:
            return list(next(iter(self._fragments.values())).slice(0, 0).columns)
        return list(pa.concat_batches(parts).take(pa.array(np.argsort(order, kind="stable"))).columns)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a version; `content` is what its values are made of: the same text, the same values."""

    number: int
    rows: int
    deleted: bool
    content: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be kept: its field, the id that Lance gives it for good, and about how wide a value is."""

    field: pa.Field
    id: int
    width: int


@dataclass(frozen=True, slots=True)
class Version:
    """What can be kept of a handle; `rows` counts those of its fragments, deleted ones too."""

    fragments: tuple[Fragment, ...]
    columns: Mapping[str, Column]
    rows: int
    by_id: bool

    def pages(self, names: Iterable[str]) -> Iterator[Page]:
        """All that these columns consist of."""
        return (Page(fragment, self.columns[name]) for fragment in self.fragments for name in names)

    def size(self, names: Iterable[str]) -> int:
        """About how many bytes these columns take."""
        return self.rows * sum(self.columns[name].width for name in names)


@dataclass(frozen=True, slots=True)
class Page:
    """A column of a fragment."""

    fragment: Fragment
    column: Column

    @property
    def key(self) -> Key:
        return self.fragment.content, self.column.id

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.fragment.rows * self.column.width


Key = tuple[str, int]
Names = tuple[str, ...]


def version_of(dataset: lance.LanceDataset, most: int) -> Version | None:
    """What can be kept of a handle in `most` bytes; None if nothing."""
    if not 0 < dataset.count_rows() <= most:
        return None  # each takes a byte at least; the fragments of a huge table take long to list
    found = dataset.get_fragments()
    if not 0 < len(found) <= MOST_FRAGMENTS:
        return None
    fragments = [fragment.metadata for fragment in found]
    if not all(fragment.physical_rows for fragment in fragments):
        return None  # old manifests do not say
    ids = {one.name(): one.id() for one in dataset.lance_schema.fields()}
    columns = {
        one.name: Column(one, ids[one.name], width)
        for one in dataset.schema
        if one.name in ids and not any(sign in one.name for sign in ".`") and (width := _width(one)) is not None
    }
    described = tuple(_described(fragment) for fragment in fragments)
    by_id = all(fragment.row_id_meta is None for fragment in fragments)
    return Version(described, columns, sum(fragment.rows for fragment in described), by_id)


def _described(fragment: FragmentMetadata) -> Fragment:
    content: dict[str, Any] = fragment.to_json()
    deletion = content.pop("deletion_file")
    return Fragment(fragment.id, fragment.physical_rows, deletion is not None, json.dumps(content, sort_keys=True))


def _width(column: pa.Field) -> int | None:
    """About how many bytes a value has; None for kinds that Lance does not read as its files have them, as blobs."""
    if column.metadata and any(key.startswith((b"ARROW:extension", b"lance-encoding:blob")) for key in column.metadata):
        return None
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if pa.types.is_fixed_size_list(kind):
        width = _width(kind.value_field)
        return None if width is None else width * kind.list_size
    if any(is_list(kind) for is_list in _LISTS):
        return None if _width(kind.value_field) is None else _GUESSED_WIDTH
    if pa.types.is_struct(kind):
        widths = [_width(one) for one in kind]
        return None if None in widths else sum(width for width in widths if width is not None)
    if any(varies(kind) for varies in _VARYING):
        return _GUESSED_WIDTH
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width) // 8)
    return None
