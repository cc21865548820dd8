"""Replay the versions of a table, one after another, from the attempts that created them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.soak.contents import TornTableError, Version
from tests.faults.soak.journal import Attempt, Kind, Row, digest_of

MAX_COMPLAINTS = 20


@dataclass(slots=True)
class Timeline:
    """The contents of a table's versions; index 0 of `digests` is the table before its first version."""

    table: str
    digests: list[str] = field(default_factory=lambda: [digest_of(())])
    placed: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The versions of each attempt."""
    restored: Counter[int] = field(default_factory=Counter)
    """How often each version was restored."""
    turns: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The versions at which a key appears, disappears, appears again, …"""
    complaints: list[str] = field(default_factory=list)

    @property
    def latest(self) -> int:
        return len(self.digests) - 1

    def holds(self, key: str, version: int) -> bool:
        """Return whether a version has the key."""
        return bisect_right(self.turns[key], version) % 2 == 1

    def lacks(self, keys: Iterable[str], first: int, last: int) -> bool:
        """Return whether one of these versions has none of the keys."""
        return any(not any(self.holds(key, number) for key in keys) for number in range(first, last + 1))

    def complain(self, complaint: str) -> None:
        """Add a complaint, up to a maximum."""
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(f"{self.table}: {complaint}")


def replay(table: str, versions: Iterable[Version], attempts: Mapping[str, Attempt]) -> Timeline:
    """Replay a table's versions; each must be the previous one with the changes of its attempts."""
    line = Timeline(table)
    before: Counter[Row] = Counter()
    try:
        for version in versions:
            _explain(line, before, version, attempts)
            _note_turns(line, before, version)
            line.digests.append(digest_of(version.rows.elements()))
            before = version.rows
    except TornTableError as error:
        line.complain(str(error))
    return line


def _note_turns(line: Timeline, before: Counter[Row], version: Version) -> None:
    old, new = {key for key, _ in before}, {key for key, _ in version.rows}
    for key in old ^ new:
        line.turns[key].append(version.number)
    if len(new) < version.rows.total():
        doubled = [key for key, times in Counter(key for key, _ in version.rows.elements()).items() if times > 1]
        line.complain(f"version {version.number} has keys twice: {sorted(doubled)[:5]}")


def _explain(line: Timeline, before: Counter[Row], version: Version, attempts: Mapping[str, Attempt]) -> None:
    if version.operation == "Restore":
        line.restored[version.restored] += 1
        if digest_of(version.rows.elements()) != line.digests[version.restored]:
            line.complain(f"version {version.number} restored {version.restored}, and has other rows")
        return
    marks = {version.mark} if version.operation == "Delete" else {by for _, by in version.rows - before}
    made_by = []
    for name in sorted(marks):
        if name not in attempts or line.table not in attempts[name].keys:
            line.complain(f"version {version.number} has a change of {name!r}, which nobody tried")
        else:
            line.placed[name].append(version.number)
            made_by.append(attempts[name])
    if len(made_by) == len(marks) and (expected := _applied(line.table, before, made_by)) != version.rows:
        missing, extra = (sorted(rows.elements())[:5] for rows in (expected - version.rows, version.rows - expected))
        commit = f"version {version.number} ({version.operation} by {sorted(marks)})"
        line.complain(f"{commit} lacks {missing} and has {extra} too much")


def _applied(table: str, before: Counter[Row], made_by: Sequence[Attempt]) -> Counter[Row]:
    """Compute the rows after a version's attempts: several appends, or one of another kind."""
    kinds = {attempt.kind for attempt in made_by}
    if kinds <= {Kind.APPEND, Kind.BATCH}:
        return sum((Counter(attempt.rows(table)) for attempt in made_by), Counter(before))
    attempt = made_by[0]
    keys = set(attempt.keys[table])
    match attempt.kind:
        case _ if len(made_by) > 1:
            return Counter(before)  # these never come together
        case Kind.OVERWRITE:
            return Counter(attempt.rows(table))
        case Kind.MERGE:
            others = Counter({row: times for row, times in before.items() if row[0] not in keys})
            return others + Counter(attempt.rows(table))
        case Kind.DELETE:
            return Counter({row: times for row, times in before.items() if row[0] not in keys})
        case _:
            return Counter(before)
