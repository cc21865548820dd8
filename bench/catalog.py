"""The catalog's rows: reads and writes of 1,000 tables by both servers, and what 100,000 cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat

from bench import data
from bench.data import NAMESPACE
from bench.ground import MANY_TABLES, TABLES, Ground, Placed
from bench.load import drive
from bench.results import Result, at_least, at_most
from bench.rounds import Requests, Side, alternate
from bench.wire import of_table, post, request

_numbers = count()


def _compare(
    ground: Ground, title: tuple[str, str], requests: Requests, target: float | None, pair: list[Placed] | None = None
) -> list[Result]:
    ours, theirs = alternate(
        (placed.server for placed in pair or ground.catalog), requests, ground.load(), ground.rounds
    )
    row, what = title[0], f"{title[1]}, 32 connections"
    result = at_least(row, what, (ours.words(), f"RestAdapter: {theirs.words()}"), ours.rate / theirs.rate, target)
    return [result]


def describe(ground: Ground) -> list[Result]:
    """DescribeTable over 1,000 tables."""
    requests = data.on_tables("describe", TABLES)
    return _compare(ground, ("describe", "DescribeTable, 1,000 tables"), lambda: requests, 6)


def exists(ground: Ground) -> list[Result]:
    """TableExists over 1,000 tables."""
    requests = data.on_tables("exists", TABLES)
    return _compare(ground, ("exists", "TableExists, 1,000 tables"), lambda: requests, 6)


def in_root(ground: Ground) -> list[Result]:
    """DescribeTable over tables in the root, where RestAdapter asks no catalog: a folder of that name will do."""
    what = "DescribeTable, 1,000 tables in the root (RestAdapter looks for a folder, not into its catalog)"
    requests = data.on_tables("describe", TABLES, data.in_root)
    return _compare(ground, ("root", what), lambda: requests, None, ground.root_catalog)


def namespace(ground: Ground) -> list[Result]:
    """NamespaceExists."""
    asked = post(f"/v1/namespace/{NAMESPACE}/exists")
    return _compare(ground, ("namespace", "NamespaceExists, 1,000 tables"), lambda: repeat(asked), 6)


def listing(ground: Ground) -> list[Result]:
    """ListTables, 100 of 1,000."""
    asked = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit=100")
    return _compare(ground, ("list", "ListTables limit=100 of 1,000"), lambda: repeat(asked), 6)


def declare(ground: Ground) -> list[Result]:
    """DeclareTable, each under a new name, beginning with 1,000 tables."""

    def requests() -> Iterator[bytes]:
        return (post(of_table(data.in_namespace(f"declared-{number}"), "declare")) for number in _numbers)

    return _compare(ground, ("declare", "DeclareTable, from 1,000 tables on"), requests, 20)


def create(ground: Ground) -> list[Result]:
    """CreateNamespace, each under a new name."""

    def requests() -> Iterator[bytes]:
        return (post(f"/v1/namespace/created-{number}/create") for number in _numbers)

    return _compare(ground, ("create", "CreateNamespace, 1,000 tables"), requests, 20)


def scale(ground: Ground) -> list[Result]:
    """DescribeTable with 100,000 tables against the same with 1,000, both by Tiltyard."""
    few, many = data.on_tables("describe", TABLES), data.on_tables("describe", MANY_TABLES)
    ours, base = Side(ground.many.server), Side(ground.catalog[0].server)
    for _ in range(ground.rounds):
        base.take(lambda: few, ground.load())
        ours.take(lambda: many, ground.load())
    sides = ours.words(), f"1,000 tables: {base.words()}"
    return [
        at_most("scale", "DescribeTable, 100,000 tables against 1,000: cost", sides, base.rate / ours.rate, (1.2, "x"))
    ]


def memory(ground: Ground) -> list[Result]:
    """Memory of a worker with 100,000 tables, after it was asked about them."""
    server = ground.many.server
    for requests in (data.on_tables("describe", MANY_TABLES), data.on_tables("exists", MANY_TABLES)):
        drive(server.address, requests, ground.load())
    listed = request("GET", f"/v1/namespace/{NAMESPACE}/table/list?limit=1000")
    drive(server.address, repeat(listed), ground.load())
    now, peak = server.memory() / 1e6, server.peak_memory() / 1e6
    sides = f"{now:,.0f} MB, at most {peak:,.0f} MB since its start", "—"
    return [at_most("memory", "memory of a worker, 100,000 tables", sides, peak, (250, "MB"))]
