"""Choose the batch size of scans, so that the rows that are decoded and computed at once fit into bounded memory.

Lance reads batches of a fixed number of rows, whatever their size: 8,192 rows over a dictionary of two texts of 200 KB
are 400 KB in a file, and 1.6 GB as soon as `upper(…)` makes plain texts of them. Its own `batch_size_bytes` adjusts a
batch by the previous one, which is too late for the first, and it counts a dictionary once. So the maximal size of a
row is determined before the scan:

* of values of fixed width, from their type;
* of a dictionary, from its longest value, read once for each data file;
* of all others, from the encoding of the pages in their data files (`page_sizes`). Where that gives no bound, as for
  large values that are compressed one by one, batches are small and adjusted by the previous one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from lance.file import LanceFileReader
from lance_namespace.errors import InvalidInputError

from tiltyard.change_feed.table_history import field_ids
from tiltyard.model.schemas.nested_types import has_dictionary
from tiltyard.runtime.cache import lasting_facts
from tiltyard.tables.lance_sql.amplification import estimate_growth
from tiltyard.tables.lance_sql.lexer import TEXT
from tiltyard.tables.query.page_sizes import page_sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import lance
    from lance.fragment import DataFile

    from tiltyard.storage.caches.version_cache import CachedVersion

BATCH_BYTES = 32 << 20
"""Bytes of the rows of one batch at most, with all values that expressions produce from them."""
MAX_ROWS = 8192
"""Rows of a batch without a bound: Lance's own number."""
MIN_ROWS = 16
"""Smaller batches would take longer than any client waits: an expression that needs them is refused."""
CHANGE_BYTES = 512 << 20
"""Bytes of a batch of an update or a delete: Lance has no option for its rows there, and takes `MAX_ROWS`."""
ORDER_BYTES = 1 << 30
"""Bytes of the rows of an ordered response: Lance holds all of them in memory before it returns the first."""
SMALL_RESPONSE_ROWS = 1000
"""Rows of a response up to which its columns are not estimated: reading takes no more memory than the response."""

_MAX_MEASURED_FILES = 32
"""Data files that one query measures; with more, it reads batches of `_UNBOUNDED_ROWS`."""
_UNBOUNDED_ROWS = 256
"""Rows of a batch whose values may be of any size."""
_MEASURED_ROWS = 64
"""Rows of a batch that is read to measure its rows."""
_IN_MEMORY = "memory"
"""How the address of a dataset begins that is not stored."""
_MIN_FILE_VERSION = 2
_READ_LIMITS = {"batch_readahead": 2, "batch_size_bytes": 8 << 20, "io_buffer_size": 32 << 20}
"""Options for smaller batches: less readahead, and a batch larger than estimated makes the next one smaller."""
_NARROW = 64
"""Bytes of a value that any short expression may use, however often it names its column."""
_NARROW_BATCH_BYTES = 1 << 20
"""Bytes of a batch of narrow values of varying width at most."""
_SHORT_EXPRESSION = 128
_COPIES = 2
"""Copies of a value in memory for each time that an expression names its column: the input, and the result."""
_LONG_EXPRESSION = 100_000
"""Characters from which on an expression is not split into words."""

