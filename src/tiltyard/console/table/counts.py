"""How many rows a table has and how many fit the filter, and the values of columns that have few: within a time.

Both are read as the rows of the page are, by its reader: what a policy hides is neither counted nor listed. They come
after the rows, in a part of the page of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from lance_namespace.errors import LanceNamespaceError

from tiltyard.console.page import Page, PageRequest
from tiltyard.console.table.conditions import ValueKind, equals, join_conditions, value_kind, without_condition
from tiltyard.console.table.heads import TableHead, read_head
from tiltyard.console.table.rows import Choice
from tiltyard.model.schemas.python_values import python_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tiltyard.console.table.schema_tree import Column

COUNT_SECONDS = 1.0
MAX_COUNTED = (1 << 31) - 1
FACET_SECONDS = 0.5
FACET_ROWS = 100_000
"""Rows whose values are counted, the first ones of the filter."""
FACET_BYTES = 32 << 20
PROBE_ROWS = 500
"""Rows by which columns are left out that have too many values."""
MAX_FACETS = 8
"""Columns whose values are listed."""
MAX_VALUES = 12
"""Values of a column that has few."""
MAX_TEXT = 60
"""Characters of such a value."""
_FEW = frozenset({ValueKind.TEXT, ValueKind.INTEGER, ValueKind.BOOLEAN, ValueKind.DATE})
_WIDTHS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "date32", "int64", "uint64")


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; there are more where it is not `exact`: the time was over."""

    rows: int
    exact: bool


@dataclass(frozen=True, slots=True)
class FacetValue:
    """A value, how many of the counted rows have it, the filter that a click makes, and whether it is chosen."""

    text: str
    count: int
    filter: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Facet:
    """A column and its values, the most frequent first."""

    column: Column
    values: Sequence[FacetValue]


def show(page: PageRequest) -> Page:
    """Show how many rows there are, and how many of them fit the filter; nothing where they cannot be counted."""
    head, choice = read_head(page), Choice.of(page)
    try:
        total = count_rows(page, head, "")
        fitting = count_rows(page, head, choice.filter) if choice.filter else None
    except LanceNamespaceError:
        return Page("row_counts.html", {"total": None, "fitting": None}, fragment=True)
    return Page("row_counts.html", {"total": total, "fitting": fitting}, fragment=True)


def count_rows(page: PageRequest, head: TableHead, filter_text: str, seconds: float = COUNT_SECONDS) -> Count:
    """Count the rows that fit a filter, for so long; all rows of a table from its manifest. Raises as a query does."""
    if not filter_text and not head.is_view and not head.has_policy:
        number = page.calls.call("CountTableRows", id=list(page.path), branch=head.branch, version=head.version)
        return Count(number, exact=True)
    column = _narrowest(head)
    if column is None:
        return Count(0, exact=True)
    end, number = time.monotonic() + seconds, 0
    for batch in _read(page, head, filter_text, [column.name], MAX_COUNTED):
        number += batch.num_rows
        if time.monotonic() > end:
            return Count(number, exact=False)
    return Count(number, exact=True)


def _narrowest(head: TableHead) -> Column | None:
    """Return the column whose values are read fastest."""
    readable = [column for column in head.columns if column.name not in head.hidden and column.kind != "blob"]
    ranked = sorted(readable, key=lambda column: _WIDTHS.index(column.type) if column.type in _WIDTHS else len(_WIDTHS))
    return ranked[0] if ranked else None


def _read(
    page: PageRequest, head: TableHead, filter_text: str, names: Sequence[str], most: int
) -> Iterator[pa.RecordBatch]:
    fields: dict[str, Any] = {
        "id": list(page.path),
        "branch": head.branch,
        "version": None if head.is_view else head.version,
        "columns": {"column_names": list(names)},
        "filter": filter_text or None,
        "k": most,
        "vector": {},
    }
    with page.calls.rows(**fields) as answer:
        for batch in answer.batches:
            page.calls.check()
            yield batch


