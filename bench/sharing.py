"""Simulate many servers that share out tables, or do not, and put the figures into docs/scale.md.

Which server keeps a table is computed by the servers' own function. Sizes of tables and how often they are searched are
drawn (Zipf), a server keeps the most searched of its tables within its budget, as its cache does after a while, and
what a search costs was measured on small machines. Then two servers, or a tenth of them, end at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.constants import Constant, constants_table, markdown_table, short, short_bytes
from bench.results import replaced
from bench.spark.estimate import PAGE
from tiltyard.catalog.table_servers import KEEPERS, Server, rank

MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("sharing", "sharing constants")}
SEED = 7
GROUPS = ((4, False), (4, True), (10, False), (10, True), (100, False), (100, True))


@dataclass(frozen=True, slots=True)
class Constants:
    """What was measured, and what a server has."""

    row: Constant = Constant(576, "bytes of a vector of 128 floats that is kept in memory", "docs/vector-cache.md")
    budget: Constant = Constant(64e9, "bytes of a server for vectors", "**assumed**: a quarter of 256 GB")
    warm: Constant = Constant(1.5e-3, "s of a processor for a search in memory", "RESULTS.md, servers that share out")
    forwarded: Constant = Constant(3.0e-3, "… more where it is forwarded, on both servers", "the same, by difference")
    cold: Constant = Constant(4.0e-3, "… where Lance searches, its index being on the disk", "**assumed**")
    read: Constant = Constant(200e6, "bytes/s of vectors that a server reads to keep them", "**assumed**")


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of vectors: how many rows each has, and which share of all searches."""

    rows: np.ndarray
    searches: np.ndarray


def draw(tables: int, rows: float) -> Tables:
    """Return tables with so many rows together: few large ones, few that are searched often, each for itself."""
    generator = np.random.default_rng(SEED)
    sizes, shares = (1 / np.arange(1, tables + 1), 1 / np.arange(1, tables + 1))
    generator.shuffle(shares)
    return Tables(sizes / sizes.sum() * rows, shares / shares.sum())


@dataclass(frozen=True, slots=True)
class Figures:
    """What a group of servers keeps, and what its searches are."""

    kept: np.ndarray
    """Bytes of each server."""
    warm: float
    """Share of the searches that are answered from memory."""
    forwarded: float
    """Share of the searches that another server answers."""
    seconds: float
    """Processor time of a search."""


def keepers(tables: Tables, servers: Sequence[Server], *, is_shared: bool) -> list[list[int]]:
    """Return which servers may keep each table, by their places: all, where tables are not shared out."""
    places = {server.url: place for place, server in enumerate(servers)}
    if not is_shared:
        return [list(range(len(servers)))] * len(tables.rows)
    return [
        [places[server.url] for server in rank(servers, [f"t{number}"])[:KEEPERS]] for number in range(len(tables.rows))
    ]


def simulate(tables: Tables, kept_by: list[list[int]], number: int, its: Constants, *, is_shared: bool) -> Figures:
    """Return the figures of a group whose caches have settled: each keeps the most searched tables that fit."""
    free, kept = np.full(number, its.budget.value), np.zeros(number)
    warm = forwarded = 0.0
    for table in np.argsort(-tables.searches):
        share, size = tables.searches[table], tables.rows[table] * its.row.value
        places = kept_by[table]
        having = [place for place in places if size <= free[place]]
        free[having] -= size
        kept[having] += size
        if is_shared:  # the first keeper answers all searches but those that reach the second one
            asked = [(number - 1) / number, 1 / number] if len(places) > 1 else [1.0]
            warm += share * sum(part for part, place in zip(asked, places, strict=False) if place in having)
            forwarded += share * (number - len(places)) / number
        else:
            warm += share * len(having) / number
    seconds = warm * its.warm.value + (1 - warm) * its.cold.value + forwarded * its.forwarded.value
    return Figures(kept, warm, forwarded, seconds)


def lost(tables: Tables, kept_by: list[list[int]], dead: set[int], its: Constants) -> tuple[float, float]:
    """Return the share of searches whose tables no living server keeps after these have ended, and the seconds in which
    the others have read them.
    """
    gone = [table for table, places in enumerate(kept_by) if set(places) <= dead]
    size = float(tables.rows[gone].sum()) * its.row.value
    alive = max(len({place for places in kept_by for place in places} - dead), 1)
    return float(tables.searches[gone].sum()), size / alive / its.read.value


def lines(tables: Tables, its: Constants) -> Iterator[list[str]]:
    """Yield the lines of the table."""
    for number, is_shared in GROUPS:
        servers = [Server(f"http://server-{place}", 1) for place in range(number)]
        kept_by = keepers(tables, servers, is_shared=is_shared)
        figures = simulate(tables, kept_by, number, its, is_shared=is_shared)
        share, seconds = lost(tables, kept_by, set(range(max(2, number // 10))), its)
        yield [
            str(number),
            "yes" if is_shared else "no",
            f"{short_bytes(float(figures.kept.max()))}, {short_bytes(float(figures.kept.mean()))}",
            f"{figures.warm:.1%}",
            f"{figures.forwarded:.0%}",
            f"{figures.seconds * 1e3:.2f} ms",
            f"{share:.1%}, {seconds:.0f} s" if share else "none",
        ]


def main() -> None:
    """Write the figures, or show those of other tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--rows", type=float, default=1e9, help="vectors of all tables [default: 1e9]")
    parser.add_argument("--tables", type=int, default=10_000, help="[default: 10,000]")
    parser.add_argument("--print", action="store_true", help=f"show, and leave {PAGE.name} as it is")
    arguments = parser.parse_args()
    its = Constants()
    head = (
        "servers",
        "shared out",
        "kept by a server: most, mean",
        "from memory",
        "forwarded",
        "a search",
        "two, or a tenth, end",
    )
    table = markdown_table(head, lines(draw(arguments.tables, arguments.rows), its))
    caption = f"{short(arguments.rows)} vectors of 128 floats in {short(arguments.tables)} tables."
    if arguments.print:
        print(f"{caption}\n\n{table}")
        return
    text = replaced(PAGE.read_text(), MARKS["sharing"], f"{caption}\n\n{table}")
    PAGE.write_text(replaced(text, MARKS["sharing constants"], constants_table(its)))


if __name__ == "__main__":
    main()
