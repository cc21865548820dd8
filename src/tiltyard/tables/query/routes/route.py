"""What the routes of queries are asked, and what they answer: 'I can, at this cost', or 'I cannot, because …'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, ClassVar

from lance.dataset import LanceScanner

from tiltyard.tables.query.integer_filters import ROW_ID, parse_integer_filter
from tiltyard.tables.query.plan import column_names
from tiltyard.tables.query.response import Reader, read_response
from tiltyard.tables.query.response_sizes import STREAMING_OPTION_NAMES
from tiltyard.tables.query.search_effort import choose_effort

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import lance
    import pyarrow as pa

    from tiltyard.context import Context
    from tiltyard.model.operations import ArrowAnswer
    from tiltyard.storage.caches.cached_rows import CachedRows
    from tiltyard.storage.caches.column_cache import BranchKey, ColumnCache
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.storage.vector_cache.cache import VectorCache
    from tiltyard.tables.query.integer_filters import IntegerFilter
    from tiltyard.tables.query.plan import Search
    from tiltyard.tables.query.search_effort import SearchEffort
    from tiltyard.tables.query.segment_shares import Spread

SCORES = ("_distance", "_score")
FILTER_OPTIONS = frozenset({"columns", "disable_scoring_autoprojection", "filter", "limit", "prefilter"})
"""Options of a search by a filter alone, besides those of streaming."""
_CACHEABLE_OPTIONS = FILTER_OPTIONS | {"fast_search", "full_text_query", "offset", "with_row_id"}
"""Options of a search whose order of rows does not depend on the columns that are read."""

SLOW_SECONDS = 0.01
"""What a query on the event loop may take on average: others wait for it."""
PAUSE_SECONDS = 10.0
"""For how long queries of a version take a thread once they are too slow."""
_WEIGHT = 8


class Purpose(Enum):
    """Why a route is asked."""

    RUN = "to run the query in a thread: it counts as a use of caches, and may wait for a few rows to be read into them"
    LOOP = "to run the query on the event loop: nothing is read before the offer, and nobody waits"
    EXPLAIN = "to show what RUN would do: it counts as no use, and starts no reads in the background"


class Cost(StrEnum):
    """What a route reads to answer a query."""

    MEMORY = "memory alone"
    INDEX = "an index of Lance, and memory"
    TABLE = "the table"


@dataclass(frozen=True, slots=True)
class Refused:
    """A route's 'I cannot, because': the reason goes on from there, without a full stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class BatchReader:
    """A response that is in memory."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


class Offer(ABC):
    """A route's 'I can, at this cost': how it answers one query. Each route is a class of its own."""

    __slots__ = ()
    name: ClassVar[str]
    """The name of its route: in plans, and as a label in metrics."""
    cost: Cost

    @classmethod
    @abstractmethod
    def ask(cls, query: Query) -> Offer | Refused:
        """Return how the route would answer a query, or why it cannot. Raises Lance's errors."""

    @abstractmethod
    def describe(self) -> str:
        """Return how it answers, to go on behind the name of the route."""

    @abstractmethod
    def answer(self, ctx: Context) -> ArrowAnswer:
        """Answer the query. Raises Lance's errors, InvalidInputError, and ThrottlingError for its memory."""

    def plan(self, ctx: Context, *, is_verbose: bool) -> str:
        """Return the plan of what Lance runs for it: "" where Lance is not asked. Raises as `answer` does."""
        return ""

    @property
    def notes(self) -> list[str]:
        """Lines for the plan, besides."""
        return []

    def measure(self, ctx: Context) -> list[str]:
        """Run the query, and return lines with its figures. Raises as `answer` does."""
        started = perf_counter()
        answer, rows, size = self.answer(ctx), 0, 0
        for batch in answer.batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
        return [f"Ran: {rows:,} rows, {size:,} bytes, {1000 * (perf_counter() - started):.3f} ms."]


