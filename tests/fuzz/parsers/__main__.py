"""Fuzz the parsers of callers' bytes, for so many seconds of processor time in all, and keep what was found.

    python -m tests.fuzz.parsers --seconds 1800            # all targets, in turn; grows the corpora in the tree
    python -m tests.fuzz.parsers --seconds 60 --no-keep    # as `make test-all` does
    python -m tests.fuzz.parsers --seconds 60 sql_filter http_framing

Prints a row for each target. The inputs of faults are kept as well, so that tests fail until they are mended.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
from pathlib import Path

from tests.fuzz.parsers import all_targets  # noqa: F401  # they register themselves
from tests.fuzz.parsers.corpus import read_corpus, write_corpus
from tests.fuzz.parsers.fuzzing import Findings, fuzz, minimize
from tests.fuzz.parsers.target import TARGETS, Target

ROW = "{:22} {:>11} {:>6} {:>9} {:>6} {:>7} {:>6}"


def main() -> int:
    """Fuzz each target for its share of the time; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=1800.0, help="processor time of all targets together")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--no-keep", action="store_true", help="leave the corpora in the tree as they are")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="all by default")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    logging.disable(logging.CRITICAL)
    gc.freeze()
    print(ROW.format("target", "executions", "edges", "processor", "new", "corpus", "faults"), flush=True)
    total = Findings()
    for name in names:
        findings = _fuzz_one(TARGETS[name], arguments.seconds / len(names), arguments.seed, keep=not arguments.no_keep)
        total.executions += findings.executions
        total.seconds += findings.seconds
        total.found += findings.found
        total.kept += findings.kept
        total.faults |= {f"{name}: {fault}": data for fault, data in findings.faults.items()}
    _print_row("all", total)
    for fault, data in total.faults.items():
        print(f"\nFAULT {fault.rstrip()}\ninput: {data!r}")
    return 1 if total.faults else 0


def _fuzz_one(target: Target, seconds: float, seed: int, *, keep: bool) -> Findings:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        corpus = read_corpus(target.name)
        findings = fuzz(target, corpus, seconds, Path(folder, "fuzz"), seed=seed)
        if keep:
            findings.kept = minimize(target, [*corpus, *findings.found], Path(folder, "merge"))
            write_corpus(target.name, [*findings.kept, *findings.faults.values()])
        else:
            findings.kept = corpus
    _print_row(target.name, findings)
    return findings


def _print_row(name: str, findings: Findings) -> None:
    print(
        ROW.format(
            name, findings.executions, findings.edges, f"{findings.seconds:.1f} s", len(findings.found),
            len(findings.kept), len(findings.faults),
        ),
        flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