_BATCH_ROWS = tuple(MAX_ROWS >> shift for shift in range((MAX_ROWS // MIN_ROWS).bit_length()))
_WORD = re.compile(r"\w+")
_TEXT = re.compile(TEXT)


Sizes = tuple[float, ...]
"""The bytes that a column may have in a batch of each number of rows in `_BATCH_ROWS`."""


@dataclass(frozen=True, slots=True)
class _ColumnSizes:
    """The measured sizes of a column in batches, and whether its values may be larger."""

    by_batch: Sizes
    is_unbounded: bool = False


@dataclass(frozen=True, slots=True)
class _VersionColumns:
    """The columns of a version: the bytes of values of fixed width, and the fields whose values vary in width.

    `wide` has the names, in lower case, of all columns whose values may be wide; `sizes` has the measured sizes of
    columns that vary.
    """

    fixed: Mapping[str, float]
    varying: Mapping[str, pa.Field]
    wide: set[str]
    sizes: dict[str, _ColumnSizes] = field(default_factory=dict)


def batch_options(
    snapshot: CachedVersion, read_columns: Iterable[str] | None, expressions: Mapping[str, str]
) -> dict[str, int]:
    """Return the scanner's `batch_size` where Lance's own number of rows could take too much memory, else nothing.

    `read_columns` are returned as they are, None for all; `expressions` have labels for error messages as keys. Raises
    InvalidInputError for expressions that are too large for any batch, and Lance's errors.
    """
    if read_columns == () and _are_narrow(snapshot, expressions):
        return {}
    totals, max_rows = _batch_totals(snapshot, read_columns, expressions)
    allowed = [
        size for size, total in zip(_BATCH_ROWS, totals, strict=True) if total <= BATCH_BYTES and size <= max_rows
    ]
    if allowed:
        return {} if allowed[0] == MAX_ROWS else {"batch_size": allowed[0], **_READ_LIMITS}
    if expressions and totals[-1] > BATCH_BYTES * MIN_ROWS:
        raise _too_large(expressions, totals[-1], MIN_ROWS)
    return {"batch_size": MIN_ROWS, **_READ_LIMITS}


def check_change_memory(snapshot: CachedVersion, expressions: Mapping[str, str]) -> None:
    """Check the memory of expressions that Lance computes in batches of its own size. Raises InvalidInputError.

    Columns whose values have no bound are read for the check, in small batches; the change then reads them again.
    """
    if _are_narrow(snapshot, expressions):
        return
    columns = snapshot.fact(_version_columns)
    for name in _column_weights(columns, (), expressions):
        if name in columns.varying and (sizes := _column_sizes(snapshot.dataset, columns, name)).is_unbounded:
            columns.sizes[name] = _measure_by_reading(snapshot.dataset, columns.varying[name], sizes)
    totals, _ = _batch_totals(snapshot, (), expressions)
    if totals[0] > CHANGE_BYTES:
        raise _too_large(expressions, totals[0], MAX_ROWS)


def _measure_by_reading(dataset: lance.LanceDataset, column: pa.Field, sizes: _ColumnSizes) -> _ColumnSizes:
    """Measure the largest batch of a column by reading it."""
    largest = 0.0
    for fragment in dataset.get_fragments():
        window: deque[tuple[int, int]] = deque()
        rows = size = 0
        scanner = fragment.scanner(columns=[column.name], batch_size=_MEASURED_ROWS, batch_readahead=1)
        for batch in scanner.to_reader():
            window.append((batch.num_rows, batch.nbytes))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            while rows - window[0][0] >= MAX_ROWS:
                rows, size = rows - window[0][0], size - window.popleft()[1]
            largest = max(largest, size)
    return _ColumnSizes((largest, *sizes.by_batch[1:]), sizes.is_unbounded)


def estimate_ordering(
    snapshot: CachedVersion, read_columns: Iterable[str] | None, expressions: Mapping[str, str], rows: int
) -> int:
    """Return the memory that sorting `rows` rows takes, 0 for few. Raises InvalidInputError if it is too much."""
    if rows <= SMALL_RESPONSE_ROWS:
        return 0
    totals, _ = _batch_totals(snapshot, read_columns, expressions)
    size = int(totals[0] / MAX_ROWS * rows)
    if size > ORDER_BYTES:
        raise InvalidInputError(
            f"To order {rows} rows takes about {size / (1 << 20):.0f} MiB: "
            f"{ORDER_BYTES >> 20} at most, so ask for fewer rows (k), or for fewer columns."
        )
    return size


def _too_large(expressions: Mapping[str, str], size: float, rows: int) -> InvalidInputError:
    label = next(iter(expressions)) if len(expressions) == 1 else "expressions of this request"
    return InvalidInputError(
        f"The {label} would make {size / (1 << 20):.0f} MiB of {rows} rows of this table, which are computed at once:"
        " name columns of wide values less often, and call fewer functions on them."
    )


def _batch_totals(
    snapshot: CachedVersion, read_columns: Iterable[str] | None, expressions: Mapping[str, str]
) -> tuple[list[float], int]:
    """Return the bytes of a batch of each number of rows, and how many rows it may have where there is no bound yet."""
    columns = snapshot.fact(_version_columns)
    weights = _column_weights(columns, read_columns, expressions)
    fixed = sum(weight * columns.fixed[name] for name, weight in weights.items() if name in columns.fixed)
    fixed += sum(_literal_bytes(text, label) for label, text in expressions.items())
    totals = [fixed * size for size in _BATCH_ROWS]
    max_rows = MAX_ROWS
    for name, weight in weights.items():
        if name in columns.varying:
            sizes = _column_sizes(snapshot.dataset, columns, name)
            if sizes.is_unbounded:
                max_rows = min(max_rows, max(MIN_ROWS, int(_UNBOUNDED_ROWS / max(1, weight))))
            totals = [total + weight * size for total, size in zip(totals, sizes.by_batch, strict=True)]
    return totals, max_rows


def _are_narrow(snapshot: CachedVersion, expressions: Mapping[str, str]) -> bool:
    """Return whether all expressions are short and use narrow values only."""
    columns = snapshot.fact(_version_columns)
    return all(_is_narrow(text, columns) for text in expressions.values())


def _is_narrow(text: str, columns: _VersionColumns) -> bool:
    """Return whether an expression compares narrow values and produces none, as most do: any batch of them is small."""
    if len(text) > _SHORT_EXPRESSION or "(" in text or "||" in text:
        return False
    lowered = text.lower()
    return not any(name in lowered for name in list(columns.wide))


def _version_columns(dataset: lance.LanceDataset) -> _VersionColumns:
    """Read the columns of a version."""
    fixed: dict[str, float] = {}
    varying: dict[str, pa.Field] = {}
    for column in dataset.schema:
        width = fixed_width(column.type)
        if width is None:
            varying[column.name] = column
        else:
            fixed[column.name] = width
    wide = (*(name for name, width in fixed.items() if width > _NARROW), *varying)
    return _VersionColumns(fixed, varying, {name.lower() for name in wide})


def fixed_width(kind: pa.DataType) -> float | None:
    """Return the bytes of a value of a type, None where they vary."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_width(kind.storage_type)
    if kinds.is_fixed_size_list(kind):
        inner = fixed_width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if kinds.is_struct(kind):
        widths = [fixed_width(kind.field(index).type) for index in range(kind.num_fields)]
        return None if None in widths else sum(width for width in widths if width is not None)
    if kinds.is_null(kind):
        return 0.0
    if kinds.is_dictionary(kind):
        return None
    return kind.bit_width / 8 if kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind) else None


def _column_weights(
    columns: _VersionColumns, read_columns: Iterable[str] | None, expressions: Mapping[str, str]
) -> Mapping[str, float]:
    """Return how many copies of each column a query has in memory: read ones, and those of expressions that name it."""
    all_names = (*columns.fixed, *columns.varying)
    weights: Counter[str] = Counter(
        all_names if read_columns is None else (name.split(".")[0] for name in read_columns)
    )
    for label, text in expressions.items():
        growth = _COPIES * estimate_growth(text, label)
        for name, times in _count_names(text.lower(), all_names):
            weights[name] += 1 + times * growth  # type: ignore[assignment]  # a Counter adds up any numbers
    return weights


def _count_names(text: str, names: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield how often an expression names each column, rather too often than too rarely."""
    words = None if len(text) > _LONG_EXPRESSION else Counter(_WORD.findall(text))
    for name in names:
        lowered = name.lower()
        times = text.count(lowered) if words is None or not lowered.isidentifier() else words[lowered]
        if times:
            yield name, times


def _literal_bytes(text: str, label: str) -> float:
    """Return the bytes of a row that an expression produces from its own literals."""
    if len(text) < _LONG_EXPRESSION and (texts := _TEXT.findall(text)):
        return _COPIES * estimate_growth(text, label) * max(map(len, texts))
    return 8.0 * estimate_growth(text, label)


def _column_sizes(dataset: lance.LanceDataset, columns: _VersionColumns, name: str) -> _ColumnSizes:
    """Return the sizes of a column whose values vary in width, cached with the version's columns."""
    sizes = columns.sizes.get(name)
    if sizes is None:
        sizes, is_complete = _measure_files(dataset, columns.varying[name])
        if is_complete:
            columns.sizes[name] = sizes
            if sizes.by_batch[0] <= _NARROW_BATCH_BYTES and not sizes.is_unbounded:
                columns.wide.discard(name.lower())
    return sizes


def _measure_files(dataset: lance.LanceDataset, column: pa.Field) -> tuple[_ColumnSizes, bool]:
    """Return the largest sizes of a column in its data files, and whether all files were measured."""
    measure = _dictionary_sizes if has_dictionary(column.type) else _page_sizes
    if dataset.uri.startswith(_IN_MEMORY):  # its files can be read by itself alone
        measure = _memory_sizes
    ids = field_ids(dataset, column.name)
    largest, is_unbounded, measured = (0.0,) * len(_BATCH_ROWS), False, 0
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            if ids.isdisjoint(file.fields):
                continue
            key = ("batches", str(file.path), min(ids))  # pylance makes a class for each path that it returns
            sizes = lasting_facts.get(key)
            if sizes is None:
                if measured >= _MAX_MEASURED_FILES:
                    return _ColumnSizes(largest, is_unbounded=True), False
                measured += 1
                sizes = measure(dataset, fragment, file, column, ids)
                lasting_facts.put(key, sizes)
            largest = tuple(map(max, largest, sizes.by_batch))
            is_unbounded = is_unbounded or sizes.is_unbounded
    return _ColumnSizes(largest, is_unbounded), True


def _dictionary_sizes(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, file: DataFile, column: pa.Field, ids: frozenset[int]
) -> _ColumnSizes:
    """Measure a column that has dictionaries by reading it once, as it is encoded in its file."""
    width = 0.0
    for batch in fragment.scanner(columns=[column.name], batch_size=_UNBOUNDED_ROWS).to_reader():
        width = max(width, decoded_width(batch.column(0)))
    return _ColumnSizes(tuple(width * size for size in _BATCH_ROWS))


def _memory_sizes(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, file: DataFile, column: pa.Field, ids: frozenset[int]
) -> _ColumnSizes:
    """Measure a column of a dataset in memory, which is small: a batch may take all of it."""
    batches = fragment.scanner(columns=[column.name]).to_reader()
    size = sum(max(batch.nbytes, decoded_width(batch.column(0)) * len(batch)) for batch in batches)
    return _ColumnSizes((float(size),) * len(_BATCH_ROWS))


def decoded_width(array: pa.Array) -> float:
    """Return the bytes of a row of an array once dictionaries are decoded: those of the longest value in each."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return decoded_width(array.storage)
    if kinds.is_dictionary(kind):
        return _longest_value(array.dictionary)
    if kinds.is_struct(kind):
        return sum(decoded_width(array.field(index)) for index in range(kind.num_fields))
    rows = max(1, len(array))
    if kinds.is_map(kind):
        return (decoded_width(array.keys) + decoded_width(array.items)) * -(-len(array.keys) // rows)
    if hasattr(kind, "value_type"):
        values = array.flatten()
        return decoded_width(values) * max(1, -(-len(values) // rows))
    return float(array.nbytes) / rows


def _longest_value(values: pa.Array) -> float:
    """Return the bytes of the longest of some values."""
    kind = values.type
    if not len(values):
        return 0.0
    if (width := fixed_width(kind)) is not None:
        return width
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        values = values.cast(pa.large_binary())
        kind = values.type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return float(pc.max(pc.binary_length(values)).as_py() or 0)
    return float(values.nbytes)


def _page_sizes(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, file: DataFile, column: pa.Field, ids: frozenset[int]
) -> _ColumnSizes:
    """Measure, for each number of rows in a batch, the pages that so many rows may touch."""
    if file.file_major_version < _MIN_FILE_VERSION or file.base_id is not None:
        return _ColumnSizes((0.0,) * len(_BATCH_ROWS), is_unbounded=True)  # its pages are not readable here
    path = f"{dataset.uri.rstrip('/')}/data/{file.path}"
    local = None if "://" in path else Path(path)
    metadata = LanceFileReader(path, storage_options=dataset.latest_storage_options()).metadata()
    totals, is_unbounded = [0.0] * len(_BATCH_ROWS), False
    for field_id, index in zip(file.fields, file.column_indices, strict=True):
        if field_id in ids and 0 <= index < len(metadata.columns) and (pages := metadata.columns[index].pages):
            sizes = page_sizes(pages, metadata.num_rows, kinds.is_nested(column.type), local)
            is_unbounded = is_unbounded or any(size.is_unbounded for size in sizes)
            window = window_sizes([size.rows for size in sizes], [size.bytes for size in sizes])
            totals = [total + size for total, size in zip(totals, window, strict=True)]
    return _ColumnSizes(tuple(totals), is_unbounded)


def window_sizes(rows: Sequence[float], weights: Sequence[float]) -> Sizes:
    """Return, for each of `_BATCH_ROWS`, the largest sum of weights of so many consecutive rows.

    The weight of a page is spread evenly over its rows.
    """
    ends = [0.0, *accumulate(rows)]
    sums = [0.0, *accumulate(weights)]

    def sum_until(row: float) -> float:
        page = min(bisect_right(ends, row), len(ends) - 1)
        before, after = ends[page - 1], ends[page]
        part = 1.0 if after <= before else min(1.0, max(0.0, (row - before) / (after - before)))
        return sums[page - 1] + part * (sums[page] - sums[page - 1])

    def largest(size: int) -> float:
        begins = {max(0.0, row) for before, after in pairwise(ends) for row in (before, after - size)}
        return max((sum_until(begin + size) - sum_until(begin) for begin in begins), default=0.0)

    return tuple(largest(size) for size in _BATCH_ROWS)
