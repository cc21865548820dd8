"""Loss of power in histories of writes: everything acknowledged is there, whatever the disk was allowed to lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.histories import KINDS
from tests.power.installation import Database
from tests.power.run import LOSSES, Plan, run
from tests.power.strengths import Strength
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.extended

KEPT = ("namespaces", "grants")
"""Kinds of writes that survive each loss."""


@pytest.mark.parametrize("kinds", [tuple(KINDS)])
@pytest.mark.parametrize("database", [Database.SQLITE])
def test_history_that_is_killed_keeps_what_was_acknowledged(
    fuse: None, folder: Path, database: Database, kinds: tuple[str, ...]
) -> None:
    report = run(Plan(3, database, kinds, (Strength.KILL,), writes=12), folder / "history")
    assert not report.complaints, str(report)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("database", [Database.SQLITE, Database.POSTGRES])
def test_history_that_loses_power_keeps_what_was_acknowledged(
    fuse: None, folder: Path, database: Database, postgres: PostgresServer, cluster: Path, seed: int
) -> None:
    plan = Plan(seed, database, KEPT, LOSSES, settled=True)
    report = run(plan, folder / "history", postgres, cluster)
    assert not report.complaints, str(report)
