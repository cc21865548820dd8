"""`python -m tests.faults.soak --seconds 600 --seed 7`: a long run of every variant, or of one."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

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
    options = parser.parse_args()
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


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
