"""How many rows a scan decodes and computes at once: as many as fit into a bound of memory.

Lance reads batches of rows, whatever they come to: 8,192 rows over a dictionary of two texts of 200 KB are 400 KB in a
file, and 1.6 GB as soon as `upper(…)` makes plain texts of them. Its own `batch_size_bytes` corrects a batch by the
last one, which is too late for the first, and it counts a dictionary once. So what a row may come to is looked up:

* a value of fixed width says it by its type;
* a dictionary by its longest value, read once for each data file;
* all else by how the pages of its data files are encoded (`page_sizes`). Where that says nothing, as of large values
  that are compressed each, batches are small and corrected by the last one.
"""

from __future__ import annotations

import re
import threading
import weakref
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from lance.file import LanceFileReader
from lance_namespace.errors import InvalidInputError

from tiltyard.tables.query.page_sizes import page_sizes
from tiltyard.tables.sql.amplification import estimate_growth

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import lance
    from lance.fragment import DataFile

BATCH_BYTES = 32 << 20
"""What the rows of one batch may come to, with all that expressions make of them."""
MOST_ROWS = 8192
"""Rows of a batch that nothing bounds: Lance's own number."""
FEWEST_ROWS = 16
"""Batches of fewer rows take longer than anybody waits: an expression that needs them is refused."""
CHANGE_BYTES = 512 << 20
"""What a batch of an update or a delete may come to: Lance takes no number of rows there, and takes `MOST_ROWS`."""
ORDER_BYTES = 1 << 30
"""What the rows of an ordered answer may come to: Lance holds all of them before it gives the first."""
SMALL_ANSWER = 1000
"""Rows of an answer up to which its columns are read as they are: it is no larger than what its caller gets."""

_MOST_LOOKS = 32
"""Data files that one query looks at; where there are more, it takes batches of `_UNKNOWN_ROWS`."""
_UNKNOWN_ROWS = 256
"""Rows of a batch whose values may be of any size."""
_LOOKING_ROWS = 64
"""Rows of a batch that is read to see what its rows come to."""
_REMEMBERED = 50_000
_FIRST_VERSION = 2
_WITH_IT = {"batch_readahead": 2, "batch_size_bytes": 8 << 20, "io_buffer_size": 32 << 20}
"""What goes with smaller batches: less is read ahead, and a batch that came to more than was thought makes the next
smaller."""
_NARROW = 64
"""Bytes of a value that any short expression may have, however often it names it."""
_NARROW_BATCH = 1 << 20
"""What a batch of narrow values of varying width comes to at most."""
_SHORT = 128
_COPIES = 2
"""How often an expression has a value in memory each time it names its column: as it comes, and as the result."""
_LONG = 100_000
"""Characters of an expression that is not taken apart into words."""

