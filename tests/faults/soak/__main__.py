"""`python -m tests.faults.soak --seconds 600 --seed 7`: a long run of every variant, or of one; or of endurance."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.soak.endurance import EndurancePlan, endure
from tests.faults.soak.environment import Variant
from tests.faults.soak.run import Plan, run


def main() -> int:
    """Run, print the report, and fail on any complaint; keep the journals of a failed run."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long, shared by the variants")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--variant", type=Variant, choices=list(Variant), action="append", help="default: all")
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--endurance", action="store_true", help="judge what a server takes, without faults")
    parser.add_argument("--every", type=float, default=10, help="of endurance: seconds between samples")
    parser.add_argument("--own-caches", action="store_true", help="of endurance: the server's own bounds of caches")
    parser.add_argument("--spark", action="store_true", help="of endurance: a schedule with jobs of Spark")
    options = parser.parse_args()
    if options.endurance:
        return _endure(EndurancePlan(options.seconds, options.seed, options.every, options.own_caches, options.spark))
    variants = options.variant or list(Variant)
    failed = False
    for variant in variants:
        folder = Path(tempfile.mkdtemp(prefix=f"history-{variant}-"))
        plan = Plan(variant, options.seconds / len(variants), options.seed, options.writers, options.processes)
        report = run(plan, folder)
        _say(f"{variant}, seed {options.seed}: {report}")
        if report.complaints:
            failed = True
            _say(f"{len(report.complaints)} complaints; the journals are in {folder / 'journals'}")
    return int(failed)


def _endure(plan: EndurancePlan) -> int:
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    _say(f"endurance, seed {plan.seed}: {folder / 'samples.csv'}")
    report = endure(plan, folder)
    _say(str(report))
    return int(bool(report.complaints))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
