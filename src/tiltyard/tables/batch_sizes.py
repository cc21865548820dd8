"""How many rows a scan decodes and computes at once: as many as fit into a bound of memory.

Lance reads batches of rows, whatever they come to: 8,192 rows over a dictionary of two texts of 200 KB are 400 KB in a
file, and 1.6 GB as soon as `upper(…)` makes plain texts of them. Its own `batch_size_bytes` corrects a batch by the
last one, which is too late for the first, and it counts a dictionary once. So what a row may come to is looked up:

* a value of fixed width says it by its type;
* a dictionary by its longest value, read once for each data file;
* all else by the pages of its data files. Lance begins a new page about every 8 MB of values before it compresses them,
  so that a page of few rows has wide ones, however small it is in the file.
"""

from __future__ import annotations

import re
import threading
import weakref
from bisect import bisect_right
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from lance.file import LanceFileReader
from lance_namespace.errors import InvalidInputError

from tiltyard.tables.growing import growth_of

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
SMALL_ANSWER = 1000
"""Rows of an answer up to which its columns are read as they are: it is no larger than what its caller gets."""

PAGE_BYTES = 16 << 20
"""About what the values of a page come to: 8 MB, unless they came in one large batch."""
_LAST_PAGE_BYTES = 8 << 20
_LAST_PAGE_TIMES = 64
"""A file's last page may have any number of rows: it is taken to be so many times what it takes in the file."""
_MOST_LOOKS = 32
"""Data files that one query reads the pages of; where there are more, it takes batches of `_UNKNOWN_ROWS`."""
_UNKNOWN_ROWS = 1024
_REMEMBERED = 50_000
_READ_AHEAD = {"batch_readahead": 2, "io_buffer_size": 32 << 20}
"""What goes with smaller batches: as much is read ahead by default as memory is bounded by here."""
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
_ITEMS = re.compile(r"num_(?:visible_)?items: (\d+)")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns of a version: bytes of a value where they are fixed, and the fields whose values vary.

    `wide` are the names, in small letters, of all whose values are not known to be narrow; `sizes` is what was looked up.
    """

    fixed: Mapping[str, float]
    varying: Mapping[str, pa.Field]
    wide: set[str]
    sizes: dict[str, Sizes] = field(default_factory=dict)


Sizes = tuple[float, ...]
"""Bytes that a column may come to in a batch of each of `_SIZES` rows."""

_layouts: weakref.WeakKeyDictionary[lance.LanceDataset, _Layout] = weakref.WeakKeyDictionary()
_measured: OrderedDict[tuple[str, int], Sizes] = OrderedDict()
_lock = threading.Lock()


def batch_options(
    dataset: lance.LanceDataset, read: Iterable[str] | None, expressions: Mapping[str, str]
) -> dict[str, int]:
    """Return the scanner's `batch_size` where Lance's own number of rows could come to too much, else nothing.

    `read` are the columns that are read as they are, None for all; `expressions` are by what each of them is. Raises
    InvalidInputError for expressions that are too large for any batch, and Lance's errors.
    """
    layout = _layout_of(dataset)
    if read == () and all(_is_plain(text, layout) for text in expressions.values()):
        return {}
    weights = _weights(layout, read, expressions)
    fixed = sum(weight * layout.fixed[name] for name, weight in weights.items() if name in layout.fixed)
    fixed += sum(_constant(text, what) for what, text in expressions.items())
    totals = [fixed * size for size in _SIZES]
    least = MOST_ROWS
    for name, weight in weights.items():
        if name in layout.varying:
            sizes, known = _sizes_of(dataset, layout, name)
            least = least if known else _UNKNOWN_ROWS
            totals = [total + weight * size for total, size in zip(totals, sizes, strict=True)]
    fitting = [size for size, total in zip(_SIZES, totals, strict=True) if total <= BATCH_BYTES and size <= least]
    if fitting:
        return {} if fitting[0] == MOST_ROWS else {"batch_size": fitting[0], **_READ_AHEAD}
    if expressions and totals[-1] > BATCH_BYTES * FEWEST_ROWS:
        what = next(iter(expressions)) if len(expressions) == 1 else "expressions of this request"
        raise InvalidInputError(
            f"The {what} would make {totals[-1] / (1 << 20):.0f} MiB of {FEWEST_ROWS} rows of this table:"
            " name columns of wide values less often, or read them as they are."
        )
    return {"batch_size": FEWEST_ROWS, **_READ_AHEAD}


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
        growth = _COPIES * growth_of(text, what)
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
        return _COPIES * growth_of(text, what) * max(map(len, texts))
    return 8.0 * growth_of(text, what)


def _sizes_of(dataset: lance.LanceDataset, layout: _Layout, name: str) -> tuple[Sizes, bool]:
    """Return what a column of varying values may come to, and whether all of its files are known by now."""
    sizes = layout.sizes.get(name)
    if sizes is not None:
        return sizes, True
    sizes, known = _largest(dataset, layout.varying[name])
    if known:
        layout.sizes[name] = sizes
        if sizes[0] <= _NARROW_BATCH:
            layout.wide.discard(name.lower())
    return sizes, known


def _largest(dataset: lance.LanceDataset, column: pa.Field) -> tuple[Sizes, bool]:
    """Return the most that a column comes to in any of its data files, as far as they were looked at."""
    measure = _dictionary_sizes if _has_dictionary(column.type) else _page_sizes
    ids = _leaf_ids(dataset, column.name)
    largest: Sizes = (0.0,) * len(_SIZES)
    looks = 0
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if ids.isdisjoint(file.fields):
                continue
            key = (file.path, min(ids))
            sizes = _measured.get(key)
            if sizes is None:
                if looks >= _MOST_LOOKS:
                    return largest, False
                looks += 1
                sizes = measure(dataset, fragment, file, column, ids)
                _remember(key, sizes)
            largest = tuple(map(max, largest, sizes))
    return largest, True


def _remember(key: tuple[str, int], sizes: Sizes) -> None:
    """Keep what a data file says: its name is never used again."""
    with _lock:
        _measured[key] = sizes
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
) -> Sizes:
    """Measure a column that has dictionaries by reading it once, as it lies in its file."""
    widest = 0.0
    for batch in fragment.scanner(columns=[column.name], batch_size=_UNKNOWN_ROWS).to_reader():
        widest = max(widest, unfolded_width(batch.column(0)))
    return tuple(widest * size for size in _SIZES)


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
) -> Sizes:
    """Look up, for each number of rows, what the pages come to that so many rows may touch."""
    if file.file_major_version < 2 or file.base_id is not None:
        return tuple(PAGE_BYTES * size / _UNKNOWN_ROWS for size in _SIZES)  # its pages cannot be read here
    reader = LanceFileReader(f"{dataset.uri.rstrip('/')}/data/{file.path}", storage_options=dataset._storage_options)
    metadata = reader.metadata()
    totals = [0.0] * len(_SIZES)
    for identity, at in zip(file.fields, file.column_indices, strict=True):
        if identity in ids and 0 <= at < len(metadata.columns) and (pages := metadata.columns[at].pages):
            sizes = window_sizes(_page_rows(pages, metadata.num_rows, kinds.is_nested(column.type)), _weighed(pages))
            totals = [total + size for total, size in zip(totals, sizes, strict=True)]
    return tuple(totals)


def _page_rows(pages: Sequence[Any], rows: int, nested: bool) -> list[float]:
    """Return the rows of each page: as it says; what is left is shared by those that say nothing."""
    if nested:  # they count what is inside
        return [rows / len(pages)] * len(pages)
    counts = [_ITEMS.findall(page.encoding) for page in pages]
    known = [int(found[-1]) if found else None for found in counts]
    silent = known.count(None)
    left = max(0, rows - sum(count for count in known if count is not None))
    return [left / silent if count is None else count for count in known]


def _weighed(pages: Sequence[Any]) -> list[float]:
    """Return about what the values of each page come to."""
    last = sum(buffer.size for buffer in pages[-1].buffers)
    return [float(PAGE_BYTES)] * (len(pages) - 1) + [float(min(_LAST_PAGE_BYTES, _LAST_PAGE_TIMES * last))]


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
