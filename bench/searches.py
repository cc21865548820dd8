"""The rows of the data plane that read: nearest neighbours, an indexed column, counting, a large answer."""

from __future__ import annotations

from itertools import cycle, repeat
from statistics import median
from typing import Any

from bench import data
from bench.data import LARGE, VECTORS
from bench.environment import ANSWER_ROWS, Environment
from bench.results import Result, at_least, at_most
from bench.rounds import Side
from bench.wire import Arrival, download, of_table, post

CALLERS = 8
CHECKED = 3


def nearest(environment: Environment) -> list[Result]:
    """The ten nearest of 100,000 x 128 by IVF_PQ with all columns, as a stock client requests them."""
    what = "vector query k=10, 100,000 x 128, IVF_PQ, nprobes 20, all columns, 8 connections"
    return _search(environment, ("nearest", what), data.nearest_queries(data.SCHEMA.names), (2, 0.85))


def nearest_ids(environment: Environment) -> list[Result]:
    """The same with the ids alone: Lance does the least there, so all else shows the most."""
    what = "vector query k=10, 100,000 x 128, IVF_PQ, nprobes 20, ids alone, 8 connections"
    return _search(environment, ("nearest-ids", what), data.nearest_queries(["id"]), (2, 0.9))


def equal(environment: Environment) -> list[Result]:
    """One row of 100,000 by a BTREE."""
    what = "equality on a BTREE column, 100,000 rows, 8 connections"
    return _search(environment, ("equal", what), data.equal_queries(), (2, 0.9))


def _search(
    environment: Environment, title: tuple[str, str], queries: list[dict[str, Any]], targets: tuple[float, float]
) -> list[Result]:
    (row, what), (against_peer, against_limit) = title, targets
    sides = [Side(placed.server) for placed in environment.vectors]
    open_dataset = {
        "dataset": str(data.indexed_table(environment.work)),
        "queries": str(data.keep_queries(environment.work, row, queries)),
    }
    _check(sides, queries, environment.embedded.ask(do="first", count=CHECKED, **open_dataset))
    requests = [post(of_table(VECTORS, "query"), query) for query in queries]
    load, limits = environment.load(CALLERS), []
    for _ in range(environment.rounds):
        for side in sides:
            side.take(lambda: cycle(requests), load)
        limits.append(
            environment.embedded.ask(
                do="search", threads=CALLERS, seconds=load.seconds, warm_up=load.warm_up, **open_dataset
            )
        )
    ours, theirs, sharing = sides
    limit = median(limits)
    peer = f"RestAdapter: {theirs.words()}"
    shared = f"RestAdapter with one shared session: {sharing.words()}"
    return [
        at_least(row, what, (ours.words(), peer), ours.rate / theirs.rate, against_peer),
        at_least(row, f"{what}; session shared", (ours.words(), shared), ours.rate / sharing.rate, against_peer),
        at_least(
            row,
            f"{what}; limit",
            (ours.words(), f"pylance in one process, 8 threads: {limit:,.0f}/s"),
            ours.rate / limit,
            against_limit,
        ),
    ]


def _check(sides: list[Side], queries: list[dict[str, Any]], expected: list[list[int]]) -> None:
    """See that all do the same work. Raises RuntimeError if their answers differ."""
    for query, ids in zip(queries[:CHECKED], expected, strict=True):
        for side in sides:
            if (ids_found := data.found_ids(side.server.address, VECTORS, query)) != ids:
                raise RuntimeError(f"{side.server.name} found {ids_found}, pylance {ids}.")


def counting(environment: Environment) -> list[Result]:
    """CountTableRows."""
    requests = post(of_table(VECTORS, "count_rows"))
    ours, theirs = (Side(placed.server) for placed in environment.vectors[:2])
    for _ in range(environment.rounds):
        for side in (ours, theirs):
            side.take(lambda: repeat(requests), environment.load())
    sides = ours.words(), f"RestAdapter: {theirs.words()}"
    return [at_least("count", "count_rows, 100,000 rows, 32 connections", sides, ours.rate / theirs.rate, 8)]


def answer(environment: Environment) -> list[Result]:
    """When a large answer begins, and what memory it takes."""
    body = {"vector": {"single_vector": []}, "k": ANSWER_ROWS, "columns": {"column_names": ["id", "name", "vector"]}}
    seen: dict[str, list[tuple[Arrival, float]]] = {}
    for _ in range(environment.rounds):
        for server, _ in environment.large:
            before = server.memory()
            server.reset_peak()
            arrival = download(server.address, of_table(LARGE, "query"), body)
            seen.setdefault(server.name, []).append((arrival, (server.peak_memory() - before) / 1e6))
    ours, theirs = seen.values()
    first = median(arrival.first for arrival, _ in ours)
    sides = _arrived(ours), f"RestAdapter: {_arrived(theirs)}"
    return [at_most("answer", "first byte of an answer of 500 MB", sides, first, (1, "s"))]


def _arrived(seen: list[tuple[Arrival, float]]) -> str:
    first = median(arrival.first for arrival, _ in seen)
    speed = median(arrival.size / arrival.last for arrival, _ in seen) / 1e6
    size = seen[0][0].size / 1e6
    grown = max(memory for _, memory in seen)
    return f"{size:,.0f} MB, first byte after {first * 1e3:,.0f} ms, {speed:,.0f} MB/s, memory up by {grown:,.0f} MB"
