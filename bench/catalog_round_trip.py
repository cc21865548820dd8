"""Measure a catalog as code: export a catalog of 2,000 objects, apply that to an empty one, and export it again.

`python -m bench.catalog_round_trip` prints the seconds of each step on a folder with SQLite, and whether the two files
are the same to the byte.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tiltyard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACES, TABLES, VIEWS, OTHERS = 20, 1_000, 400, 116


def lines() -> Iterator[str]:
    """Yield the lines of a file that declares the objects."""
    homes = [f"n{number % NAMESPACES:02}" for number in range(TABLES)]
    yield "version: 1\nroles:"
    yield from (f"  role{number:03}: {{members: [ann{number}, 'group:g{number}']}}" for number in range(OTHERS))
    yield "namespaces:"
    yield from (f"  n{number:02}: {{properties: {{owner: team{number}}}}}" for number in range(NAMESPACES))
    yield "tables:"
    for number, home in enumerate(homes):
        yield f"  {home}.t{number:04}:"
        yield "    columns: {id: {type: int64, nullable: false}, mail: string, vector: 'float32[8]', price: double}"
        yield f"    properties: {{team: t{number % 7}}}"
    yield "views:"
    for number in range(VIEWS):
        yield f"  {homes[number]}.v{number:04}: {{sql: 'SELECT id, mail FROM {homes[number]}.t{number:04}'}}"
    yield "classifications:"
    yield from (f"  table:{homes[n]}.t{n:04}: {{columns: {{mail: {{pii: email}}}}}}" for n in range(OTHERS))
    yield "policies:"
    yield from (f"  {homes[n]}.t{n:04}: {{own: {{filter: id < {n}, hide: [price]}}}}" for n in range(OTHERS))
    yield "grants:"
    yield from (f"  table:{homes[n]}.t{n:04}: {{'role:role{n:03}': [use, read]}}" for n in range(OTHERS))
    yield "schedules:"
    for n in range(OTHERS):
        yield f"  {homes[n]}.tidy{n:03}: {{job: optimize, table: {homes[n]}.t{n:04}, cron: 0 {n % 24} * * *}}"


def main() -> None:
    """Make the catalog, and measure the round trip."""
    with tempfile.TemporaryDirectory() as folder:
        first, again = Path(folder, "catalog.yaml"), Path(folder, "again.yaml")
        Path(folder, "wanted.yaml").write_text("\n".join(lines()) + "\n")
        with tiltyard.connect(f"{folder}/a") as lake:
            _timed("make it", lake.plan_catalog(Path(folder, "wanted.yaml")).apply)
            _timed("export", lambda: first.write_text(lake.export_catalog()))
        with tiltyard.connect(f"{folder}/b") as other:
            plan = other.plan_catalog(first)
            _timed(f"apply to an empty catalog ({plan.summary})", plan.apply)
            _timed("export that", lambda: again.write_text(other.export_catalog()))
            _timed("plan with nothing to do", lambda: _check(not other.plan_catalog(first).changes))
        _check(first.read_text() == again.read_text())
        sys.stdout.write(f"the same to the byte: {first.stat().st_size:,} bytes\n")


def _timed(name: str, step: Callable[[], object]) -> None:
    started_at = time.monotonic()
    step()
    sys.stdout.write(f"{name}: {time.monotonic() - started_at:.1f} s\n")
    sys.stdout.flush()


def _check(holds: bool) -> None:
    if not holds:
        sys.exit("The round trip has changed the catalog.")


if __name__ == "__main__":
    main()
