"""`python -m tests.power --seconds 600 --seed 7`: loss of power after loss of power, and a table of what was lost."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.power.histories import KINDS
from tests.power.installation import Database
from tests.power.kernel import has_fuse
from tests.power.postgres import prepare_cluster
from tests.power.run import LOSSES, Plan, Report, run
from tests.power.strengths import Strength
from tests.services.postgres import PostgresServer, postgres_server


def main() -> int:
    """Run histories for so long, print each that has complaints and the table; fail on any complaint."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--histories", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="of the first one")
    parser.add_argument("--database", type=Database, choices=list(Database), action="append", help="default: all")
    parser.add_argument("--kind", choices=list(KINDS), action="append", help="default: one or two kinds a history")
    parser.add_argument("--strength", type=Strength, choices=list(Strength), action="append", help="default: losses")
    parser.add_argument("--writes", type=int, default=25)
    parser.add_argument("--settled", action="store_true", help="what a server's start has made is on the disk")
    options = parser.parse_args()
    if not has_fuse():
        _say("Mounting a file system needs /dev/fuse, and root.")
        return 1
    databases = options.database or list(Database)
    until, reports = time.monotonic() + options.seconds, list[Report]()
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user
        with postgres_server() as postgres:
            cluster = prepare_cluster(postgres, folder / "cluster") if Database.POSTGRES in databases else None
            while time.monotonic() < until and len(reports) < options.histories:
                seed = options.seed + len(reports)
                kinds = options.kind or random.Random(seed).sample(list(KINDS), 2)
                database = databases[len(reports) % len(databases)]
                plan = Plan(seed, database, kinds, options.strength or LOSSES, options.writes, settled=options.settled)
                reports.append(_run(plan, folder / f"{seed}", postgres, cluster))
    _say(make_table(reports))
    return int(any(report.complaints for report in reports))


def _run(plan: Plan, folder: Path, postgres: PostgresServer, cluster: Path | None) -> Report:
    started = time.monotonic()
    report = run(plan, folder, postgres, cluster)
    _say(f"{time.monotonic() - started:.1f} s, {report}")
    return report


def make_table(reports: list[Report]) -> str:
    """Make the table of checked and lost parts: by database, kind of write and strength."""
    checked, lost, histories = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[tuple[str, str]]()
    for report in reports:
        for kind in report.outcome.acknowledged:
            histories[report.plan.database, kind] += 1
        for strength, verdict in report.verdicts.items():
            for kind, number in verdict.checked.items():
                checked[report.plan.database, kind, strength] += number
            for complaint in verdict.complaints:
                lost[report.plan.database, complaint.kind, strength] += 1
    strengths = [strength for strength in Strength if any(strength in report.verdicts for report in reports)]
    cuts = f"{len(reports)} histories and cuts, {sum(histories.values())} kinds of writes in them"
    lines = [
        f"{cuts}; {sum(checked.values())} acknowledged parts checked, {sum(lost.values())} complaints",
        f"| database | kind of write | histories | {' | '.join(f'{each}: checked / lost' for each in strengths)} |",
        f"|---|---|---|{'---|' * len(strengths)}",
    ]
    rows = {key[:2] for key in (*checked, *lost)}
    for database, kind in sorted(rows):
        cells = [f"{checked[database, kind, each]} / {lost[database, kind, each]}" for each in strengths]
        lines.append(f"| {database} | {kind} | {histories[database, kind]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
