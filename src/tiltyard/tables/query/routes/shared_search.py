"""Search for vectors that wait for a processor together: Lance plans and runs a batch of them once.

Four searches in one batch take Lance less than half of the processor time of four (IVF_PQ, 100,000 rows), and each
finds the same rows. So as many run at once as the process has processors; those that come meanwhile are the next batch,
if nothing but their vectors differs. No search waits for others to come.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tiltyard.runtime.batcher import WorkQueue
from tiltyard.tables.query.plan import QUERY_INDEX, column_names
from tiltyard.tables.query.routes.cached_columns import CachedReader
from tiltyard.tables.query.routes.route import BatchReader, Cost, LanceOffer, Refused
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lance
    from lance.dataset import LanceScanner

    from tiltyard.tables.query.plan import Search
    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import OutputRows, Query

MAX_BATCH = 8
"""Searches in one batch: bounds how long the first of them waits for the last, and what they hold in memory."""
_OPTIONS = frozenset({"columns", "disable_scoring_autoprojection", "prefilter"})
_NEAREST_OPTIONS = frozenset(
    {"column", "k", "maximum_nprobes", "metric", "minimum_nprobes", "nprobes", "q", "refine_factor", "use_index"}
)
"""Options with which a batch was seen to find what each of its searches finds alone."""
_NOT_ALIKE = Refused("only searches of one vector of floats, without a filter and further options, are run together")


@dataclass(slots=True)
class SharedSearch(LanceOffer):
    """A search of one vector by Lance for the addresses of rows, whose columns are in memory."""

    name: ClassVar[str] = "shared_search"
    cost = Cost.TABLE
    query: Query
    output: OutputRows
    search: Search
    processors: int

    @classmethod
    def ask(cls, query: Query) -> SharedSearch | Refused:
        """Return a search that others may share, or why none can."""
        if len(query.search.nearest) != 1 or "filter" in query.search.options:
            return _NOT_ALIKE
        if isinstance(output := query.output, Refused):
            return output
        assert not isinstance(query.caches, Refused)  # or there would be no output
        search = query.addresses(output)
        return cls(query, output, search, query.caches.processors) if can_share(search) else _NOT_ALIKE

    def describe(self) -> str:
        return "Lance finds the rows, for all searches at once that wait for a processor; their columns are in memory"

    def readers(self) -> Iterator[Reader]:
        found = self.search.snapshot.fact(_new_shared_searches).find(self.search, self.processors)
        yield CachedReader(BatchReader(found.schema, tuple(found.to_batches())), self.output, self.query)

    def scanners(self) -> Iterator[LanceScanner]:
        yield _batch_scanner(self.search, [self.search.nearest[0]["q"]])


@dataclass(slots=True)
class _Call:
    """A search that waits: `turn` is held until it has its rows, leads a batch, or has to run alone."""

    query: pa.Array
    turn: threading.Lock = field(default_factory=threading.Lock)
    found: pa.Table | None = None
    batch: list[_Call] | None = None


@dataclass(slots=True)
class _Queue:
    """The searches of a version that differ in their vectors alone: how many batches run, and what waits."""

    running: int = 0
    waiting: list[_Call] = field(default_factory=list)


class SharedSearches(WorkQueue):
    """The searches of one version of a table. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[tuple[Any, ...], _Queue] = {}
        super().__init__("shared searches", "Vector searches of a version that wait for a processor, run as one")

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(len(queue.waiting) for queue in self._queues.values())

    def find(self, search: Search, processors: int) -> pa.Table:
        """Return the rows of a search with one query vector. Raises Lance's errors.

        `processors` is how many searches may run at once without waiting for others.
        """
        nearest = search.nearest[0]
        common = ((name, value) for name, value in nearest.items() if name != "q")
        key = (tuple(search.options["columns"]), *sorted(common))
        call = _Call(nearest["q"])
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            is_leader = queue.running < processors
            if is_leader:
                queue.running += 1
            else:
                call.turn.acquire()
                queue.waiting.append(call)
        batch = [call]
        if not is_leader:
            call.turn.acquire()
            if call.found is not None:
                return call.found
            if call.batch is None:  # the batch failed: its error may be another search's
                return _find(search, [call.query])[0]
            batch = call.batch
        try:
            found = _find(search, [each.query for each in batch])
            for each, rows in zip(batch, found, strict=True):
                each.found = rows
            return found[0]
        except Exception:
            if len(batch) == 1:
                raise
            return _find(search, [call.query])[0]
        finally:
            self._end(key, queue, batch[1:])

    def _end(self, key: tuple[Any, ...], queue: _Queue, others: list[_Call]) -> None:
        """Let the other searches of a batch go on, and the first that waits lead the next one."""
        with self._lock:
            following, queue.waiting = queue.waiting[:MAX_BATCH], queue.waiting[MAX_BATCH:]
            if not following:
                queue.running -= 1
                if not queue.running:
                    self._queues.pop(key, None)
        for other in others:
            other.turn.release()
        if following:
            following[0].batch = following
            following[0].turn.release()


def can_share(search: Search) -> bool:
    """Return whether a search may be answered together with others."""
    if len(search.nearest) != 1 or search.memory_bytes or not _OPTIONS.issuperset(search.options):
        return False
    nearest = search.nearest[0]
    if not _NEAREST_OPTIONS.issuperset(nearest) or not isinstance(nearest["q"], pa.FloatArray):
        return False
    return isinstance(search.options.get("columns"), list) and QUERY_INDEX not in column_names(search.snapshot)


def _new_shared_searches(_: lance.LanceDataset) -> SharedSearches:
    return SharedSearches()


def _batch_scanner(search: Search, queries: Sequence[pa.Array]) -> LanceScanner:
    """Return the scanner of a batch of query vectors, with the number of each in the column QUERY_INDEX.

    One vector is a batch, too: that takes Lance a fifth less than a search of one, which opens the index twice.
    """
    offsets = pa.array(np.arange(len(queries) + 1, dtype=np.int32) * len(queries[0]))
    vectors = pa.ListArray.from_arrays(offsets, pa.concat_arrays(queries))
    options = {**search.options, "columns": [QUERY_INDEX, *search.options["columns"]]}
    return make_scanner(search.dataset, options, {**search.nearest[0], "q": vectors})


def _find(search: Search, queries: Sequence[pa.Array]) -> list[pa.Table]:
    """Return the rows of each query vector. Raises Lance's errors."""
    rows = _batch_scanner(search, queries).to_reader().read_all().combine_chunks()
    numbers = rows.column(QUERY_INDEX).to_numpy()
    rows = rows.drop_columns([QUERY_INDEX])
    if np.any(numbers[1:] < numbers[:-1]):
        raise ValueError("Lance returned the rows of a batch in another order than that of its queries.")
    bounds = numbers.searchsorted(np.arange(len(queries) + 1))
    return [rows.slice(first, last - first) for first, last in pairwise(bounds.tolist())]
