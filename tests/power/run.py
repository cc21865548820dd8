"""Runs: a history, a loss of power, and a judgement for each strength of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.power.histories import KINDS, Outcome, run_history
from tests.power.installation import Database, Installation
from tests.power.judge import Complaint, Judge, Verdict
from tests.power.strengths import Strength
from tests.services.postgres import PostgresServer

LOSSES = (Strength.ORDERED, Strength.RANDOM, Strength.STRICT)


@dataclass(frozen=True, slots=True)
class Plan:
    """One history: its seed decides its writes, and when the power goes."""

    seed: int
    database: Database = Database.SQLITE
    kinds: Sequence[str] = tuple(KINDS)
    strengths: Sequence[Strength] = LOSSES
    writes: int = 25
    changes: tuple[int, int] = (20, 1500)
    """Between which numbers of changes of the disk the power goes."""
    settled: bool = False
    """Whether all that the start of the server has made is on the disk before the history begins."""
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """What came out, by strength."""

    plan: Plan
    outcome: Outcome
    verdicts: dict[Strength, Verdict] = field(default_factory=dict)

    @property
    def complaints(self) -> list[str]:
        """All complaints, each with its strength."""
        return [
            *self.outcome.complaints,
            *(
                f"{strength}: {complaint.kind}: {complaint.text}"
                for strength, verdict in self.verdicts.items()
                for complaint in verdict.complaints
            ),
        ]

    def __str__(self) -> str:
        done = ", ".join(f"{kind} {number}" for kind, number in self.outcome.acknowledged.items())
        head = f"seed {self.plan.seed}, {self.plan.database}: {done}; cut in {self.outcome.unsure_kind or 'no call'}"
        return "\n".join([head, *(f"  {complaint}" for complaint in self.complaints)])


def run(plan: Plan, folder: Path, postgres: PostgresServer | None = None, cluster: Path | None = None) -> Report:
    """Run a history below a folder, cut the power, and judge what is left in each strength."""
    chance = random.Random(f"{plan.seed} cut")
    folder.mkdir(exist_ok=True)
    installation = Installation(folder, plan.database, postgres, cluster, plan.environ)
    try:
        installation.start()
        if plan.settled:
            installation.disk.command("syncfs")
        changes = chance.randint(*plan.changes)
        report = Report(plan, run_history(installation, f"{plan.seed}", list(plan.kinds), plan.writes, changes))
        installation.lose_power()
        images = {each: installation.keep(each, f"{plan.seed}") for each in plan.strengths}
        installation.disk.unmount()
        for strength, image in images.items():
            report.verdicts[strength] = _judge(installation, image, report.outcome, strength is plan.strengths[-1])
        return report
    finally:
        installation.close()
        shutil.rmtree(folder, ignore_errors=True)


def _judge(installation: Installation, image: Path, outcome: Outcome, with_backup: bool) -> Verdict:
    try:
        with (
            installation.restarted(image) as server,
            Judge(installation, server, outcome) as judge,
        ):
            return judge.judge(with_backup=with_backup)
    except RuntimeError as error:
        return Verdict({}, [Complaint("start", str(error)[-2000:])])
