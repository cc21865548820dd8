"""The child process that builds indexes of large tables: it commits through this process, and can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest
from lance_namespace.errors import ServiceUnavailableError, TableColumnNotFoundError
from tests.tables.bodies import small
from tests.tables.indexes.test_indexes import Indexes, rows
from tests.tables.served import Server, ask

from tiltyard.model.jobs import Job, JobCanceledError
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.runtime import child_process
from tiltyard.tables.indexes import build_job, build_process
from tiltyard.tables.indexes.build_process import LanceProcess
from tiltyard.tables.indexes.builder import IndexSpec, build
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.versions.branches import create_table_branch

if TYPE_CHECKING:
    from collections.abc import Callable

Started = list["subprocess.Popen[str]"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Run every build in a child process; collect the processes."""
    processes: Started = []

    class Popen(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(build_job, "MAX_ROWS_HERE", -1)
    monkeypatch.setattr(child_process.subprocess, "Popen", Popen)
    monkeypatch.setattr(build_process, "POLL_SECONDS", 0.05)
    return processes


@pytest.fixture
def table(server: Server, started: Started) -> Indexes:
    return Indexes(server, rows(300))


@pytest.fixture
def managed(table: Indexes) -> Indexes:
    """The managed table `m`."""
    table.server.declare("m", managed=True)
    request = ask(models.InsertIntoTableRequest, id="m")
    insert_into_table(table.server.ctx, request, small(rows(300)))
    return table


@pytest.mark.parametrize("name", ["t", "m"])
def test_index_of_each_kind_is_built_and_committed_by_the_process(
    managed: Indexes, started: Started, name: str
) -> None:
    kinds = {"vec": "IVF_PQ", "id": "BTREE", "text": "FTS", "labels": "LABEL_LIST"}
    for column, kind in kinds.items():
        managed.build(column, kind, id=name)
    entries = managed.list(id=name).indexes
    assert {(entry.columns[0], entry.index_type, entry.num_indexed_rows) for entry in entries} == {
        (column, kind, 300) for column, kind in kinds.items()
    }
    assert [process.poll() is not None for process in started] == [True] * len(kinds)
    store = managed.server.ctx.store
    recorded = store.list_versions(store.describe_table((name,)).id)
    assert [version.version for version in recorded] == ([1, 2, 3, 4, 5] if name == "m" else [])


def test_index_of_a_managed_branch_is_built_there(managed: Indexes, started: Started) -> None:
    create_table_branch(managed.server.ctx, ask(models.CreateTableBranchRequest, id="m", name="dev"))
    managed.build("id", "BTREE", id="m", branch="dev")
    assert managed.list(id="m").indexes == []
    assert [entry.index_name for entry in managed.list(id="m", branch="dev").indexes] == ["id_idx"]
    assert len(started) == 1


def test_error_of_the_process_is_the_error_of_the_job(table: Indexes, started: Started) -> None:
    table.create("id", "BTREE")
    table.dataset.drop_columns(["id"])
    with pytest.raises(TableColumnNotFoundError, match="No column 'id'"):
        table.server.run_jobs()
    assert len(started) == 1


def run(table: Indexes, report: Callable[[Any], bool]) -> None:
    record = table.server.services.store.claim_transaction("worker", 60_000)
    assert record is not None
    build_job.build_index(table.server.ctx, Job(record.id, record.kind, record.table_id, record.payload, report))


def test_cancel_ends_the_process_and_leaves_no_index(table: Indexes, started: Started) -> None:
    transaction = table.create("vec", "IVF_PQ")

    def report(properties: Any) -> bool:
        if started:
            table.server.services.store.alter_transaction(
                transaction, lambda _, properties: (TransactionStatus.CANCELED, properties)
            )
        return not started

    with pytest.raises(JobCanceledError):
        run(table, report)
    assert started[0].returncode == -signal.SIGKILL
    assert table.names() == {}


def stop(processes: Started) -> bool:
    """Stop the processes, as if Lance waited for ever."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    return True


def test_build_that_stands_still_is_ended_with_its_reason(
    server: Server, table: Indexes, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create("vec", "IVF_PQ")
    monkeypatch.setattr(type(server.ctx.settings), "index_stall_timeout", 0.5, raising=False)
    with pytest.raises(ServiceUnavailableError, match="made no progress for 0 s"):
        run(table, lambda _: stop(started))
    assert started[0].returncode == -signal.SIGKILL
    assert table.names() == {"vec_idx": "building"}


def test_process_that_is_killed_is_tried_again(table: Indexes, started: Started) -> None:
    table.create("vec", "IVF_PQ")

    def report(properties: Any) -> bool:
        for process in started[:1]:
            process.kill()
        return True

    with pytest.raises(ServiceUnavailableError, match="ended by signal 9"):
        run(table, report)
    table.server.run_jobs()


def test_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    lance.write_dataset(rows(300), tmp_path / "t.lance")
    program = f"""
import os, signal
from dataclasses import asdict
from tiltyard.tables.indexes.builder import IndexSpec, BuildRequest
from tiltyard.tables.indexes.build_process import LanceProcess
order = IndexSpec({str(tmp_path / "t.lance")!r}, None, "id", "i", "BTREE")
process = LanceProcess(BuildRequest(asdict(order), "8d1f0b52-9a4a-4d0b-8a3b-1f1c7b1e2a10", 1, {{}}, ["1"]), None)
print(process._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert lance.dataset(tmp_path / "t.lance").version == 1


def test_process_is_given_no_secret_of_the_server(
    table: Indexes, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_DB", "postgresql://catalog:hunter2@db/tiltyard")
    table.create("vec", "IVF_PQ")
    process_files: list[bytes] = []

    def report(properties: Any) -> bool:
        if started and not process_files:
            process_files.extend(Path(f"/proc/{started[0].pid}/{file}").read_bytes() for file in ("environ", "cmdline"))
        return True

    run(table, report)
    assert process_files
    assert not any(b"TILTYARD_" in text or b"hunter2" in text for text in process_files)


def test_build_gives_lance_no_progress_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a callback, training stalled on a busy machine in 5 of 13 tries; without, in none of 14."""
    dataset = lance.write_dataset(rows(300), tmp_path / "t.lance")
    names: list[str] = []
    for method in ("create_index", "create_scalar_index"):
        original = getattr(lance.LanceDataset, method)

        def spy(*arguments: Any, original: Any = original, **options: Any) -> Any:
            names.extend(options)
            return original(*arguments, **options)

        monkeypatch.setattr(lance.LanceDataset, method, spy)
    for column, kind in (("vec", "IVF_FLAT"), ("id", "BTREE")):
        build(dataset, IndexSpec(dataset.uri, None, column, column, kind), str(os.getpid()).zfill(32))
    assert "index_uuid" in names
    assert "progress_callback" not in names


@pytest.mark.parametrize(
    ("run", "queued", "is_stalled"),
    [
        (0.0015, 0.02, True),  # Lance waits for ever, and looks for signals: measured 6 ticks in 40 s
        (0.0, 0.0, True),
        (0.002, 0.7, False),  # twelve busy processes on two cores: it is run for 0.01 s in 5 s
        (0.02, 0.0, False),  # reads from a slow store
    ],
)
def test_stall_is_told_from_slowness_by_processor_time_and_by_waiting_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: float, queued: float, is_stalled: bool
) -> None:
    """Fake /proc files: whole ticks of processor time, nanoseconds of waiting."""
    clock = {"now": 1000.0}
    monkeypatch.setattr(build_process.time, "monotonic", lambda: clock["now"])
    thread = tmp_path / "task" / "1"
    thread.mkdir(parents=True)
    stall = build_process._Stall(tmp_path, 300)

    def look() -> None:
        for second in range(1, 400):
            clock["now"] = 1000.0 + second
            ticks = int(run * second * os.sysconf("SC_CLK_TCK"))
            (tmp_path / "stat").write_text(f"1 (python) S {'0 ' * 10}{ticks} 0 0 0")
            (thread / "schedstat").write_text(f"0 {int(queued * second * 1e9)} 1")
            stall.check(is_waiting=False)

    if is_stalled:
        with pytest.raises(ServiceUnavailableError, match="made no progress for 300 s"):
            look()
        assert clock["now"] <= 1310
    else:
        look()


BACKGROUND = """
import json, os, sys, time
sys.stdin.readline()
def say(**message): print(json.dumps(message), flush=True)
say(progress={"first": os.sched_getscheduler(0), "threads": os.environ["LANCE_CPU_THREADS"]})
until = time.monotonic() + 60
while os.sched_getscheduler(0) != os.SCHED_BATCH and time.monotonic() < until:
    time.sleep(0.01)
say(progress={"last": os.sched_getscheduler(0)})
say(done=True)
"""


def test_process_in_the_background_waits_for_idle_processors_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_patience() -> None:
        if "first" in process.progress:
            monkeypatch.setattr(build_process, "_IDLE_SECONDS", 0.0)

    monkeypatch.setattr(build_process, "_IDLE_SECONDS", 1e9)
    monkeypatch.setattr(build_process, "POLL_SECONDS", 0.05)
    order = IndexSpec("nowhere", None, "id", "i", "BTREE")
    with LanceProcess(order, None, (sys.executable, "-c", BACKGROUND), background=True) as process:
        process.wait(end_patience, 0)
    first = os.SCHED_IDLE if child_process._can_leave_idle() else os.SCHED_BATCH
    assert process.progress == {"first": first, "threads": "1", "last": os.SCHED_BATCH}
