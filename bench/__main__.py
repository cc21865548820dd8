"""The command: choose rows, run them, print and record what came out."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import access, appending, catalog, commits, jobs, searches, writes
from bench.environment import Environment
from bench.results import FILE, Result, begin, record

ROWS: dict[str, Callable[[Environment], list[Result]]] = {
    "describe": catalog.describe,
    "exists": catalog.exists,
    "root": catalog.in_root,
    "namespace": catalog.namespace,
    "list": catalog.listing,
    "job": jobs.describe_job,
    "scale": catalog.scale,
    "memory": catalog.memory,
    "guard": access.guard,
    "narrow": access.narrow,
    "classified": access.classified,
    "declare": catalog.declare,
    "create": catalog.create,
    "nearest": searches.nearest,
    "nearest-ids": searches.nearest_ids,
    "equal": searches.equal,
    "count": searches.counting,
    "answer": searches.answer,
    "commits": commits.commits,
    "commits-postgres": commits.commits_postgres,
    "appends": appending.appends,
    "batch": commits.batch,
    "latest": commits.latest,
    "insert": writes.insert,
    "upload": writes.one_upload,
}
"""In the order they run: those that make a catalog grow come after those that read it."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Tiltyard against pylance's RestAdapter and against pylance in one process.",
        epilog="rows: " + ", ".join(ROWS) + "\n\nexample: python -m bench describe list",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run [default: all]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server; medians count [default: 3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn [default: 4]")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count(),
        help="server processes of Tiltyard [default: one for each processor, as RestAdapter has threads]",
    )
    parser.add_argument(
        "--work",
        type=lambda text: Path(text).resolve(),
        help="folder that keeps prepared data for the next run [default: none]",
    )
    parser.add_argument("--dry", action="store_true", help=f"leave {FILE.name} as it is")
    arguments = parser.parse_args()
    if unknown := [row for row in arguments.rows if row not in ROWS]:
        parser.error(f"no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    return arguments


def _run(environment: Environment, names: list[str]) -> tuple[list[Result], bool]:
    """All rows, and whether none broke off."""
    results: list[Result] = []
    whole = True
    for name in names:
        started_at = time.perf_counter()
        try:
            found = ROWS[name](environment)
        except (RuntimeError, OSError) as error:  # one row that cannot be measured must not cost the others
            print(f"{name}: not measured: {error}", file=sys.stderr, flush=True)
            whole = False
            continue
        results += found
        for result in found:
            print(f"{result.what}: {result.ratio} (target: {result.target}) {result.verdict}")
            print(f"    Tiltyard {result.ours}\n    {result.against}", flush=True)
        print(f"    [{time.perf_counter() - started_at:.0f} s]", flush=True)
    return results, whole


def main() -> int:
    """Run rows; status 0 if every target was met."""
    arguments = _arguments()
    names = [name for name in ROWS if not arguments.rows or name in arguments.rows]
    settings = (
        f"{arguments.rounds} rounds of {arguments.seconds:g} s, medians; Tiltyard with --workers {arguments.workers}"
    )
    run = begin(" ".join(["python -m bench", *arguments.rows]), settings)
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-", dir=arguments.work and arguments.work.parent) as folder:
        roots = Path(folder)
        work: Path = arguments.work or roots / "work"
        work.mkdir(parents=True, exist_ok=True)
        environment = Environment(work, roots, arguments.rounds, arguments.seconds, arguments.workers)
        try:
            results, whole = _run(environment, names)
        finally:
            environment.close()
    if not arguments.dry and results:
        record(results, run, list(ROWS))
    return 0 if whole and all(result.met is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
