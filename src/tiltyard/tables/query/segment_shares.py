"""Share out the segments of a vector index for one search: which server searches which, and who else if one is slow.

Each server answers for its segments with the ids of the nearest rows and their distances. What is kept of a segment, in
Lance's caches, is so kept by one server, as long as none is slow or gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.model.columns.vector_columns import VectorColumn, quote_path
from tiltyard.runtime.pool import submit_shared
from tiltyard.tables.query.integer_filters import ROW_ID

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context, OpenTable, SubQueries, TableServers
    from tiltyard.model.spec import models

log = logging.getLogger("tiltyard.tables")

DISTANCE = "_distance"
ANSWERED_FOR = b"tiltyard:segments"
"""The metadata of an answer's schema that names its segments: a server that does not know of them answers for all."""
MAX_SEGMENTS = 256
"""Segments of an index that are shared out: they are ranked for each search, and named in a header."""
MIN_PATIENCE_SECONDS, MAX_PATIENCE_SECONDS = 0.5, 2.0
"""How long a server is waited for before others are asked in its place: at least, and where no other has answered yet,
or many were asked twice already.

Shares of one search are alike: what the others took says more than any figure of other tables, or of an hour ago.
"""
PATIENCE = 3
"""How many times as long as the others a server may take: one that reads its segments for the first time takes longer,
and to read them on another server, too, would cost both their memory."""
_POLL_SECONDS = 0.1
"""How often the deadline is looked at, and whether the client is there."""


@dataclass(frozen=True, slots=True)
class VectorSegments:
    """The segments of the one vector index on a column, its distance type, and the fragments that none covers."""

    metric: str
    segments: tuple[str, ...]
    uncovered: tuple[int, ...]


def vector_segments(dataset: lance.LanceDataset) -> Mapping[str, VectorSegments]:
    """Return the segments of the vector index on each column of floats or integers that has one index."""
    columns = {
        each.name
        for each in dataset.schema
        if (column := VectorColumn.from_type(each.name, each.type)) is not None
        and not column.is_multivector
        and quote_path((each.name,)) == each.name
    }
    found: dict[str, list[VectorSegments]] = {}
    fragments = {fragment.fragment_id for fragment in dataset.get_fragments()}
    for index in dataset.describe_indices():
        metric = str(index.details.get("metric_type", "")).lower()
        if metric and len(index.field_names) == 1 and index.field_names[0] in columns:
            covered = {number for segment in index.segments for number in segment.fragment_ids}
            segments = tuple(sorted(str(segment.uuid) for segment in index.segments))
            each = VectorSegments(metric, segments, tuple(sorted(fragments - covered)))
            found.setdefault(index.field_names[0], []).append(each)
    return {name: indexes[0] for name, indexes in found.items() if len(indexes) == 1}


