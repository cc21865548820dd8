"""Look-ups: rows by the value of an indexed column, which a server answers without a thread.

Where the index and the rows are in memory such a query takes Lance half a millisecond. To hand it to a thread and back,
beside others that do the same, takes as long again.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access import narrowing_of
from tiltyard.model.ids import table_id
from tiltyard.storage.column_cache import branch_key
from tiltyard.tables.opening import open_cached
from tiltyard.tables.query.plan import column_names

if TYPE_CHECKING:
    from collections.abc import Callable

    import lance

    from tiltyard.context import Context
    from tiltyard.model.spec import models

_LOOKUP = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(?:-?\d{1,19}|'[^'\\]{0,256}')\s*")
_INDICES = frozenset({"btree", "bitmap"})
_MOST_ROWS = 100
_MANY = 256
"""Rows of one value from which on a column's look-ups are limited."""

SLOW_SECONDS = 0.01
"""What a look-up may take at the average; nothing else is answered meanwhile."""
PAUSE_SECONDS = 10.0
"""For how long look-ups take a thread after that."""
_WEIGHT = 8


@dataclass(slots=True)
class Pace:
    """How long the look-ups of one version take: many rows may have one value."""

    average: float = 0.0
    slow_until: float = 0.0

    @property
    def quick(self) -> bool:
        return monotonic() >= self.slow_until

    def note(self, seconds: float) -> None:
        """One look-up took so long."""
        self.average += (seconds - self.average) / _WEIGHT
        if self.average > SLOW_SECONDS:
            self.average, self.slow_until = 0.0, monotonic() + PAUSE_SECONDS


@dataclass(frozen=True, slots=True)
class _Facts:
    """The columns of a version whose index knows all its rows, those of them with many rows of one value, the pace."""

    columns: frozenset[str]
    many: set[str] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)


_facts: weakref.WeakKeyDictionary[lance.LanceDataset, _Facts] = weakref.WeakKeyDictionary()


def _facts_of(dataset: lance.LanceDataset) -> _Facts:
    """Looked up once per handle: handles stay at their version."""
    facts = _facts.get(dataset)
    if facts is None:
        facts = _facts[dataset] = _Facts(_indexed(dataset))
    return facts


def looking_up(ctx: Context, request: models.QueryTableRequest) -> Context | None:
    """For `inline`: a look-up in a local table whose rows are in memory, for one whom no policy binds."""
    column = _column(request)
    if column is None:
        return None
    try:
        table = open_cached(ctx, request.id)
        if table is None or narrowing_of(ctx, table.record) is not None:
            return None
    except LanceNamespaceError:
        return None  # the operation says it again, in a thread
    dataset, pages = table.dataset, ctx.storage.datasets.column_cache
    asked = request.columns.column_names if request.columns else None
    names = column_names(dataset) if asked is None else tuple(asked)
    if not pages.has(branch_key(table.record.location), dataset, names):
        return None
    facts = _facts_of(dataset)
    if column not in facts.columns or not facts.pace.quick:
        return None
    began = perf_counter()
    return ctx.with_open_table(table_id(request.id), table, lambda: facts.pace.note(perf_counter() - began))


def unlimited(dataset: lance.LanceDataset, expression: str) -> Callable[[int], None] | None:
    """For a look-up that may read all rows of its value: what to tell how many came at once. None: not such a one.

    A limit makes Lance take a fifth longer for a look-up, and spares it nothing where few rows have the value.
    """
    found = _LOOKUP.fullmatch(expression)
    if found is None or found[1] not in (facts := _facts_of(dataset)).columns or found[1] in facts.many:
        return None

    def came(count: int) -> None:
        if count > _MANY:
            facts.many.add(found[1])

    return came


def _column(request: models.QueryTableRequest) -> str | None:
    """The column whose value a query asks for, if it asks for nothing else."""
    if request.filter is None or request.k > _MOST_ROWS:
        return None
    found = _LOOKUP.fullmatch(request.filter)
    vector, columns = request.vector, request.columns
    other = (request.version, request.branch, request.full_text_query, request.order_by, request.offset)
    if found is None or any(other) or (vector and (vector.single_vector or vector.multi_vector)):
        return None
    return None if columns is not None and columns.column_names is None else found[1]


def _indexed(dataset: lance.LanceDataset) -> frozenset[str]:
    fragments = {fragment.fragment_id for fragment in dataset.get_fragments()}
    return frozenset(
        index.field_names[0]
        for index in dataset.describe_indices()
        if index.index_type.lower() in _INDICES
        and len(index.field_names) == 1
        and fragments <= {number for segment in index.segments for number in segment.fragment_ids}
    )
