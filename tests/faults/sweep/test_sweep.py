"""Operations that are killed at a sample of their writes. `python -m tests.faults.sweep` kills them at all.

Those on Spark are in `tests/spark/test_sweeps.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.sweep.operations import OPERATIONS
from tests.faults.sweep.places import NOT_SWEPT, REACHED, UNREACHED, read_places, write_places
from tests.faults.sweep.spark_jobs import SPARK_JOBS
from tests.faults.sweep.sweep import Servers, of_commit, sweep
from tests.services.postgres import postgres_server
from tests.services.s3 import s3_server

ALWAYS = ("snapshot-drop", "key-rotation")
KILLS = 2
OFTEN = of_commit(OPERATIONS.keys() - SPARK_JOBS.keys() - {*ALWAYS}, 8)
"""Those of `make test-all`, which would take minutes for all."""


def spread(writes: Sequence[str]) -> range:
    """Choose a few writes, at equal distances."""
    return range(len(writes) // (2 * KILLS), len(writes), max(len(writes) // KILLS, 1))


def check(name: str, folder: Path, servers: Servers) -> None:
    done = sweep(name, folder, servers, spread)
    assert len(done.kills) >= KILLS, "the operation writes nothing that is seen"
    assert not done.complaints, "\n".join(done.complaints)


@pytest.mark.parametrize("name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.extended) for name in OFTEN)])
def test_operation_killed_at_some_of_its_writes_keeps_its_promise(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, Servers())


@pytest.mark.extended
@pytest.mark.parametrize("name", ["upgrade", "key-rotation", "snapshot-create"])
def test_operation_killed_on_postgres_keeps_its_promise(name: str, tmp_path: Path) -> None:
    with postgres_server() as postgres:
        check(name, tmp_path, Servers(postgres))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["collection", "job-upsert"])
def test_operation_killed_with_tables_in_a_bucket_keeps_its_promise(name: str, tmp_path: Path) -> None:
    with s3_server() as objects:
        check(name, tmp_path, Servers(objects=objects))


def test_every_write_of_the_source_is_swept_or_says_why_not() -> None:
    """Functions that write were reached by the last complete sweep, or are named with a reason."""
    writes, reached, unreached = write_places(), read_places(REACHED), read_places(UNREACHED)
    assert writes - reached - unreached == set(), "sweep an operation that calls them, or add them to `unreached.txt`"
    assert (reached | unreached) - writes == set(), (
        "they write no more: take away their lines in `reached.txt` and `unreached.txt`, or rename them there"
    )
    patterns = [re.compile(f"{pattern}$") for pattern in NOT_SWEPT]
    unnamed = {place for place in unreached if not any(pattern.match(place) for pattern in patterns)}
    assert not unnamed, "say in NOT_SWEPT why no sweep reaches them"
    unused = [pattern.pattern for pattern in patterns if not any(map(pattern.match, unreached))]
    assert not unused, "each of the writes that they name is swept, or gone"