_SIZES = tuple(MOST_ROWS >> shift for shift in range((MOST_ROWS // FEWEST_ROWS).bit_length()))
_WORD = re.compile(r"\w+")
_TEXT = re.compile(r"'(?:[^']|'')*'")


Sizes = tuple[float, ...]
"""Bytes that a column may come to in a batch of each of `_SIZES` rows."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was looked up of a column: its sizes, and whether its values may be larger than those."""

    sizes: Sizes
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns of a version: bytes of a value where they are fixed, and the fields whose values vary.

    `wide` are the names, in small letters, of all whose values are not known to be narrow; `looked` is what was looked
    up of those that vary.
    """

    fixed: Mapping[str, float]
    varying: Mapping[str, pa.Field]
    wide: set[str]
    looked: dict[str, _Looked] = field(default_factory=dict)


_layouts: weakref.WeakKeyDictionary[lance.LanceDataset, _Layout] = weakref.WeakKeyDictionary()
_measured: OrderedDict[tuple[str, int], _Looked] = OrderedDict()
_lock = threading.Lock()


def batch_options(
    dataset: lance.LanceDataset, read: Iterable[str] | None, expressions: Mapping[str, str]
) -> dict[str, int]:
    """Return the scanner's `batch_size` where Lance's own number of rows could come to too much, else nothing.

    `read` are the columns that are read as they are, None for all; `expressions` are by what each of them is. Raises
    InvalidInputError for expressions that are too large for any batch, and Lance's errors.
    """
    if read == () and _are_plain(dataset, expressions):
        return {}
    totals, least = _totals(dataset, read, expressions)
    fitting = [size for size, total in zip(_SIZES, totals, strict=True) if total <= BATCH_BYTES and size <= least]
    if fitting:
        return {} if fitting[0] == MOST_ROWS else {"batch_size": fitting[0], **_WITH_IT}
    if expressions and totals[-1] > BATCH_BYTES * FEWEST_ROWS:
        raise _too_large(expressions, totals[-1], FEWEST_ROWS)
    return {"batch_size": FEWEST_ROWS, **_WITH_IT}


def check_change(dataset: lance.LanceDataset, expressions: Mapping[str, str]) -> None:
    """Check expressions that Lance computes for as many rows at once as it likes. Raises InvalidInputError.

    Columns whose values may be of any size are read for it, in small batches: to compute with them reads them again.
    """
    if _are_plain(dataset, expressions):
        return
    layout = _layout_of(dataset)
    for name in _weights(layout, (), expressions):
        if name in layout.varying and (looked := _look_up(dataset, layout, name)).unknown:
            layout.looked[name] = _read_through(dataset, layout.varying[name], looked)
    totals, _ = _totals(dataset, (), expressions)
    if totals[0] > CHANGE_BYTES:
        raise _too_large(expressions, totals[0], MOST_ROWS)


def _read_through(dataset: lance.LanceDataset, column: pa.Field, looked: _Looked) -> _Looked:
    """Return what rows of a column come to, by reading them."""
    largest = 0.0
    for fragment in dataset.get_fragments():
        window: deque[tuple[int, int]] = deque()
        rows = size = 0
        scanner = fragment.scanner(columns=[column.name], batch_size=_LOOKING_ROWS, batch_readahead=1)
        for batch in scanner.to_reader():
            window.append((batch.num_rows, batch.nbytes))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            while rows - window[0][0] >= MOST_ROWS:
                rows, size = rows - window[0][0], size - window.popleft()[1]
            largest = max(largest, size)
    return _Looked((largest, *looked.sizes[1:]), looked.unknown)


def check_order(
    dataset: lance.LanceDataset, read: Iterable[str] | None, expressions: Mapping[str, str], rows: int
) -> None:
    """Check what is held of `rows` rows until they are in order. Raises InvalidInputError."""
    if rows <= SMALL_ANSWER:
        return
    totals, _ = _totals(dataset, read, expressions)
    if totals[0] / MOST_ROWS * rows > ORDER_BYTES:
        raise InvalidInputError(
            f"To order {rows} rows takes about {totals[0] / MOST_ROWS * rows / (1 << 20):.0f} MiB: "
            f"{ORDER_BYTES >> 20} at most, so ask for fewer rows (k), or for fewer columns."
        )


def _too_large(expressions: Mapping[str, str], size: float, rows: int) -> InvalidInputError:
    what = next(iter(expressions)) if len(expressions) == 1 else "expressions of this request"
    return InvalidInputError(
        f"The {what} would make {size / (1 << 20):.0f} MiB of {rows} rows of this table, which are computed at once:"
        " name columns of wide values less often, and call fewer functions on them."
    )


def _totals(
    dataset: lance.LanceDataset, read: Iterable[str] | None, expressions: Mapping[str, str]
) -> tuple[list[float], int]:
    """Return what a batch of each of `_SIZES` rows comes to, and the rows it may have where that is not known yet."""
    layout = _layout_of(dataset)
    weights = _weights(layout, read, expressions)
    fixed = sum(weight * layout.fixed[name] for name, weight in weights.items() if name in layout.fixed)
    fixed += sum(_constant(text, what) for what, text in expressions.items())
    totals = [fixed * size for size in _SIZES]
    least = MOST_ROWS
    for name, weight in weights.items():
        if name in layout.varying:
            looked = _look_up(dataset, layout, name)
            if looked.unknown:
                least = min(least, max(FEWEST_ROWS, int(_UNKNOWN_ROWS / max(1, weight))))
            totals = [total + weight * size for total, size in zip(totals, looked.sizes, strict=True)]
    return totals, least


def _are_plain(dataset: lance.LanceDataset, expressions: Mapping[str, str]) -> bool:
    layout = _layout_of(dataset)
    return all(_is_plain(text, layout) for text in expressions.values())


def _is_plain(text: str, layout: _Layout) -> bool:
    """Whether an expression compares narrow values and makes none, as most do: in no batch does it come to much."""
    if len(text) > _SHORT or "(" in text or "||" in text:
        return False
    small = text.lower()
    return not any(name in small for name in list(layout.wide))


def _layout_of(dataset: lance.LanceDataset) -> _Layout:
    """Look it up once per handle: handles stay at their version."""
    layout = _layouts.get(dataset)
    if layout is None:
        fixed: dict[str, float] = {}
        varying: dict[str, pa.Field] = {}
        for column in dataset.schema:
            width = _width(column.type)
            if width is None:
                varying[column.name] = column
            else:
                fixed[column.name] = width
        wide = (*(name for name, width in fixed.items() if width > _NARROW), *varying)
        layout = _layouts[dataset] = _Layout(fixed, varying, {name.lower() for name in wide})
    return layout


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of a value of a type, None where they vary."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    if kinds.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if kinds.is_struct(kind):
        widths = [_width(kind.field(at).type) for at in range(kind.num_fields)]
        return None if None in widths else sum(width for width in widths if width is not None)
    if kinds.is_null(kind):
        return 0.0
    if kinds.is_dictionary(kind):
        return None
    return kind.bit_width / 8 if kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind) else None


def _weights(layout: _Layout, read: Iterable[str] | None, expressions: Mapping[str, str]) -> Mapping[str, float]:
    """How often a query has each column in memory: as it is read, and for each time that an expression names it."""
    everything = (*layout.fixed, *layout.varying)
    weights: Counter[str] = Counter(everything if read is None else (name.split(".")[0] for name in read))
    for what, text in expressions.items():
        growth = _COPIES * estimate_growth(text, what)
        for name, times in _named(text.lower(), everything):
            weights[name] += 1 + times * growth  # type: ignore[assignment]  # a Counter adds up any numbers
    return weights


def _named(text: str, names: Collection[str]) -> Iterator[tuple[str, int]]:
    """How often an expression names columns; in doubt more often than it does."""
    words = None if len(text) > _LONG else Counter(_WORD.findall(text))
    for name in names:
        small = name.lower()
        times = text.count(small) if words is None or not small.isidentifier() else words[small]
        if times:
            yield name, times


def _constant(text: str, what: str) -> float:
    """Bytes of a row that an expression makes of what it has in itself."""
    if len(text) < _LONG and (texts := _TEXT.findall(text)):
        return _COPIES * estimate_growth(text, what) * max(map(len, texts))
    return 8.0 * estimate_growth(text, what)


def _look_up(dataset: lance.LanceDataset, layout: _Layout, name: str) -> _Looked:
    """Return what a column of varying values may come to."""
    looked = layout.looked.get(name)
    if looked is None:
        looked, complete = _largest(dataset, layout.varying[name])
        if complete:
            layout.looked[name] = looked
            if looked.sizes[0] <= _NARROW_BATCH and not looked.unknown:
                layout.wide.discard(name.lower())
    return looked


def _largest(dataset: lance.LanceDataset, column: pa.Field) -> tuple[_Looked, bool]:
    """Return the most that a column comes to in any of its data files, and whether there was time for all of them."""
    measure = _dictionary_sizes if _has_dictionary(column.type) else _page_sizes
    ids = _leaf_ids(dataset, column.name)
    largest, unknown, looks = (0.0,) * len(_SIZES), False, 0
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if ids.isdisjoint(file.fields):
                continue
            key = (file.path, min(ids))
            looked = _measured.get(key)
            if looked is None:
                if looks >= _MOST_LOOKS:
                    return _Looked(largest, unknown=True), False
                looks += 1
                looked = measure(dataset, fragment, file, column, ids)
                _remember(key, looked)
            largest = tuple(map(max, largest, looked.sizes))
            unknown = unknown or looked.unknown
    return _Looked(largest, unknown), True


def _remember(key: tuple[str, int], looked: _Looked) -> None:
    """Keep what a data file says: its name is never used again."""
    with _lock:
        _measured[key] = looked
        while len(_measured) > _REMEMBERED:
            _measured.popitem(last=False)


def _leaf_ids(dataset: lance.LanceDataset, name: str) -> frozenset[int]:
    """The ids of a column and of all fields inside it."""
    waiting: list[Any] = [field for field in dataset.lance_schema.fields() if field.name() == name]
    ids = set()
    while waiting:
        field = waiting.pop()
        ids.add(field.id())
        waiting += field.children()
    return frozenset(ids)


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kinds.is_dictionary(kind) or any(_has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


def _dictionary_sizes(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, file: DataFile, column: pa.Field, ids: frozenset[int]
) -> _Looked:
    """Measure a column that has dictionaries by reading it once, as it lies in its file."""
    widest = 0.0
    for batch in fragment.scanner(columns=[column.name], batch_size=_UNKNOWN_ROWS).to_reader():
        widest = max(widest, unfolded_width(batch.column(0)))
    return _Looked(tuple(widest * size for size in _SIZES))


def unfolded_width(array: pa.Array) -> float:
    """Return the bytes that a row of an array may come to without its dictionaries: of the longest value in each."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return unfolded_width(array.storage)
    if kinds.is_dictionary(kind):
        return _widest(array.dictionary)
    if kinds.is_struct(kind):
        return sum(unfolded_width(array.field(at)) for at in range(kind.num_fields))
    rows = max(1, len(array))
    if kinds.is_map(kind):
        return (unfolded_width(array.keys) + unfolded_width(array.items)) * -(-len(array.keys) // rows)
    if hasattr(kind, "value_type"):
        values = array.flatten()
        return unfolded_width(values) * max(1, -(-len(values) // rows))
    return float(array.nbytes) / rows


def _widest(values: pa.Array) -> float:
    """Return the bytes of the longest of some values."""
    kind = values.type
    if not len(values):
        return 0.0
    if (width := _width(kind)) is not None:
        return width
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        values = values.cast(pa.large_binary())
        kind = values.type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return float(pc.max(pc.binary_length(values)).as_py() or 0)
    return float(values.nbytes)


def _page_sizes(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, file: DataFile, column: pa.Field, ids: frozenset[int]
) -> _Looked:
    """Look up, for each number of rows, what the pages come to that so many rows may touch."""
    if file.file_major_version < _FIRST_VERSION or file.base_id is not None:
        return _Looked((0.0,) * len(_SIZES), unknown=True)  # its pages cannot be read here
    place = f"{dataset.uri.rstrip('/')}/data/{file.path}"
    local = None if "://" in place else Path(place)
    metadata = LanceFileReader(place, storage_options=dataset._storage_options).metadata()
    totals, unknown = [0.0] * len(_SIZES), False
    for identity, at in zip(file.fields, file.column_indices, strict=True):
        if identity in ids and 0 <= at < len(metadata.columns) and (pages := metadata.columns[at].pages):
            sizes = page_sizes(pages, metadata.num_rows, kinds.is_nested(column.type), local)
            unknown = unknown or any(size.unknown for size in sizes)
            window = window_sizes([size.rows for size in sizes], [size.bytes for size in sizes])
            totals = [total + size for total, size in zip(totals, window, strict=True)]
    return _Looked(tuple(totals), unknown)


def window_sizes(rows: Sequence[float], weights: Sequence[float]) -> Sizes:
    """Return, for each of `_SIZES`, the largest sum of weights that so many rows after one another may have.

    A page's weight is spread over its rows.
    """
    ends = [0.0, *accumulate(rows)]
    sums = [0.0, *accumulate(weights)]

    def until(row: float) -> float:
        page = min(bisect_right(ends, row), len(ends) - 1)
        before, after = ends[page - 1], ends[page]
        part = 1.0 if after <= before else min(1.0, max(0.0, (row - before) / (after - before)))
        return sums[page - 1] + part * (sums[page] - sums[page - 1])

    def largest(size: int) -> float:
        begins = {max(0.0, place) for before, after in pairwise(ends) for place in (before, after - size)}
        return max((until(begin + size) - until(begin) for begin in begins), default=0.0)

    return tuple(largest(size) for size in _SIZES)
