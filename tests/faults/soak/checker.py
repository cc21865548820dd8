"""Check the storage against the outcomes of writes, and the results of reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tests.faults.soak.contents import Version
from tests.faults.soak.journal import Attempt, History, Kind, Outcome
from tests.faults.soak.replay import Timeline, replay
from tests.faults.soak.visibility import check_order


def check_history(
    history: History, tables: Mapping[str, Iterable[Version]], tags: Mapping[str, Mapping[str, int]] | None = None
) -> list[str]:
    """Return all complaints about the tables after a run; none if every guarantee holds."""
    lines = {table: replay(table, versions, history.attempts) for table, versions in tables.items()}
    complaints = [complaint for line in lines.values() for complaint in line.complaints]
    complaints += check_attempts(history, lines)
    complaints += check_restores(history, lines)
    if tags is not None:
        complaints += check_tags(history, lines, tags)
    return complaints + check_order(history, lines)


def check_attempts(history: History, lines: Mapping[str, Timeline]) -> Iterator[str]:
    """Check that acknowledged writes are there once, refused ones are not, and batches are atomic."""
    for attempt in history.attempts.values():
        if attempt.kind in {Kind.RESTORE, Kind.TAG}:
            continue
        versions_of = {table: lines[table].placed.get(attempt.name, []) for table in attempt.tables}
        tables_with_it = [table for table, versions in versions_of.items() if versions]
        description = f"{attempt.kind} {attempt.name} ({attempt.client}, {attempt.outcome} {attempt.error[:120]!r})"
        for table, versions in versions_of.items():
            if len(versions) > 1:
                yield f"{table}: {description} is there more than once: versions {versions}"
            if versions and attempt.outcome is Outcome.REFUSED:
                yield f"{table}: {description} is there: version {versions[0]}"
            if versions and attempt.versions.get(table, versions[0]) not in versions:
                yield f"{table}: {description} is version {versions[0]}; its answer said {attempt.versions[table]}"
            if not versions and attempt.outcome is Outcome.ACKNOWLEDGED and attempt.kind is not Kind.DELETE:
                yield f"{table}: {description} is lost; its answer said version {attempt.versions.get(table)}"
        if attempt.kind is Kind.BATCH and 0 < len(tables_with_it) < len(versions_of):
            others = sorted(versions_of.keys() - tables_with_it)
            yield f"{description} is half visible: in {tables_with_it}, not in {others}"


def check_restores(history: History, lines: Mapping[str, Timeline]) -> Iterator[str]:
    """Check restores, which have no marks: as many as were acknowledged, plus at most those of unknown outcome."""
    restores: dict[Outcome, Counter[tuple[str, int]]] = {outcome: Counter() for outcome in Outcome}
    for attempt in history.attempts.values():
        if attempt.kind is Kind.RESTORE:
            restores[attempt.outcome][attempt.tables[0], attempt.target] += 1
    for table, line in lines.items():
        for version in range(1, line.latest + 1):
            least = restores[Outcome.ACKNOWLEDGED][table, version]
            most = least + restores[Outcome.UNKNOWN][table, version]
            if not least <= line.restored[version] <= most:
                yield (
                    f"{table}: version {version} was restored {line.restored[version]} times; "
                    f"{least} acknowledged, {most - least} unknown"
                )


def check_tags(history: History, lines: Mapping[str, Timeline], tags: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Check that acknowledged tags exist, and have the right version."""
    for attempt in history.attempts.values():
        if attempt.kind is Kind.TAG:
            (table,) = attempt.tables
            yield from _check_tag(attempt, table, tags[table].get(attempt.name))
    for table, versions_of_tags in tags.items():
        for name, version in versions_of_tags.items():
            if not 1 <= version <= lines[table].latest:
                yield f"{table}: tag {name} is of version {version}, which is not there"
            if name not in history.attempts:
                yield f"{table}: tag {name} was made by nobody"


def _check_tag(attempt: Attempt, table: str, version: int | None) -> Iterator[str]:
    if version is None:
        if attempt.outcome is Outcome.ACKNOWLEDGED:
            yield f"{table}: tag {attempt.name} ({attempt.client}) was acknowledged, and is lost"
    elif attempt.outcome is Outcome.REFUSED:
        yield f"{table}: tag {attempt.name} ({attempt.client}) was refused ({attempt.error[:120]!r}), and is there"
    elif version != attempt.target:
        yield f"{table}: tag {attempt.name} is of version {version}, not {attempt.target}"