@dataclass(frozen=True, slots=True)
class Spread:
    """What a request needs to be spread: itself, as its caller has sent it, its table's id, and the servers.

    `sub_queries` is None where no other server can be asked: on the event loop.
    """

    request: models.QueryTableRequest
    table_id: int
    servers: TableServers
    sub_queries: SubQueries | None
    check_deadline: Callable[[], None]
    min_rows: int

    @classmethod
    def of(cls, ctx: Context, table: OpenTable, request: models.QueryTableRequest) -> Spread | None:
        """Return what a request needs; None where servers do not share out tables, or their searches."""
        servers = ctx.services.table_servers
        if servers is None or ctx.segments or not (rows := ctx.settings.spread_search_rows):
            return None
        return cls(request, table.record.id, servers, ctx.sub_queries, ctx.check_deadline, rows)

    def share_out(self, segments: Iterable[str], without: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
        """Return the segments of each server, by its URL; this one has what no other than those `without` could."""
        shares: dict[str, tuple[str, ...]] = {}
        for segment in segments:
            ranked = (server.url for server in self.servers.ranked((str(self.table_id), segment)))
            url = next((url for url in ranked if url not in without), self.servers.own_url)
            shares[url] = (*shares.get(url, ()), segment)
        return shares

    def collect(
        self,
        request: models.QueryTableRequest,
        segments: Sequence[str],
        find_here: Callable[[Sequence[str]], pa.Table],
    ) -> list[pa.Table]:
        """Return the nearest rows of all segments, each searched once, in any order.

        `request` is what other servers are asked, `find_here` searches segments in this thread. Raises what that
        raises, UnauthenticatedError and PermissionDeniedError of other servers, and as `check_deadline` does.
        """
        assert self.sub_queries is not None
        return _Collecting(self, self.sub_queries, request, find_here).collect(segments)


@dataclass(slots=True)
class _Share:
    """The segments that a server was asked about; `others` are asked in its place, each about some of them."""

    url: str
    segments: tuple[str, ...]
    answer: Future[pa.Table]
    others: list[tuple[tuple[str, ...], Future[pa.Table]]] | None = None
    is_repeatable: bool | None = None
    """Whether others may be asked while its server has not failed; None before that was asked."""
    found: list[pa.Table] = field(default_factory=list)

    def running(self) -> list[Future[pa.Table]]:
        asked = [self.answer, *(answer for _, answer in self.others or ())]
        return [answer for answer in asked if not answer.done()]


@dataclass(slots=True)
class _Collecting:
    """One search's shares, until all have been answered."""

    spread: Spread
    sub_queries: SubQueries
    request: models.QueryTableRequest
    find_here: Callable[[Sequence[str]], pa.Table]
    seconds: list[float] = field(default_factory=list)
    """What the shares took that have been answered."""
    started: float = field(default_factory=monotonic)

    def collect(self, segments: Sequence[str]) -> list[pa.Table]:
        found, shares = self._begin(segments)
        while shares:
            self.spread.check_deadline()
            waiting = []
            for share in shares:
                answer = self._answer(share)
                if answer is None:
                    waiting.append(share)
                else:
                    found += answer
            shares = waiting
            running = [answer for share in shares for answer in share.running()]
            if running:
                left = self._patience_left
                wait(running, min(_POLL_SECONDS, left) if left > 0 else _POLL_SECONDS, FIRST_COMPLETED)
        return found

    def _begin(self, segments: Sequence[str]) -> tuple[list[pa.Table], list[_Share]]:
        """Ask the other servers, and search the share of this one meanwhile."""
        paused: set[str] = set()
        while True:
            groups = self.spread.share_out(segments, paused)
            asked = groups.keys() - {self.spread.servers.own_url}
            refusing = {url for url in asked if not self.sub_queries.may_ask(url)}
            if not refusing:
                break
            paused |= refusing
        own = groups.pop(self.spread.servers.own_url, ())
        shares = [_Share(url, each, self._ask(url, each)) for url, each in groups.items()]
        if not own:
            return [], shares
        found = self.find_here(own)
        self._note_time()
        return [found], shares

    def _ask(self, url: str, segments: tuple[str, ...]) -> Future[pa.Table]:
        return submit_shared(self.sub_queries.ask, url, self.request, segments)

    def _note_time(self) -> None:
        self.seconds.append(monotonic() - self.started)

    @property
    def _patience_left(self) -> float:
        """Seconds until others are asked in the place of those that have not answered."""
        patience = max(MIN_PATIENCE_SECONDS, PATIENCE * median(self.seconds)) if self.seconds else MAX_PATIENCE_SECONDS
        return self.started + patience - monotonic()

    def _answer(self, share: _Share) -> list[pa.Table] | None:
        """Return the rows of a share, None as long as nobody has answered; ask others where its server is slow or gone.

        Raises what `find_here` raises, UnauthenticatedError, PermissionDeniedError.
        """
        if share.answer.done() and (found := _result(share.answer, share.segments)) is not None:
            self._note_time()
            return [found]
        if share.others is None:
            if not share.answer.done() and not self._is_late(share):
                return None
            self._ask_others(share)
        others = share.others or []
        if not all(answer.done() for _, answer in others):
            return None
        for segments, answer in others:
            found = _result(answer, segments)
            share.found.append(self.find_here(segments) if found is None else found)
        if not share.answer.done():
            self.sub_queries.note_slow(share.url)
        return share.found

    def _is_late(self, share: _Share) -> bool:
        """Return whether others are asked, though a server may still answer."""
        if self._patience_left > 0:
            return False
        if share.is_repeatable is None:
            share.is_repeatable = self.sub_queries.may_repeat()
        return share.is_repeatable or monotonic() - self.started > MAX_PATIENCE_SECONDS

    def _ask_others(self, share: _Share) -> None:
        """Ask the second server of each segment of a share, or search it here."""
        groups = self.spread.share_out(share.segments, {share.url})
        here = list(groups.pop(self.spread.servers.own_url, ()))
        share.others = []
        for url, segments in groups.items():
            if self.sub_queries.may_ask(url):
                share.others.append((segments, self._ask(url, segments)))
            else:
                here += segments
        if here:
            share.found.append(self.find_here(here))


def _result(answer: Future[pa.Table], segments: Sequence[str]) -> pa.Table | None:
    """Return an answer; None for one that is no use. Raises UnauthenticatedError, PermissionDeniedError."""
    try:
        found = answer.result()
    except ServiceUnavailableError as error:
        log.warning("%s So other servers search its segments.", error)
        return None
    answered = (found.schema.metadata or {}).get(ANSWERED_FOR, b"").decode()
    return found if answered == ",".join(segments) and {ROW_ID, DISTANCE} <= set(found.schema.names) else None


def merge_nearest(found: Iterable[pa.Table], count: int) -> pa.Table:
    """Return the nearest rows of several answers, by their ids where distances are equal: as Lance orders them."""
    rows = pa.concat_tables([table.select([ROW_ID, DISTANCE]).replace_schema_metadata() for table in found])
    ids: np.ndarray[Any, Any] = rows[ROW_ID].to_numpy()
    return rows.take(np.lexsort((ids, rows[DISTANCE].to_numpy()))[:count])