class SearchOffer(Offer):
    """An offer that finds the rows of a planned search."""

    __slots__ = ()
    query: Query

    @abstractmethod
    def readers(self) -> Iterator[Reader]:
        """Yield a reader for each scanner of the search. Raises Lance's errors."""

    def answer(self, ctx: Context) -> ArrowAnswer:
        return read_response(ctx, self.query.search, self.readers)


class LanceOffer(SearchOffer):
    """An offer for which Lance searches, as widely as the search leaves it open."""

    __slots__ = ()

    @abstractmethod
    def scanners(self) -> Iterator[LanceScanner]:
        """Yield what Lance runs. Raises Lance's errors."""

    @property
    def notes(self) -> list[str]:
        return [] if self.query.effort is None else [self.query.effort.line]

    def plan(self, ctx: Context, *, is_verbose: bool) -> str:
        return join_plans(ctx, self.scanners(), lambda scanner: scanner.explain_plan(is_verbose))

    def measure(self, ctx: Context) -> list[str]:
        """Run the query, and what Lance does for it once more, for its figures; return both."""
        return [*SearchOffer.measure(self, ctx), join_plans(ctx, self.scanners(), LanceScanner.analyze_plan)]


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of this process, and the key in them of the table and branch of which a version is read."""

    key: BranchKey
    columns: ColumnCache
    vectors: VectorCache
    processors: int
    """Searches that run at once without waiting for others."""
    is_latest: bool = True

    def rows(
        self, dataset: lance.LanceDataset, names: tuple[str, ...], *, is_counted: bool, may_wait: bool = False
    ) -> CachedRows | None:
        """Return columns of the version that is read, as `ColumnCache.rows` does."""
        return self.columns.rows(
            self.key, dataset, names, may_wait=may_wait, is_counted=is_counted, is_latest=self.is_latest
        )


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The columns of a response in memory, all rows of the version, and their names in the response."""

    rows: CachedRows
    names: tuple[str, ...]


@dataclass
class Query:
    """A query of one version of a table, as routes are asked about it; `caches` or why they do not serve it.

    `spread` is what it takes to spread it over servers; `segments` are those that another server's sub-query is about.
    """

    search: Search
    caches: Caches | Refused
    purpose: Purpose = Purpose.RUN
    path: Sequence[str] = ()
    spread: Spread | None = None
    segments: tuple[str, ...] = ()

    @property
    def latest_caches(self) -> Caches | Refused:
        """The caches, for what they have of the latest version alone, or why they do not serve."""
        is_served = isinstance(self.caches, Refused) or self.caches.is_latest
        return self.caches if is_served else _NAMES_VERSION

    @cached_property
    def output(self) -> OutputRows | Refused:
        """The columns of the response in memory, or why they are not."""
        if isinstance(self.caches, Refused):
            return self.caches
        names = _output_columns(self.search)
        if isinstance(names, Refused):
            return names
        columns, key, dataset = self.caches.columns, self.caches.key, self.search.dataset
        stored = tuple(name for name in names if name not in SCORES)
        if self.purpose is Purpose.LOOP:
            rows = columns.known(key, dataset, stored)
        else:
            rows = self.caches.rows(dataset, stored, is_counted=self.purpose is Purpose.RUN, may_wait=True)
        return _NOT_IN_MEMORY if rows is None else OutputRows(rows, names)

    @cached_property
    def effort(self) -> SearchEffort | None:
        """How widely Lance looks, where the request leaves that open. Raises Lance's errors about the filter."""
        return choose_effort(self.search)

    @cached_property
    def widened(self) -> Search:
        """The search with that effort. Raises as `effort` does."""
        return self.search if self.effort is None else self.effort.apply(self.search)

    def addresses(self, output: OutputRows) -> Search:
        """Return the search for the addresses of its rows, and their scores, alone. Raises as `effort` does."""
        search = self.widened
        columns = [name for name in output.names if name in SCORES]
        columns += dict.fromkeys([ROW_ID, output.rows.address] if self.has_row_ids else [output.rows.address])
        omitted = STREAMING_OPTION_NAMES | {"with_row_id"}
        options = {name: value for name, value in search.options.items() if name not in omitted}
        return replace(search, options=options | {"columns": columns, "disable_scoring_autoprojection": True})

    @property
    def has_row_ids(self) -> bool:
        return bool(self.search.options.get("with_row_id"))

    @property
    def only_filter(self) -> str | None:
        """The filter of a search by a filter alone; None for another search."""
        options = self.search.options
        if self.search.nearest or not FILTER_OPTIONS.issuperset(options.keys() - STREAMING_OPTION_NAMES - _ROW_IDS):
            return None
        expression = options.get("filter")
        return expression if isinstance(expression, str) else None

    @cached_property
    def selected(self) -> IntegerFilter | None:
        """The integers of one column, row ids or offsets, by which alone rows are selected; None for another search."""
        expression = self.only_filter
        return None if expression is None else parse_integer_filter(expression)


