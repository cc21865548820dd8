"""The catalog's rows: reads and writes of 1,000 tables by both servers, and what 100,000 cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat

from bench import data
from bench.data import NAMESPACE
from bench.environment import MANY_TABLES, TABLES, Environment, Placed
from bench.load import drive
from bench.results import Result, at_least, at_most
from bench.rounds import Requests, Side, alternate
from bench.wire import of_table, post, request

_numbers = count()


def _compare(
    environment: Environment,
    title: tuple[str, str],
    requests: Requests,
    target: float | None,
    pair: list[Placed] | None = None,
) -> list[Result]:
    ours, theirs = alternate(
        (placed.server for placed in pair or environment.catalog), requests, environment.load(), environment.rounds
    )
    row, what = title[0], f"{title[1]}, 32 connections"
    result = at_least(row, what, (ours.words(), f"RestAdapter: {theirs.words()}"), ours.rate / theirs.rate, target)
    return [result]


def describe(environment: Environment) -> list[Result]:
    """DescribeTable over 1,000 tables."""
    requests = data.on_tables("describe", TABLES)
    return _compare(environment, ("describe", "DescribeTable, 1,000 tables"), lambda: requests, 6)


def exists(environment: Environment) -> list[Result]:
    """TableExists over 1,000 tables."""
    requests = data.on_tables("exists", TABLES)
    return _compare(environment, ("exists", "TableExists, 1,000 tables"), lambda: requests, 6)


def in_root(environment: Environment) -> list[Result]:
    """DescribeTable of tables in the root, where RestAdapter looks for a folder, not into its catalog."""
    what = "DescribeTable, 1,000 tables in the root (RestAdapter looks for a folder, not into its catalog)"
    requests = data.on_tables("describe", TABLES, data.in_root)
    return _compare(environment, ("root", what), lambda: requests, None, environment.root_catalog)


def namespace(environment: Environment) -> list[Result]:
    """NamespaceExists."""
    asked = post(f"/v1/namespace/{NAMESPACE}/exists")
    return _compare(environment, ("namespace", "NamespaceExists, 1,000 tables"), lambda: repeat(asked), 6)


def listing(environment: Environment) -> list[Result]:
    """ListTables, 100 of 1,000."""
    asked = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit=100")
    return _compare(environment, ("list", "ListTables limit=100 of 1,000"), lambda: repeat(asked), 6)


def declare(environment: Environment) -> list[Result]:
    """DeclareTable, each under a new name, beginning with 1,000 tables."""

    def requests() -> Iterator[bytes]:
        return (post(of_table(data.in_namespace(f"declared-{number}"), "declare")) for number in _numbers)

    return _compare(environment, ("declare", "DeclareTable, from 1,000 tables on"), requests, 20)


def create(environment: Environment) -> list[Result]:
    """CreateNamespace, each under a new name."""

    def requests() -> Iterator[bytes]:
        return (post(f"/v1/namespace/created-{number}/create") for number in _numbers)

    return _compare(environment, ("create", "CreateNamespace, 1,000 tables"), requests, 20)


def scale(environment: Environment) -> list[Result]:
    """DescribeTable with 100,000 tables against the same with 1,000, both by Tiltyard."""
    few, many = data.on_tables("describe", TABLES), data.on_tables("describe", MANY_TABLES)
    ours, base = Side(environment.many.server), Side(environment.catalog[0].server)
    for _ in range(environment.rounds):
        base.take(lambda: few, environment.load())
        ours.take(lambda: many, environment.load())
    sides = ours.words(), f"1,000 tables: {base.words()}"
    return [
        at_most("scale", "DescribeTable, 100,000 tables against 1,000: cost", sides, base.rate / ours.rate, (1.2, "x"))
    ]


def memory(environment: Environment) -> list[Result]:
    """Memory of a worker with 100,000 tables, after requests for them."""
    server = environment.many.server
    for requests in (data.on_tables("describe", MANY_TABLES), data.on_tables("exists", MANY_TABLES)):
        drive(server.address, requests, environment.load())
    listed = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit=1000")
    drive(server.address, repeat(listed), environment.load())
    now, peak = server.memory() / 1e6, server.peak_memory() / 1e6
    sides = f"{now:,.0f} MB, at most {peak:,.0f} MB since its start", "—"
    return [at_most("memory", "memory of a worker, 100,000 tables", sides, peak, (250, "MB"))]
