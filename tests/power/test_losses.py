"""Loss of power in histories of writes: everything acknowledged is there, whatever the disk was allowed to lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.histories import KINDS
from tests.power.installation import Database
from tests.power.run import Plan, run
from tests.power.strengths import Strength
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.extended

GROUPS = {
    "rows": ("create", "insert", "overwrite", "merge", "update", "delete"),
    "versions": ("restore", "tags", "branches"),
    "copies of versions": ("snapshots", "clones", "index", "compaction"),
    "catalog": ("drop and undrop", "rename", "namespaces", "grants"),
    "clients": ("jobs", "streams", "publish", "commits of clients"),
    "files": ("backup", "export"),
}
"""Kinds of writes that have something to do with each other."""


def test_every_kind_of_write_is_in_a_group() -> None:
    assert {kind for kinds in GROUPS.values() for kind in kinds} == KINDS.keys()


def test_history_that_is_killed_keeps_what_was_acknowledged(fuse: None, folder: Path) -> None:
    """The judge has nothing against what a mere kill leaves."""
    report = run(Plan(3, strengths=(Strength.KILL,), writes=12), folder / "history")
    assert not report.complaints, str(report)


@pytest.mark.parametrize("group", GROUPS)
def test_history_that_loses_power_keeps_what_was_acknowledged(fuse: None, folder: Path, group: str) -> None:
    report = run(Plan(1, kinds=GROUPS[group]), folder / "history")
    assert not report.complaints, str(report)


@pytest.mark.parametrize("database", [Database.POSTGRES, Database.POSTGRES_ELSEWHERE])
def test_history_on_postgres_that_loses_power_keeps_what_was_acknowledged(
    fuse: None, folder: Path, postgres: PostgresServer, cluster: Path, database: Database
) -> None:
    kinds = tuple(kind for kind in KINDS if kind not in GROUPS["files"])
    report = run(Plan(2, database, kinds), folder / "history", postgres, cluster)
    assert not report.complaints, str(report)
