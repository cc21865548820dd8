"""Schedules of several servers, of which one is killed with a claim: each time has one job, and no time is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.runtime.failpoints import Point

Talk = Callable[[ServerProcess], Wire]
SCHEDULES = 20
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


def make_due(installation: Installation) -> None:
    installation.sql("UPDATE schedules SET due_at = 1 WHERE name <> 'embed'")


def count_jobs(installation: Installation) -> Counter[str]:
    """Return how many jobs each schedule has queued, by its name."""
    names = dict(installation.sql("SELECT id, name FROM schedules"))
    keys = installation.sql("SELECT run_key FROM transactions WHERE run_key LIKE 'schedule %'")
    return Counter(names[key.removeprefix("schedule ")] for (key,) in keys)


def test_each_time_has_one_job_though_a_server_is_killed_with_its_claim(installation: Installation, talk: Talk) -> None:
    armed = installation.root.parent / "armed"
    dying = installation.start(TILTYARD_FAULT=f"{Point.BEFORE_SCHEDULED_JOB}@{armed}")
    wire = talk(dying)
    wire.good(wire.table(["t"], "create", stream(ROWS)))
    job = {"job": "optimize", "table": ["t"], "arguments": {"table": "t"}}
    names = [f"s{number}" for number in range(SCHEDULES)]
    for name in names:
        when = {"cron": "0 3 1 1 *", "catch_up": True}
        wire.good(wire.http.post(f"/tiltyard/v1/schedule/{name}/create", json={**job, **when}))
    on_commit = {**job, "on_commit": [["t"]], "debounce_seconds": 1}
    wire.good(wire.http.post("/tiltyard/v1/schedule/embed/create", json=on_commit))
    armed.touch()
    make_due(installation)
    wait_until(lambda: dying.process.poll() is not None, "its first claim kills the server")
    assert not armed.exists() and not count_jobs(installation)
    servers = [talk(installation.start()) for _ in range(2)]
    installation.sql("UPDATE schedules SET rests_until = 0")  # the claim of the killed server has ended
    wait_until(lambda: len(count_jobs(installation)) == SCHEDULES, "all are queued")
    for turn in (1, 2):
        servers[turn % 2].good(servers[turn % 2].table(["t"], "insert", stream(ROWS)))
        wait_until(lambda turn=turn: count_jobs(installation)["embed"] == turn, "the commit has started a job")
        assert set(count_jobs(installation).values()) == {turn}
        installation.sql("UPDATE transactions SET status = 'Succeeded' WHERE status = 'Queued'")
        if turn == 1:
            make_due(installation)
            wait_until(lambda: count_jobs(installation).total() >= 2 * SCHEDULES + 1, "all are queued again")
    assert count_jobs(installation) == Counter(dict.fromkeys([*names, "embed"], 2))
