"""Order in time: what was acknowledged, or read, before an operation begins must be visible to it.

One sweep over all that began and ended. Each table has a floor: the version that everybody must see from then on. An
answer raises the floor of its tables, and so does a read. A batch that is below the floor of one of its tables raises
the floors of all: seen in one table, it must be seen in every other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.soak.journal import FOR_EVER, Attempt, History, Kind, Outcome, Read
from tests.faults.soak.replay import Timeline

START, END = 0, 1


@dataclass(slots=True)
class Floors:
    """The lowest visible version (floor) of each table, and the batches that connect tables."""

    batches: Mapping[str, Sequence[tuple[int, str]]]
    placed: Mapping[str, Mapping[str, int]]
    _floors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __getitem__(self, table: str) -> int:
        return self._floors[table]

    def lift(self, table: str, version: int) -> None:
        """Raise the floor of a table, and those of tables that a batch connects to it."""
        waiting = [(table, version)]
        while waiting:
            table, version = waiting.pop()
            old = self._floors[table]
            if version <= old:
                continue
            self._floors[table] = version
            batches = self.batches.get(table, ())
            for number, name in batches[bisect_right(batches, (old, "\uffff")) :]:
                if number > version:
                    break
                waiting.extend(self.placed[name].items())


class Ceilings:
    """The highest version (ceiling) that can be visible at a time: below all that began later."""

    def __init__(self, lines: Mapping[str, Timeline], attempts: Mapping[str, Attempt]) -> None:
        self._latest = {table: line.latest for table, line in lines.items()}
        self._starts: dict[str, list[int]] = {}
        self._lowest: dict[str, list[int]] = {}
        for table, line in lines.items():
            starts = sorted((attempts[name].start, min(versions)) for name, versions in line.placed.items())
            lowest = [version for _, version in starts]
            for i in range(len(lowest) - 2, -1, -1):
                lowest[i] = min(lowest[i], lowest[i + 1])
            self._starts[table], self._lowest[table] = [start for start, _ in starts], lowest

    def at(self, table: str, time: int) -> int:
        """Return the ceiling of a table at a time."""
        i = bisect_right(self._starts[table], time)
        lowest = self._lowest[table]
        return lowest[i] - 1 if i < len(lowest) else self._latest[table]


def check_order(history: History, lines: Mapping[str, Timeline]) -> list[str]:
    """Return complaints about stale reads and writes, and about deletes without effect."""
    placed = _placed(history, lines)
    batches: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, versions in placed.items():
        if history.attempts[name].kind is Kind.BATCH:
            for table, version in versions.items():
                batches[table].append((version, name))
    floors = Floors({table: sorted(entries_of_table) for table, entries_of_table in batches.items()}, placed)
    sweep = _Sweep(lines, floors, Ceilings(lines, history.attempts), placed)
    entries: list[Attempt | Read] = [*history.attempts.values(), *history.reads]
    moments = [(entry.start, START, i) for i, entry in enumerate(entries)]
    moments += [(entry.end, END, i) for i, entry in enumerate(entries) if entry.end < FOR_EVER]
    for _, edge, i in sorted(moments):
        entry = entries[i]
        if edge == START:
            sweep.on_start(entry)
        elif isinstance(entry, Read):
            sweep.on_read_end(entry)
        else:
            sweep.on_end(entry)
    return sweep.complaints


def _placed(history: History, lines: Mapping[str, Timeline]) -> dict[str, dict[str, int]]:
    versions_of: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for table, line in lines.items():
        for name, versions in line.placed.items():
            if name in history.attempts:
                versions_of[name][table] = versions[0]
    return versions_of


class _Sweep:
    def __init__(
        self,
        lines: Mapping[str, Timeline],
        floors: Floors,
        ceilings: Ceilings,
        placed: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._lines, self._floors, self._ceilings, self._placed = lines, floors, ceilings, placed
        self._seen: dict[tuple[str, str], list[int]] = {}
        for table, line in lines.items():
            for number, digest in enumerate(line.digests):
                self._seen.setdefault((table, digest), []).append(number)
        self._floors_at_start: dict[int, int] = {}
        self.complaints: list[str] = []

    def on_start(self, entry: Attempt | Read) -> None:
        if isinstance(entry, Read):
            self._floors_at_start[id(entry)] = self._floors[entry.table]
            return
        for table, version in self._placed.get(entry.name, {}).items():
            if version <= (floor := self._floors[table]):
                self.complaints.append(
                    f"{table}: {entry.name} became version {version}, and {floor} was there before it began"
                )
        if entry.kind is Kind.DELETE:
            self._floors_at_start[id(entry)] = self._floors[entry.tables[0]]

    def on_end(self, attempt: Attempt) -> None:
        if attempt.outcome is not Outcome.ACKNOWLEDGED:
            return
        placed = self._placed.get(attempt.name, {})
        for table, version in placed.items():
            self._floors.lift(table, version)
        if attempt.kind is Kind.DELETE and not placed:
            (table,) = attempt.tables
            last = self._ceilings.at(table, attempt.end)
            if not self._lines[table].lacks(attempt.keys[table], self._floors_at_start[id(attempt)], last):
                self.complaints.append(f"{table}: {attempt.name} was acknowledged, and its rows are there as before")

    def on_read_end(self, read: Read) -> None:
        """Check that a read matches a version between the floor at its start and the ceiling at its end."""
        floor = self._floors_at_start.pop(id(read))
        versions = self._seen.get((read.table, read.digest), [])
        if read.version:
            versions = [number for number in versions if number == read.version]
        ceiling = self._ceilings.at(read.table, read.end)
        fitting = [number for number in versions if floor <= number <= ceiling]
        if fitting:
            self._floors.lift(read.table, fitting[0])
        elif versions:
            self.complaints.append(
                f"{read.table}: {read.reader} saw version {versions[-1]}, and {floor} was there before it asked"
                f" (nothing above {ceiling} had begun)"
            )
        else:
            self.complaints.append(f"{read.table}: {read.reader} saw rows that no version has (of {read.version})")
