"""Find anomalies in a history of transactions over lists: cycles of what each read and wrote, as Adya names them.

Each table is a list, to which transactions append values that are all different; who reads one sees in which order they
came. So the history itself says who read from whom, and who overwrote what somebody had read, as in Elle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import networkx as nx

WW, WR, RW, RT = "ww", "wr", "rw", "rt"
"""An edge from a transaction to one that wrote after it, that read from it, that overwrote what it had read, and that
began after its end."""
CYCLES = "G0", "G1c", "G-single", "G2-item"
"""Cycles of writes, of writes and reads, with one overwritten read, with several. With `-realtime`: only if who ended
before another one began counts as before it."""


@dataclass(frozen=True, slots=True)
class Read:
    """A list as a transaction read it."""

    name: str
    values: Sequence[int]


@dataclass(frozen=True, slots=True)
class Append:
    """A value that a transaction appended to a list."""

    name: str
    value: int


class Outcome(Enum):
    """What its client was told of a transaction."""

    PUBLISHED = "published"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Transaction:
    """What a transaction did, step by step, and when (nanoseconds; 0 for both where nobody cares)."""

    steps: list[Read | Append] = field(default_factory=list)
    outcome: Outcome = Outcome.PUBLISHED
    begin: int = 0
    end: int = 0

    @property
    def appends(self) -> list[Append]:
        return [step for step in self.steps if isinstance(step, Append)]

    def without_reads(self) -> Transaction:
        """Return the transaction as one that knows nothing of others."""
        return Transaction([*self.appends], self.outcome, self.begin, self.end)


def find_anomalies(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> Counter[str]:
    """Count anomalies by their names; `final` is what each list has in the end. A history without any gives none.

    Besides CYCLES, each counted once for each of its edges that make it one: G1a is a value of a transaction that was
    refused, or of none; G1b one with which its transaction did not end; `lost` one that was published, or whose
    transaction was in part, and is not there; `duplicate` one that is there twice; `order` a read of values in another
    order than that of the end; `stale` one without what was published before its transaction began; `internal` a
    transaction that does not read its own appends last.
    """
    seen = _Lists(history, final)
    found = Counter({"lost": len(seen.lost), "G1a": len(seen.foreign), "duplicate": seen.duplicates})
    found.update(seen.find_wrong_reads())
    edges = seen.find_edges()
    cycles = _count_cycles(edges)
    in_time = _count_cycles({**edges, WW: edges[WW] | _find_time_edges(seen.transactions)})
    found.update(cycles)
    found.update({f"{name}-realtime": in_time[name] - cycles[name] for name in CYCLES})
    return +found


Edge = tuple[int, int]


class _Lists:
    """Who wrote which value, and what was seen of it. A transaction of unknown outcome counts once it is seen."""

    def __init__(self, history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> None:
        self._final = final
        there = {value for listed in final.values() for value in listed}
        values = there | {value for _, read in _external_reads(history) for value in read.values}
        self.transactions = [entry for entry in history if _is_effective(entry, values)]
        self._writers = {step.value: number for number, entry in enumerate(self.transactions) for step in entry.appends}
        self._external_reads = list(_external_reads(self.transactions))
        self.lost = set(self._writers) - there
        seen = there | {value for _, read in self._external_reads for value in read.values}
        self.foreign = seen - set(self._writers)
        self.duplicates = sum(len(listed) - len(set(listed)) for listed in final.values())

    def find_wrong_reads(self) -> Iterator[str]:
        """Name each read that says something wrong of its own."""
        last = {
            (number, step.name): step.value for number, entry in enumerate(self.transactions) for step in entry.appends
        }
        for number, read in self._external_reads:
            if [*read.values] != [*self._final[read.name][: len(read.values)]]:
                yield "order"
            if any(self._is_before(value, number) for value in self._final[read.name][len(read.values) :]):
                yield "stale"
            writer = self._writers.get(read.values[-1], number) if read.values else number
            if writer != number and last[writer, read.name] != read.values[-1]:
                yield "G1b"
        for entry in self.transactions:
            own: dict[str, list[int]] = {}
            for step in entry.steps:
                mine = own.setdefault(step.name, [])
                if isinstance(step, Append):
                    mine.append(step.value)
                elif mine and [*step.values[-len(mine) :]] != mine:
                    yield "internal"

    def _is_before(self, value: int, number: int) -> bool:
        """Return whether a value was published before a transaction began."""
        writer = self.transactions[self._writers[value]] if value in self._writers else None
        return writer is not None and _has_end(writer) and writer.end < self.transactions[number].begin

    def find_edges(self) -> dict[str, set[Edge]]:
        """Find who came after whom, by what they read and wrote."""
        edges: dict[str, set[Edge]] = {WW: set(), WR: set(), RW: set()}
        for values in self._final.values():
            edges[WW] |= set(pairwise(self._writers[value] for value in values if value in self._writers))
        for number, read in self._external_reads:
            if read.values and read.values[-1] in self._writers:
                edges[WR].add((self._writers[read.values[-1]], number))
            following = self._final[read.name][len(read.values) : len(read.values) + 1]
            edges[RW] |= {(number, self._writers[value]) for value in following if value in self._writers}
        return {kind: {edge for edge in found if edge[0] != edge[1]} for kind, found in edges.items()}


def _external_reads(transactions: Iterable[Transaction]) -> Iterator[tuple[int, Read]]:
    """Yield what each transaction read of others: without what it had appended itself by then."""
    for number, entry in enumerate(transactions):
        own = {step.value for step in entry.appends}
        for step in entry.steps:
            if isinstance(step, Read):
                yield number, Read(step.name, [value for value in step.values if value not in own])


def _has_end(entry: Transaction) -> bool:
    """Return whether it is known by when a transaction was published."""
    return bool(entry.end) and entry.outcome is Outcome.PUBLISHED


def _is_effective(entry: Transaction, seen: set[int]) -> bool:
    if entry.outcome is Outcome.UNKNOWN:
        return any(step.value in seen for step in entry.appends)
    return entry.outcome is Outcome.PUBLISHED


def _find_time_edges(transactions: Sequence[Transaction]) -> set[Edge]:
    """Find who began after whose end; edges that follow from others are left out. One of unknown outcome has no end."""
    events = [(entry.begin, 1, number) for number, entry in enumerate(transactions) if entry.end]
    events += [(entry.end, 0, number) for number, entry in enumerate(transactions) if _has_end(entry)]
    latest, edges = set[int](), set[Edge]()
    for _, begins, number in sorted(events):
        if begins:
            edges |= {(ended, number) for ended in latest}
        else:
            latest = {other for other in latest if transactions[other].end > transactions[number].begin} | {number}
    return edges


def _count_cycles(edges: Mapping[str, set[Edge]]) -> Counter[str]:
    """Count the edges that are part of a cycle, by the cycle that each makes."""
    known = edges[WW] | edges[WR]
    graph = nx.DiGraph(known)
    every = _components(known | edges[RW])
    suspected = {edge for edge in edges[RW] if every[edge[0]] == every[edge[1]]}
    single = {
        (one, other) for one, other in suspected if other in graph and one in graph and nx.has_path(graph, other, one)
    }
    return Counter(
        {
            "G0": _count_within(edges[WW], edges[WW]),
            "G1c": _count_within(edges[WR], known),
            "G-single": len(single),
            "G2-item": len(suspected - single),
        }
    )


def _count_within(some: Iterable[Edge], edges: set[Edge]) -> int:
    """Count the edges among some that are part of a cycle of edges."""
    component = _components(edges)
    return sum(component[one] == component[other] for one, other in some)


def _components(edges: set[Edge]) -> dict[int, int]:
    found = nx.strongly_connected_components(nx.DiGraph(edges))
    return {number: place for place, component in enumerate(found) for number in component}
