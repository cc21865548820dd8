"""Parsers of callers' bytes: on what fuzzing has found, and a minute of fuzzing (`make fuzz` is the long one)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.parsers import all_targets  # noqa: F401  # they register themselves
from tests.fuzz.parsers.corpus import FOLDER, read_corpus
from tests.fuzz.parsers.target import TARGETS
from tests.services.cases import check_each

MAX_CORPORA_BYTES = 300_000
SECONDS = 60
"""Processor time of all targets together."""


def test_parsers_given_what_fuzzing_has_found_raise_declared_errors_alone() -> None:
    inputs = [(name, data) for name in TARGETS for data in read_corpus(name)]
    check_each(inputs, lambda case: TARGETS[case[0]].check(case[1]))


def test_modules_whose_branches_guide_the_search_are_there() -> None:
    check_each(TARGETS, lambda name: TARGETS[name].modules())


def test_corpora_are_those_of_targets_and_remain_small() -> None:
    files = list(FOLDER.iterdir())
    assert {path.stem for path in files} == TARGETS.keys()
    assert sum(path.stat().st_size for path in files) < MAX_CORPORA_BYTES


@pytest.mark.extended
@pytest.mark.timeout(3600)  # a minute of processor time, beside whatever else runs
def test_parsers_given_new_inputs_raise_declared_errors_alone() -> None:
    pytest.importorskip("atheris", reason="fuzzing is guided by atheris, which is there for Linux on x86-64")
    command = [sys.executable, "-m", "tests.fuzz.parsers", "--seconds", str(SECONDS), "--seed", "7", "--no-keep"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
