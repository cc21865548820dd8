"""The sweep of pending versions: versions that cannot be finalized block no others, and are retried with backoff."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from pathlib import Path

import lance
import pytest
from msgspec import structs
from tests.tables.commits.test_commit import location, stage
from tests.tables.served import Server

from tiltyard.store import NewVersion
from tiltyard.tables.commits import finalizing
from tiltyard.tables.commits.process_state import FIRST_PAUSE_MS, MAX_PAUSE_MS, MAX_TABLES, FinalizingBackoff
from tiltyard.worker.runner import sweep_leftovers


def pend(server: Server, name: str, version: int, staged: str) -> None:
    """Record a version as a server does that dies right after the record."""
    record = server.ctx.store.describe_table((name,))
    path = f"_versions/{2**64 - 1 - version}.manifest"
    server.ctx.store.record_version(NewVersion(record.id, version, staged, path))


def gone(server: Server, name: str, versions: int = 1) -> None:
    """Create a table whose folder is gone, with pending versions."""
    server.declare(name, managed=True)
    folder = location(server, name)
    for version in range(1, versions + 1):
        pend(server, name, version, f"{folder}/_versions/{2**64 - 1 - version}.manifest-staged")


def finishable(server: Server, name: str, scratch: Path) -> Path:
    server.declare(name, managed=True)
    folder = location(server, name)
    pend(server, name, 1, stage(folder, 1, scratch))
    return folder


@pytest.mark.parametrize(("tables", "versions"), [(MAX_TABLES + 20, 1), (1, 250)], ids=["tables", "versions of one"])
def test_versions_that_cannot_be_finalized_starve_nobody(
    server: Server, tmp_path: Path, tables: int, versions: int
) -> None:
    for number in range(tables):
        gone(server, f"gone-{number}", versions)
    folders = [finishable(server, f"good-{number}", tmp_path) for number in range(3)]
    for _ in range(2):
        sweep_leftovers(server.ctx)
    assert [lance.dataset(folder).count_rows() for folder in folders] == [3, 3, 3]
    server.services.commit_log.flush()
    good = [server.ctx.store.describe_table((f"good-{number}",)).id for number in range(3)]
    assert not any(map(server.ctx.store.has_pending_versions, good))


def test_version_behind_many_of_its_table_that_cannot_be_finalized_is_finalized(server: Server, tmp_path: Path) -> None:
    server.declare("t", managed=True)
    folder = location(server, "t")
    for version in range(2, finalizing.PENDING_PAGE + 10):
        pend(server, "t", version, f"{folder}/_versions/{2**64 - 1 - version}.manifest-staged")
    pend(server, "t", 1, stage(folder, 1, tmp_path))
    assert finalizing.finalize_pending(server.ctx, server.ctx.store.describe_table(("t",)).id) == 1
    assert lance.dataset(folder).count_rows() == 3


def test_table_that_cannot_be_finished_is_tried_after_longer_and_longer_pauses(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone(server, "gone")
    tries: Counter[int] = Counter()
    finish = finalizing._finish

    def counted(ctx: object, table: object, record: object) -> None:
        tries[now] += 1
        finish(ctx, table, record)  # type: ignore[arg-type]  # passed on as they come

    monkeypatch.setattr(finalizing, "_finish", counted)
    start = now = server.ctx.clock() + 60_000
    services = dataclasses.replace(server.ctx.services, clock=lambda: now)
    ctx = structs.replace(server.ctx, services=services)
    with caplog.at_level(logging.WARNING, "tiltyard.versions"):
        while now < start + 3_600_000:
            sweep_leftovers(ctx)
            now += 1000
    assert set(tries.values()) == {1}
    pauses = [later - sooner for sooner, later in zip(sorted(tries), sorted(tries)[1:], strict=False)]
    assert pauses[0] <= FIRST_PAUSE_MS + 1000 and max(pauses) <= MAX_PAUSE_MS + 1000
    assert 15 <= len(tries) <= 30  # of 3,600 sweeps in an hour
    assert sum("tried again in" in line.message for line in caplog.records) == len(tries)


def test_table_that_was_finished_is_tried_at_once_the_next_time() -> None:
    backoff, pending = FinalizingBackoff(), lambda after, limit: [7] if after < 7 else []
    assert backoff.next_tables(pending, 0) == [7]
    pause = backoff.add_failure(7, 0)
    assert backoff.next_tables(pending, pause - 1) == []
    assert backoff.next_tables(pending, pause) == [7]
    backoff.reset(7)
    assert backoff.add_failure(7, pause) <= FIRST_PAUSE_MS


def test_turns_go_round_all_tables() -> None:
    backoff, tables = FinalizingBackoff(), range(1, 2 * MAX_TABLES + 51)
    turns = [
        backoff.next_tables(lambda after, limit: [table_id for table_id in tables if table_id > after][:limit], 0)
        for _ in range(3)
    ]
    assert turns[0] + turns[1] == list(range(1, 2 * MAX_TABLES + 1))
    assert turns[2][:50] == list(range(2 * MAX_TABLES + 1, 2 * MAX_TABLES + 51))
    assert {table_id for turn in turns for table_id in turn} == set(tables)


def test_error_that_nobody_foresaw_keeps_no_other_table_waiting(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone(server, "gone")
    folder = finishable(server, "good", tmp_path)
    finish = finalizing._finish

    def fail(ctx: object, table: object, record: object) -> None:
        if getattr(table, "name", "") == "gone":
            raise OSError("an error of the disk")
        finish(ctx, table, record)  # type: ignore[arg-type]  # passed on as they come

    monkeypatch.setattr(finalizing, "_finish", fail)
    assert sweep_leftovers(server.ctx)
    assert lance.dataset(folder).count_rows() == 3


def test_readers_wait_for_what_is_recorded_and_not_for_what_was_just_finalized(server: Server, tmp_path: Path) -> None:
    folder = finishable(server, "t", tmp_path)
    record = server.ctx.store.describe_table(("t",))
    assert finalizing.has_unfinished(server.ctx, record)
    finalizing.finalize_pending(server.ctx, record.id)
    record = server.ctx.store.describe_table(("t",))
    assert server.ctx.store.has_pending_versions(record.id), "marked in the background"
    assert not finalizing.has_unfinished(server.ctx, record)
    pend(server, "t", 2, stage(folder, 2, tmp_path))
    assert finalizing.has_unfinished(server.ctx, record)
