"""Run writers and readers while servers fail, and check the storage: `python -m tests.faults.soak --help`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import lance.namespace
import lance_namespace as ns

from tests.faults.soak.checker import check_history
from tests.faults.soak.clients import Generated, wait_until_readable
from tests.faults.soak.contents import numbers_of, read_versions, tags_of
from tests.faults.soak.environment import Environment, FaultInjector, Variant, start_environment
from tests.faults.soak.journal import Attempt, History, Journal, Kind, Outcome, load, now
from tests.faults.soak.writer_process import HOT, Orders
from tests.services.s3 import CREDENTIALS

TABLES = ("t0", "t1", "t2", "t3", "t4")

EXTRA_SECONDS = 60
"""How much longer than requested a run may take, until enough has happened."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration of a run, and the numbers of processes and of writers in each; each writer has a reader."""

    variant: Variant
    seconds: float
    seed: int
    writers: int = 16
    processes: int = 4
    patience: float = 60


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of a run, and its complaints."""

    history: History
    versions: Mapping[str, int]
    faults: Mapping[str, int]
    complaints: Sequence[str]

    def count(self, kind: Kind, outcome: Outcome = Outcome.ACKNOWLEDGED) -> int:
        """Count the attempts of a kind with an outcome."""
        return sum(attempt.kind is kind and attempt.outcome is outcome for attempt in self.history.attempts.values())

    def __str__(self) -> str:
        lines = [f"faults: {dict(self.faults)}; versions: {dict(self.versions)}; reads: {len(self.history.reads)}"]
        attempts = self.history.attempts.values()
        counts = Counter((f"{attempt.kind} by {attempt.client}", attempt.outcome) for attempt in attempts)
        lines += [
            f"  {name}: " + ", ".join(f"{counts[name, outcome]} {outcome}" for outcome in Outcome)
            for name in sorted({name for name, _ in counts})
        ]
        return "\n".join([*lines, *self.complaints])


def run(plan: Plan, folder: Path) -> Report:
    """Run in an empty folder, which keeps the journals."""
    journals = folder / "journals"
    journals.mkdir(parents=True)
    with _writers(plan, journals) as processes, start_environment(plan.variant, folder) as environment:
        locations = create_tables(environment, journals)
        for number, process in enumerate(processes):
            _tell(process, _orders(plan, environment, journals, number))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        with FaultInjector(environment, plan.seed):
            for process in processes:
                _tell(process, "go")
            _wait(plan, journals, environment)
        for process in processes:
            process.communicate()
        assert "Traceback" not in (log := (journals / "writers.log").read_text()), log
        return check_storage(environment, load(journals), locations)


def _wait(plan: Plan, journals: Path, environment: Environment) -> None:
    """Wait for the duration of the run; on a slow machine longer, until enough has happened."""
    time.sleep(plan.seconds)
    deadline = time.monotonic() + EXTRA_SECONDS
    while not (environment.faults.get("kill") and _has_enough(plan, load(journals))) and time.monotonic() < deadline:
        time.sleep(0.5)


def _has_enough(plan: Plan, history: History) -> bool:
    """Return whether there were a read, an append and, unless it takes too long on an object store, a batch."""
    needed = {Kind.APPEND} if plan.variant is Variant.OBJECTS else {Kind.APPEND, Kind.BATCH}
    done = {attempt.kind for attempt in history.attempts.values() if attempt.outcome is Outcome.ACKNOWLEDGED}
    return bool(history.reads) and needed <= done


@contextmanager
def _writers(plan: Plan, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start writer processes, which import their packages while the servers start."""
    command = [sys.executable, "-m", "tests.faults.soak.writer_process"]
    log = (folder / "writers.log").open("w")
    environ = {**os.environ, **CREDENTIALS}  # clients that read an object store by themselves bring their own
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
        for _ in range(plan.processes)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()


def _orders(plan: Plan, environment: Environment, folder: Path, number: int) -> str:
    share = plan.writers // plan.processes
    orders = Orders(environment.urls, list(TABLES), str(folder), plan.seed, number * share, share, 1, plan.patience)
    return json.dumps(vars(orders))


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def create_tables(environment: Environment, journals: Path) -> dict[str, str]:
    """Create the tables; return their locations."""
    client = Generated(environment.urls[0])
    journal = Journal(journals / "beginning.jsonl")
    start = now()
    beginning = Attempt("beginning", Kind.OVERWRITE, dict.fromkeys(TABLES, HOT), client=client.name, start=start)
    for table in TABLES:
        client.create(table, beginning.rows(table))
    journal.write(replace(beginning, end=now(), outcome=Outcome.ACKNOWLEDGED, versions=dict.fromkeys(TABLES, 1)))
    journal.close()
    namespace = lance.namespace.RestNamespace(uri=environment.urls[0])
    return {table: namespace.describe_table(ns.DescribeTableRequest(id=[table])).location for table in TABLES}


def check_storage(environment: Environment, history: History, locations: Mapping[str, str]) -> Report:
    """Check the storage twice: directly after the faults, and after the next read through the server."""
    complaints = []
    for server in environment.servers:
        server.kill()
    for table, location in locations.items():
        visible = set(numbers_of(location, environment.options))
        acknowledged = {attempt.versions[table] for attempt in history.attempts.values() if table in attempt.versions}
        if missing := sorted(acknowledged - visible):
            complaints.append(f"{table}: versions {missing[:10]} were acknowledged, and no file shows them")
    for server in environment.servers:
        server.start()
    wait_until_readable(environment.urls[0], TABLES)
    versions = {table: read_versions(location, environment.options) for table, location in locations.items()}
    tags = {table: tags_of(location, environment.options) for table, location in locations.items()}
    complaints += check_history(history, versions, tags)
    latest = {table: max(numbers_of(location, environment.options)) for table, location in locations.items()}
    return Report(history, latest, environment.faults, complaints)
