"""Find anomalies in a history of transactions over lists: cycles of what each read and wrote, as Adya names them.

Each table is a list, to which transactions append values that are all different; who reads one sees in which order they
came. So the history itself says who read from whom, and who overwrote what somebody had read.

    python -m tests.conformance.isolation_checker --runs 5
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import lance
import pyarrow as pa

import tiltyard
from tiltyard.publishing import Isolation

WW, WR, RW = "ww", "wr", "rw"
"""An edge from a transaction to one that wrote after it, that read from it, and that overwrote what it had read."""


@dataclass
class Transaction:
    """What a committed transaction read, list by list, and what it appended."""

    reads: dict[str, list[int]] = field(default_factory=dict)
    appends: dict[str, int] = field(default_factory=dict)


def find_anomalies(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> Counter[str]:
    """Count anomalies by their names; `final` is what each list has in the end. A history without any gives none.

    G1a is a value that nobody committed; `lost` one that was committed and is not there; G0, G1c, G-single and G2 are
    cycles: of writes, of writes and reads, with one overwritten read, with several. A cycle counts once for each of its
    edges that make it one.
    """
    writers = {value: number for number, entry in enumerate(history) for value in entry.appends.values()}
    found = Counter[str]()
    found["lost"] = len(set(writers) - {value for values in final.values() for value in values})
    seen = [*final.values(), *(values for entry in history for values in entry.reads.values())]
    found["G1a"] = len({value for values in seen for value in values} - set(writers))
    edges = _edges(history, final, writers)
    found["G0"] = _count_cyclic(edges[WW], edges[WW])
    found["G1c"] = _count_cyclic(edges[WR], edges[WW] | edges[WR])
    single = {edge for edge in edges[RW] if _is_reachable(edge[1], edge[0], edges[WW] | edges[WR])}
    found["G-single"] = len(single)
    found["G2"] = _count_cyclic(edges[RW] - single, edges[WW] | edges[WR] | edges[RW])
    return +found


Edge = tuple[int, int]


def _edges(
    history: Sequence[Transaction], final: Mapping[str, Sequence[int]], writers: Mapping[int, int]
) -> dict[str, set[Edge]]:
    edges: dict[str, set[Edge]] = {WW: set(), WR: set(), RW: set()}
    for values in final.values():
        order = [writers[value] for value in values if value in writers]
        edges[WW] |= {(one, other) for one, other in pairwise(order) if one != other}
    for number, entry in enumerate(history):
        for name, values in entry.reads.items():
            if values and values[-1] in writers:
                edges[WR].add((writers[values[-1]], number))
            following = final[name][len(values) : len(values) + 1]
            edges[RW] |= {(number, writers[value]) for value in following if value in writers}
    return {kind: {edge for edge in found if edge[0] != edge[1]} for kind, found in edges.items()}


def _count_cyclic(some: Iterable[Edge], edges: set[Edge]) -> int:
    """Count the edges among some that are part of a cycle of edges."""
    return sum(_is_reachable(end, start, edges) for start, end in some)


def _is_reachable(start: int, end: int, edges: set[Edge]) -> bool:
    following: dict[int, list[int]] = {}
    for one, other in edges:
        following.setdefault(one, []).append(other)
    known, pending = {start}, [start]
    while pending:
        for other in following.get(pending.pop(), ()):
            if other not in known:
                known.add(other)
                pending.append(other)
    return end in known


def run_history(
    client: Any, names: Sequence[Sequence[str]], isolation: str, threads: int, transactions: int, seed: int
) -> tuple[list[Transaction], dict[str, list[int]], int]:
    """Run random publications at once; return those that were published, the final lists, and how many conflicted.

    Each reads one or two tables, and appends to one or two, which may be among them.
    """
    for name in names:
        lance.write_dataset(_rows(), namespace_client=client, table_id=list(name), mode="create")

    def work(thread: int) -> tuple[list[Transaction], int]:
        chooser, published, conflicts = random.Random(f"{seed} {thread}"), list[Transaction](), 0
        for number in range(transactions):
            entry = Transaction()
            with suppress(tiltyard.PublishConflictError):
                with tiltyard.publish(client, isolation=isolation) as tables:
                    for name in chooser.sample(names, chooser.randint(1, 2)):
                        entry.reads[name[-1]] = _values(tables, name)
                    for place, name in enumerate(chooser.sample(names, chooser.randint(1, 2))):
                        value = (thread * transactions + number) * 2 + place
                        rows = _rows(value)
                        lance.write_dataset(rows, namespace_client=tables, table_id=list(name), mode="append")
                        entry.appends[name[-1]] = value
                published.append(entry)
                continue
            conflicts += 1
        return published, conflicts

    with ThreadPoolExecutor(threads) as pool:
        outcomes = list(pool.map(work, range(threads)))
    final = {name[-1]: _values(client, name) for name in names}
    return [entry for published, _ in outcomes for entry in published], final, sum(count for _, count in outcomes)


def _rows(*values: int) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def _values(client: Any, name: Sequence[str]) -> list[int]:
    values: list[int] = lance.dataset(namespace_client=client, table_id=list(name)).to_table()["value"].to_pylist()
    return values


def main() -> None:
    """Run histories by each isolation, in process, and print a table of what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="histories by each isolation [default: 5]")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--transactions", type=int, default=25, help="of each thread [default: 25]")
    arguments = parser.parse_args()
    for isolation in Isolation:
        found, published, conflicts = Counter[str](), 0, 0
        for seed in range(arguments.runs):
            with tempfile.TemporaryDirectory() as root, tiltyard.Namespace(root, jobs=0) as client:
                names = [[f"list{number}"] for number in range(4)]
                size = arguments.threads, arguments.transactions
                history, final, refused = run_history(client, names, isolation, *size, seed)
            found += find_anomalies(history, final)
            published, conflicts = published + len(history), conflicts + refused
        print(f"{isolation}: {published} published, {conflicts} conflicts, {dict(found) or 'no anomaly'}", flush=True)  # noqa: T201  # it is a command


if __name__ == "__main__":
    main()