def show_facets(page: PageRequest) -> Page:
    """Show the columns that have few values, with these; none where they cannot be read."""
    head, choice = read_head(page), Choice.of(page)
    try:
        facets, counted, is_all = read_facets(page, head, choice.filter)
    except LanceNamespaceError:
        facets, counted, is_all = [], 0, True
    values = {"facets": facets, "counted": counted, "is_all": is_all, "choice": choice, "at": head.ref}
    return Page("facets.html", values, fragment=True)


def read_facets(page: PageRequest, head: TableHead, filter_text: str) -> tuple[list[Facet], int, bool]:
    """Return the facets of the rows that fit a filter, how many rows were counted, and whether these were all.

    Masked columns have none. Raises what the query raises.
    """
    few = [
        column
        for column in head.columns
        if column.name not in head.masks and column.kind != "blob" and value_kind(column) in _FEW
    ]
    few = [column for column, values in zip(few, _probe(page, head, filter_text, few), strict=True) if _is_few(values)]
    counts: dict[str, Counter[Any]] = {column.name: Counter() for column in few[:MAX_FACETS]}
    end, rows, size = time.monotonic() + FACET_SECONDS, 0, 0
    is_all = True
    if counts:
        for batch in _read(page, head, filter_text, list(counts), FACET_ROWS + 1):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            _count_values(batch, counts)
            if rows > FACET_ROWS or size > FACET_BYTES or time.monotonic() > end or not counts:
                is_all = False
                break
    columns = {column.name: column for column in few}
    facets = [_facet(columns[name], counted, filter_text) for name, counted in counts.items()]
    useful = [facet for facet in facets if len(facet.values) > 1 or any(each.chosen for each in facet.values)]
    return useful, rows, is_all


def _probe(page: PageRequest, head: TableHead, filter_text: str, columns: Sequence[Column]) -> list[Counter[Any]]:
    """Return how often the first rows have the values of some columns."""
    counts: list[Counter[Any]] = [Counter() for _ in columns]
    names = [column.name for column in columns]
    rows = size = 0
    if names:
        for batch in _read(page, head, filter_text, names, FACET_ROWS):  # by batches that fit into memory
            first = batch.slice(0, PROBE_ROWS)
            for counted, name in zip(counts, names, strict=True):
                _add(counted, first[name])
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= PROBE_ROWS or size > FACET_BYTES:
                break
    return counts


def _count_values(batch: pa.RecordBatch, counts: dict[str, Counter[Any]]) -> None:
    """Count the values of columns in a batch; take those away that have too many."""
    for name, counted in list(counts.items()):
        _add(counted, batch[name])
        if not _is_few(counted):
            del counts[name]


def _add(counted: Counter[Any], values: pa.Array) -> None:
    found = pc.value_counts(values)
    names, numbers = found.field("values"), found.field("counts")
    for index in range(min(len(found), MAX_VALUES + 1)):
        counted[python_value(names, index)] += numbers[index].as_py()


def _is_few(counted: Counter[Any]) -> bool:
    """Whether values are few, some of them come twice, and none is long."""
    has_repeats = max(counted.values(), default=0) > 1
    return has_repeats and len(counted) <= MAX_VALUES and all(len(str(value)) <= MAX_TEXT for value in counted)


def _facet(column: Column, counted: Counter[Any], filter_text: str) -> Facet:
    values = []
    is_day = value_kind(column) is ValueKind.DATE
    for value, count in counted.most_common():
        if is_day and isinstance(value, str):  # a day that Python has none of, which no literal says
            continue
        condition = equals(column, value)
        without = without_condition(filter_text, condition)
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        is_chosen = without is not None
        target = without if without is not None else join_conditions(filter_text, condition)
        values.append(FacetValue(text, count, target, is_chosen))
    return Facet(column, values)
