"""Commits: versions by CreateTableVersion, many tables at once, and the latest version of a long history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from statistics import median

import lance

from bench import data
from bench.environment import Environment
from bench.load import Lanes, Load, Measured, drive
from bench.results import Result, at_least, at_most
from bench.rounds import Side
from bench.servers import Server
from bench.staging import MAX_VERSIONS, Staged, stage, template
from bench.wire import call_json, of_table, post

CLIENTS = 8
PREPARED = 1_200, 150
"""Commits of one client that are prepared for each second, of Tiltyard and of others: more than they get through."""
BATCH_TABLES, BATCHES, SINGLES = 100, 10, 100
FEW_VERSIONS = 10
AT_ONCE = 500
TRACKING = "RestAdapter with table_version_tracking_enabled"
LATEST = "version/list?limit=1&descending=true"

_numbers = count()


def new_name(stem: str) -> str:
    """The id of a table that is not there yet."""
    return data.in_namespace(f"{stem}-{next(_numbers)}")


def latest_of(server: Server, name: str) -> int:
    """The latest version of a table, as clients ask for it."""
    return int(call_json(server.address, of_table(name, LATEST))["versions"][0]["version"])


def commits(environment: Environment) -> list[Result]:
    """CreateTableVersion by clients that each have a table of their own."""
    return _commits(environment, "commits", "SQLite", environment.managing[0].server)


def commits_postgres(environment: Environment) -> list[Result]:
    """The same with the catalog in PostgreSQL and two server processes."""
    return _commits(environment, "commits-postgres", "PostgreSQL, two processes", environment.on_postgres.server)


def _commits(environment: Environment, row: str, place: str, server: Server) -> list[Result]:
    sides = Side(server), Side(environment.managing[1].server)
    for _ in range(environment.rounds):
        for side, prepared in zip(sides, PREPARED, strict=True):
            _commit_round(environment, side, prepared)
    ours, theirs = sides
    what = f"CreateTableVersion, {CLIENTS} clients on {CLIENTS} tables, {place}"
    return [at_least(row, what, (ours.words(), f"{TRACKING}: {theirs.words()}"), ours.rate / theirs.rate, 10)]


def _commit_round(environment: Environment, side: Side, prepared: int) -> None:
    """A turn on new tables. Raises RuntimeError if a commit is lost, or too few were prepared."""
    load, server = environment.load(CLIENTS), side.server
    versions = int((load.seconds + load.warm_up) * prepared)
    source = template(environment.work)
    tables = [stage(server.address, new_name("commits"), source, versions) for _ in range(CLIENTS)]
    measured = side.take(lambda: [table.requests() for table in tables], load)
    latest_versions = [latest_of(server, table.name) for table in tables]
    if max(latest_versions) == versions:
        raise RuntimeError(f"{server.name} used up {versions} prepared versions of a table: prepare more.")
    if sum(latest_versions) != measured.succeeded:
        raise RuntimeError(f"{server.name} acknowledged {measured.succeeded} commits, and has {sum(latest_versions)}.")
    for table, latest in zip(tables, latest_versions, strict=True):
        if (version := lance.dataset(table.location).version) != latest:
            raise RuntimeError(f"{server.name} says version {latest}; a reader without it finds {version}.")


def batch(environment: Environment) -> list[Result]:
    """BatchCommitTables of 100 tables against CreateTableVersion of one, one after the other."""
    server, source = environment.managing[0].server, template(environment.work)
    single: list[float] = []
    many: list[float] = []
    for _ in range(environment.rounds):
        tables = [stage(server.address, new_name("batch"), source, BATCHES) for _ in range(BATCH_TABLES)]
        alone = stage(server.address, new_name("single"), source, SINGLES)
        single.append(_timed(server, alone.requests(), SINGLES))
        many.append(_timed(server, _batches(tables), BATCHES))
    single_seconds, many_seconds = median(single), median(many)
    sides = f"{many_seconds * 1e3:.1f} ms", f"one CreateTableVersion: {single_seconds * 1e3:.2f} ms"
    what = f"BatchCommitTables of {BATCH_TABLES} tables against one CreateTableVersion: time"
    return [at_most("batch", what, sides, many_seconds / single_seconds, (20, "x"))]


def _batches(tables: list[Staged]) -> Iterator[bytes]:
    """The first versions of all tables, then the second, …"""
    for entries in zip(*(table.entries for table in tables), strict=True):
        yield post("/v1/table/batch-commit", {"operations": [{"create_table_version": entry} for entry in entries]})


def _timed(server: Server, requests: Lanes, number: int) -> float:
    """Median seconds of requests on one connection. Raises RuntimeError if one fails."""
    measured: Measured = drive(server.address, requests, Load(1, count=number))
    if measured.failed:
        raise RuntimeError(f"{server.name}: {dict(measured.failures)} failed.")
    return measured.p50


def latest(environment: Environment) -> list[Result]:
    """The latest version of a table with 10,000 versions, by three requests, against one with 10."""
    server = environment.managing[0].server
    names = [_history(environment, server, versions) for versions in (FEW_VERSIONS, MAX_VERSIONS)]
    requests = {
        "DescribeTable with its details": ("describe", {"load_detailed_metadata": True}),
        "DescribeTableVersion": ("version/describe", {}),
        "ListTableVersions limit=1 descending": (LATEST, {}),
    }
    return [
        _compare_latest(environment, server, what, [post(of_table(name, action), body) for name in names])
        for what, (action, body) in requests.items()
    ]


def _compare_latest(environment: Environment, server: Server, what: str, requests: list[bytes]) -> Result:
    sides = Side(server), Side(server)
    for _ in range(environment.rounds):
        for side, request in zip(sides, requests, strict=True):
            side.take(lambda request=request: repeat(request), environment.load(CLIENTS))  # type: ignore[misc]  # bound now
    few, many = sides
    told = many.words(), f"{FEW_VERSIONS} versions: {few.words()}"
    title = f"{what}, {MAX_VERSIONS:,} versions against {FEW_VERSIONS}: cost"
    return at_most("latest", title, told, few.rate / many.rate, (1.2, "x"))


def _history(environment: Environment, server: Server, versions: int) -> str:
    """A table with so many versions, committed in few batches. Raises RuntimeError unless they are all there."""
    name = new_name("history")
    entries = stage(server.address, name, template(environment.work), versions).entries
    for first in range(0, versions, AT_ONCE):
        operations = [{"create_table_version": entry} for entry in entries[first : first + AT_ONCE]]
        call_json(server.address, "/v1/table/batch-commit", {"operations": operations})
    if (latest_version := latest_of(server, name)) != versions:
        raise RuntimeError(f"{server.name} has {latest_version} of {versions} versions.")
    return name