def join_plans(ctx: Context, scanners: Iterable[LanceScanner], plan_of: Callable[[LanceScanner], str]) -> str:
    """Join the plans of scanners as lancedb does. Raises Lance's errors, ServiceUnavailableError after the deadline."""
    plans = []
    for scanner in scanners:
        ctx.check_deadline()
        plans.append(plan_of(scanner))
    if len(plans) < 2:  # one
        return "".join(plans)
    return "\n\n".join(f"--- Plan #{number} ---\n{plan}" for number, plan in enumerate(plans, 1))


@dataclass(frozen=True, slots=True)
class CountQuery:
    """A count of a version's rows, or of those that a predicate selects; `caches` as of `Query`."""

    snapshot: CachedVersion
    predicate: str | None
    caches: Caches | Refused
    purpose: Purpose = Purpose.RUN


@dataclass(frozen=True, slots=True)
class CountOffer:
    """How a route counts rows: its name, and what returns their number, or raises Lance's errors."""

    name: str
    count: Callable[[], int]


@dataclass(slots=True)
class Pace:
    """The running average of how long a version's queries take on the event loop: many rows may have one value."""

    average: float = 0.0
    slow_until: float = field(default=0.0)

    @property
    def is_fast(self) -> bool:
        return monotonic() >= self.slow_until

    def record(self, seconds: float, max_seconds: float | None = None) -> None:
        """Record the duration of one query. On average it may take `max_seconds`, or `SLOW_SECONDS`."""
        self.average += (seconds - self.average) / _WEIGHT
        if self.average > (SLOW_SECONDS if max_seconds is None else max_seconds):
            self.average, self.slow_until = 0.0, monotonic() + PAUSE_SECONDS


_ROW_IDS = frozenset({"with_row_id"})
_NAMES_VERSION = Refused("it is kept of the latest version alone, and the request names another")
_NOT_IN_MEMORY = Refused(
    "the columns of the response are not in memory: too few queries asked for them yet, they have no room, or they are"
    " of kinds that are not kept"
)
_NO_ROWS = Refused("it asks for no rows, or for all")
_ELEMENTS = Refused("its full-text index has elements of lists for documents")
_OTHER_OPTIONS = Refused("an order, or another option, depends on columns that Lance reads")
_COMPUTED = Refused("the columns of the response are not whole columns of the table")


def _output_columns(search: Search) -> tuple[str, ...] | Refused:
    """Return the columns of a response, without row ids, or why they cannot come from memory."""
    options = search.options
    if not search.max_rows:
        return _NO_ROWS
    if search.has_elements:
        return _ELEMENTS
    if not _CACHEABLE_OPTIONS.issuperset(options.keys() - STREAMING_OPTION_NAMES):
        return _OTHER_OPTIONS
    columns = options.get("columns")
    if columns is None:
        score = ("_distance",) if search.nearest else ("_score",) if "full_text_query" in options else ()
        return (*column_names(search.snapshot), *score)
    if not isinstance(columns, list) or len(set(columns)) < len(columns):
        return _COMPUTED
    return tuple(columns) if any(name not in SCORES for name in columns) else _COMPUTED
