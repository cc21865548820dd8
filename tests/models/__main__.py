"""`python -m tests.models`: check all models and their broken twins; print the table of docs/guarantees.md.

With `--replay N` N traces of each model are replayed on servers, and N histories of servers looked for in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import IO

from tests.models.replay.actors import DivergenceError
from tests.models.replay.stage import record, replay
from tests.models.replay.stages import STAGES, model_of
from tests.models.replay.steps import HistoryChecker, simulate
from tests.models.spin import is_installed, models


def _say(line: str, stream: IO[str] = sys.stdout) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def main() -> int:
    """Check all; return 1 if a promise does not hold, a twin is not refuted, or a trace or a history is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", type=int, metavar="N", help="replay N traces of each model, and check N histories")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    options = parser.parse_args()
    if not is_installed():
        _say("This needs spin and gcc: scripts/install_services.sh spin", sys.stderr)
        return 1
    return _check_models() if options.replay is None else _replay(options.replay, options.seed)


def _replay(count: int, first: int) -> int:
    failures = 0
    _say("| model | traces | steps | differ | histories | steps | refused | seconds |")
    _say("|---|---|---|---|---|---|---|---|")
    for kind in STAGES:
        model, differ, refused, steps, recorded = model_of(kind), 0, 0, 0, 0
        started = sum(os.times()[:4])
        with (
            tempfile.TemporaryDirectory() as folder,
            tempfile.TemporaryDirectory() as work,
            kind(Path(folder)) as stage,
        ):
            checker = HistoryChecker(model, Path(work))
            for seed in range(first, first + count):
                trace = simulate(model, Path(folder), seed)
                steps += len(trace.steps)
                try:
                    replay(stage, trace.steps)
                except DivergenceError as error:
                    differ += 1
                    _say(f"{model.name}, seed {seed}: {error}, {', '.join(error.__notes__)}", sys.stderr)
                history = record(stage, seed)
                recorded += len(history)
                if not checker.has(history):
                    refused += 1
                    _say(f"{model.name}, seed {seed}: no execution has {'; '.join(map(str, history))}", sys.stderr)
        seconds = sum(os.times()[:4]) - started
        cells = (f"`{model.name}`", count, f"{steps:,}", differ, count, f"{recorded:,}", refused, f"{seconds:.0f}")
        _say(f"| {' | '.join(map(str, cells))} |")
        failures += differ + refused
    return 1 if failures else 0


def _check_models() -> int:
    failures = 0
    _say("| model | states | broken twin | refuted after |\n|---|---|---|---|")
    for model in models():
        for twin in (None, *model.twins):
            with tempfile.TemporaryDirectory() as folder:
                verdict = model.check(Path(folder), twin)
            failures += bool(verdict.broken) is (twin is None)
            end = f"{verdict.steps:,} steps" if verdict.broken else "" if twin is None else "**not refuted**"
            _say(f"| `{model.name}` | {verdict.states:,} | {f'`{twin}`' if twin else ''} | {end} |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
