"""A server killed at each named point between staging and answer: once it is there again, every promise is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import pytest

from tests.faults.soak.clients import Batches, Client, Generated, Lancedb, Pylance, outcome_of, wait_until_readable
from tests.faults.soak.environment import Environment
from tests.faults.soak.journal import Attempt, Journal, Kind, Outcome, digest_of, load, now
from tests.faults.soak.run import TABLES, check_storage, create_tables
from tests.faults.soak.writer_process import HOT
from tests.services.lossy import wait_for
from tests.services.postgres import postgres_server
from tests.services.server import running_servers
from tiltyard.runtime.failpoints import Point

COMMIT_POINTS = (Point.BEFORE_RECORD, Point.AFTER_RECORD, Point.AFTER_FINALIZE, Point.BEFORE_ANSWER)
OTHER_POINTS = {
    Point.BEFORE_OPENING: "faults/test_opening_kills.py",
    Point.BETWEEN_CATALOGS: "mounts/served/test_import.py",
    Point.BEFORE_BACKUP_COPY: "backup/test_backup.py",
    Point.BEFORE_BACKUP_POINT: "backup/test_backup.py",
    Point.BEFORE_RESTORED_CATALOG: "backup/test_backup.py",
    Point.BEFORE_SCHEDULED_JOB: "faults/test_schedule_kills.py",
    Point.EVENT_SENT: "events/test_kills.py",
    Point.WRITE: "faults/sweep/process.py",
}
"""Points that no commit on a disk passes, and the tests that reach them."""


@dataclass(frozen=True)
class Write:
    """A write on tables of its own; `keys` are what it writes to each."""

    kind: Kind
    client: str
    keys: Mapping[str, tuple[str, ...]]
    call: Callable[[str, Attempt], Mapping[str, int]]


def append(url: str, attempt: Attempt) -> Mapping[str, int]:
    return {"t0": Pylance(url).append("t0", attempt.rows("t0"))}


def gathered_append(url: str, attempt: Attempt) -> Mapping[str, int]:
    return {"t1": Generated(url).append("t1", attempt.rows("t1"))}


def merge(url: str, attempt: Attempt) -> Mapping[str, int]:
    return {"t2": Generated(url).merge("t2", attempt.rows("t2"))}


def overwrite(url: str, attempt: Attempt) -> Mapping[str, int]:
    return {"t3": Lancedb(url).overwrite("t3", attempt.rows("t3"))}


def delete(url: str, attempt: Attempt) -> Mapping[str, int]:
    return {"t4": Pylance(url).delete("t4", attempt.name, attempt.keys["t4"])}


def batch(url: str, attempt: Attempt) -> Mapping[str, int]:
    return Batches(url).commit({table: attempt.rows(table) for table in attempt.tables})


WRITES = {
    "append": Write(Kind.APPEND, "pylance", {"t0": ("append",)}, append),
    "gathered": Write(Kind.APPEND, "generated", {"t1": ("gathered",)}, gathered_append),
    "merge": Write(Kind.MERGE, "generated", {"t2": (HOT[0], "merge")}, merge),
    "overwrite": Write(Kind.OVERWRITE, "lancedb", {"t3": (*HOT, "overwrite")}, overwrite),
    "delete": Write(Kind.DELETE, "pylance", {"t4": HOT[:1]}, delete),
    "batch": Write(Kind.BATCH, "batch", {table: (f"batch.{table}",) for table in TABLES[:3]}, batch),
}


def attempt_once(url: str, journal: Journal, name: str, write: Write) -> Outcome:
    """Try a write, and note what became of it."""
    started = Attempt(name, write.kind, write.keys, client=write.client, start=now())
    journal.write(started)
    try:
        versions = {table: version for table, version in write.call(url, started).items() if version}
    except Exception as error:  # noqa: BLE001  # whatever a client raises is an answer to note
        ended = replace(started, end=now(), outcome=outcome_of(error), error=str(error)[:600])
    else:
        ended = replace(started, end=now(), outcome=Outcome.ACKNOWLEDGED, versions=versions)
    journal.write(ended)
    return ended.outcome


def arm_once_reached(hold: Path, armed: Path) -> None:
    """Wait until a server is held, have it killed further on, and let it go."""
    reached = hold.with_name(f"{hold.name}.reached")
    wait_for(reached.exists)
    reached.unlink()
    armed.touch()
    hold.unlink()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def databases(request: pytest.FixtureRequest) -> Iterator[Callable[[], list[str]]]:
    """Flags that give a server a new catalog."""
    if request.param == "sqlite":
        yield list
        return
    with postgres_server() as postgres:
        yield lambda: ["--db", postgres.new_database()]


def test_every_point_is_tested() -> None:
    assert {*COMMIT_POINTS, *OTHER_POINTS} == set(Point)
    tests = Path(__file__).parents[1]
    for point, file in OTHER_POINTS.items():
        text = (tests / file).read_text()
        assert point in text or f"Point.{point.name}" in text, (point, file)


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_server_killed_at_a_point_keeps_every_promise(
    tmp_path: Path, databases: Callable[[], list[str]], point: Point
) -> None:
    armed, journals = tmp_path / "armed", tmp_path / "journals"
    journals.mkdir()
    hold = tmp_path / "held"
    faults = f"{point}=kill@{armed}"
    if point is Point.BEFORE_ANSWER:  # many requests pass it: the one is meant that has just committed
        faults += f",{Point.AFTER_FINALIZE}=hold@{hold}"
    with running_servers(1, tmp_path / "root", *databases(), environ={"TILTYARD_FAULT": faults}) as (server,):
        locations = create_tables(Environment([server]), journals)
        journal = Journal(journals / "writes.jsonl")
        for name, write in WRITES.items():
            if point is Point.BEFORE_ANSWER:
                hold.touch()
                arming = threading.Thread(target=arm_once_reached, args=(hold, armed))
                arming.start()
            else:
                armed.touch()
            assert attempt_once(server.url, journal, name, write) is Outcome.UNKNOWN
            assert not armed.exists(), f"{name} passes no {point}"
            server.wait()
            server.start()
            wait_until_readable(server.url, list(write.keys))
        journal.close()
        report = check_storage(Environment([server]), load(journals), locations)
    assert not report.complaints, str(report)
    done = 0 if point is Point.BEFORE_RECORD else 1
    batches = dict.fromkeys(WRITES["batch"].keys, done)
    assert report.versions == {table: 1 + done + batches.get(table, 0) for table in TABLES}


@pytest.mark.extended
@pytest.mark.parametrize("clients", list(permutations((Pylance, Generated, Lancedb))))
def test_batch_whose_server_was_killed_is_seen_whole_by_the_next_readers(
    tmp_path: Path, clients: tuple[Callable[[str], Client], ...]
) -> None:
    armed = tmp_path / "armed"
    with running_servers(1, tmp_path / "root", environ={"TILTYARD_FAULT": f"after_record=kill@{armed}"}) as (server,):
        tables = TABLES[: len(clients)]
        for table in tables:
            Generated(server.url).create(table, [("old", "test")])
        armed.touch()
        with pytest.raises(Exception, match="Connection aborted"):
            Batches(server.url).commit({table: [("new", "test")] for table in tables})
        server.wait()
        server.start()
        both = digest_of([("old", "test"), ("new", "test")])
        for client, table in zip(clients, tables, strict=True):
            assert client(server.url).read(table)[0] == both
