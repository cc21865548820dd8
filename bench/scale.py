"""Estimate the machines and the money of a large service, from constants that were measured here.

python -m bench.scale                                                 puts the figures into docs/scale.md
python -m bench.scale --rows 1e8 --tables 1e4 --clients 100 --print   shows those of another service
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.constants import Constant, constants_table, markdown_table, short, short_bytes, short_time
from bench.results import replaced
from bench.spark.estimate import PAGE

MARKS = {
    name: (f"<!-- {name} -->", f"<!-- end of {name} -->")
    for name in ("service constants", "requests", "machines", "service price", "walls")
}
HOURS = 730
"""Hours of a month."""
BUSY = 0.5
"""Share of the processors' time that is planned: the rest is for peaks, and for a server that is gone."""
CORES = 8
"""Processors of one server machine."""
DIMENSION = 128
NPROBES = 20


@dataclass(frozen=True, slots=True)
class Service:
    """What is stored, and how many requests of each kind one client sends in a second."""

    rows: float = 1e9
    """Rows of the largest table: id int64, 128 × float32, text of 60 bytes."""
    tables: float = 1e6
    versions: float = 10
    """Versions that are kept of a table, on average."""
    clients: float = 1_000
    describes: float = 1
    pages: float = 0.02
    lookups: float = 1
    queries: float = 1
    inserts: float = 0.1


@dataclass(frozen=True, slots=True)
class Constants:
    """Processor time of a server, requests to an object store, bytes, and prices in dollars."""

    describe: Constant = Constant(58e-6, "s of a processor for DescribeTable", "RESULTS.md, `describe`")
    page: Constant = Constant(133e-6, "… for a page of 100 tables", "RESULTS.md, `list`")
    lookup: Constant = Constant(879e-6, "… for a row by an indexed column", "of a large table, by Lance")
    query: Constant = Constant(1.64e-3, "… for the ten nearest of 100,000 × 128 by IVF_PQ", "RESULTS.md, `nearest`")
    insert: Constant = Constant(833e-6, "… for an insert of a row among 32 callers", "RESULTS.md, `insert`")
    assigning: Constant = Constant(20e9, "multiplications and additions/s of a processor", "**assumed**")
    scanning: Constant = Constant(
        55e6, "rows/s whose codes a processor compares", "1 million × 128: 1,000 partitions, and 1"
    )
    row: Constant = Constant(530.4, "bytes of a row in Lance", "2 million rows, ingested")
    code: Constant = Constant(24, "bytes of a row in an IVF_PQ index of 16 sub-vectors", "16 of codes, 8 of its id")
    table_record: Constant = Constant(157, "bytes of a table in the catalog", "100,000 tables in SQLite")
    version_record: Constant = Constant(162, "bytes of a version in the catalog", "1 million versions in SQLite")
    process: Constant = Constant(210e6, "bytes of a server process on a million tables", "RESULTS.md, a million tables")
    caches: Constant = Constant(1.5e9, "bytes of its caches at most, as set by default", "docs/settings.md")
    insert_trips: Constant = Constant(2, "round trips of a commit to an object store", "RESULTS.md, object store")
    insert_requests: Constant = Constant(
        6, "requests of it, all priced as those that write", "RESULTS.md, object store"
    )
    grouped: Constant = Constant(
        319, "inserts/s of one row to one table in an object store, 256 callers", "RESULTS.md, object store"
    )
    trip: Constant = Constant(30e-3, "s of a round trip", "**assumed**: what the proxy adds")
    database_commits: Constant = Constant(2_762, "commits/s that PostgreSQL took", "RESULTS.md, `commits-postgres`")
    core_price: Constant = Constant(0.045, "$ of a processor with 4 GB for an hour", "**assumed**")
    memory_price: Constant = Constant(0.005, "$ of a further GB of memory for an hour", "**assumed**")
    database_price: Constant = Constant(0.09, "$ of a managed PostgreSQL's processor for an hour", "**assumed**")
    storage_price: Constant = Constant(0.023, "$ of a GB in the object store for a month", "**assumed**")
    write_price: Constant = Constant(5e-6, "$ of a PUT or LIST", "**assumed**")
    read_price: Constant = Constant(0.4e-6, "$ of a GET", "**assumed**")


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one kind: how many in a second, and the processor seconds of one."""

    kind: str
    rate: float
    seconds: float

    @property
    def cores(self) -> float:
        """Processors that they keep busy."""
        return self.rate * self.seconds


def query_seconds(rows: float, its: Constants) -> float:
    """Processor seconds of a query by IVF_PQ with √rows partitions, above what it takes on 100,000 rows."""
    partitions = math.sqrt(rows)
    return (
        its.query.value
        + partitions * DIMENSION * 2 / its.assigning.value
        + NPROBES * rows / partitions / its.scanning.value
    )


def requests(service: Service, its: Constants) -> Iterator[Requests]:
    """Return all requests of the clients, by kind."""
    yield Requests("DescribeTable", service.clients * service.describes, its.describe.value)
    yield Requests("ListTables, 100 of a page", service.clients * service.pages, its.page.value)
    yield Requests("a row by an indexed column", service.clients * service.lookups, its.lookup.value)
    yield Requests(
        f"the ten nearest of {short(service.rows)} rows",
        service.clients * service.queries,
        query_seconds(service.rows, its),
    )
    yield Requests("insert of a row", service.clients * service.inserts, its.insert.value)


@dataclass(frozen=True, slots=True)
class Machines:
    """What the service runs on. Bytes, dollars for a month."""

    servers: int
    memory: float
    """Of one server."""
    catalog: float
    storage: float
    writes: float
    """Requests to the object store that write, for a month."""


def machines(service: Service, its: Constants) -> Machines:
    """Return how many servers of `CORES` processors the requests take, and what is stored."""
    cores = sum(kind.cores for kind in requests(service, its)) / BUSY
    servers = max(2, math.ceil(cores / CORES))
    index = service.rows * its.code.value
    memory = CORES * (its.process.value + its.caches.value + index)
    catalog = service.tables * (its.table_record.value + service.versions * its.version_record.value)
    writes = service.clients * service.inserts * its.insert_requests.value * HOURS * 3_600
    return Machines(servers, memory, catalog, service.rows * its.row.value + index, writes)


def page(service: Service, its: Constants) -> dict[str, str]:
    """Return the page's tables, by their marks."""
    kinds = list(requests(service, its))
    total = sum(kind.cores for kind in kinds)
    rows = [[kind.kind, short(kind.rate), short_time(kind.seconds), f"{kind.cores:.2f}"] for kind in kinds]
    rows.append(["all", short(sum(kind.rate for kind in kinds)), "", f"{total:.2f}"])
    needed = machines(service, its)
    return {
        "service constants": constants_table(its),
        "requests": markdown_table(("request", "per second", "processor time", "processors"), rows),
        "machines": markdown_table(("part", "what"), _parts(service, needed)),
        "service price": markdown_table(("part", "$ a month"), _prices(needed, its)),
        "walls": markdown_table(("what", "at most", "in this service"), _walls(service, kinds, its)),
    }


def _parts(service: Service, needed: Machines) -> Iterator[list[str]]:
    yield [f"servers of {CORES} processors, half of them busy", f"{needed.servers}"]
    yield ["memory of a server whose processes each hold the index", short_bytes(needed.memory)]
    yield [
        f"catalog of {short(service.tables)} tables, {service.versions:g} versions of each",
        short_bytes(needed.catalog),
    ]
    yield [f"rows and index of {short(service.rows)} rows in the object store", short_bytes(needed.storage)]
    yield ["requests that write to the object store, a month", short(needed.writes)]


def _walls(service: Service, kinds: list[Requests], its: Constants) -> Iterator[list[str]]:
    commits = 1 / (its.insert_trips.value * its.trip.value)
    inserts = service.clients * service.inserts
    yield ["commits/s to one table in an object store; inserts that wait together share one", f"{commits:.1f}", "—"]
    grouped = "inserts/s of one row to one table in an object store, by 256 callers on two processors"
    yield [grouped, f"{its.grouped.value:g}", f"≤ {short(inserts)}"]
    yield ["commits/s of all tables in PostgreSQL", short(its.database_commits.value), f"≤ {short(inserts)}"]
    seconds = next(kind.seconds for kind in kinds if kind.kind.startswith("the ten nearest"))
    queries = service.clients * service.queries
    yield [f"vector queries/s of a server with {CORES} processors", short(CORES / seconds), short(queries)]
    yield [
        "rows whose index fits into a process's index cache of 1 GiB",
        short(2**30 / its.code.value),
        short(service.rows),
    ]


def _prices(needed: Machines, its: Constants) -> Iterator[list[str]]:
    further = max(0.0, needed.memory / 1e9 - CORES * 4)
    parts = {
        "servers": needed.servers * CORES * its.core_price.value * HOURS,
        "their memory above 4 GB for a processor": needed.servers * further * its.memory_price.value * HOURS,
        "PostgreSQL, 4 processors": 4 * its.database_price.value * HOURS,
        "storage": needed.storage / 1e9 * its.storage_price.value,
        "requests that write": needed.writes * its.write_price.value,
    }
    for part, dollars in parts.items():
        yield [part, f"{dollars:,.0f}"]
    yield ["all", f"{sum(parts.values()):,.0f}"]


def main() -> None:
    """Write the page, or show another service."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description="Compute what a large service would need, from constants that were measured.",
        epilog="example: python -m bench.scale --rows 1e8 --tables 1e4 --clients 100 --print",
    )
    usual = Service()
    parser.add_argument("--rows", type=float, default=usual.rows, help="rows of the largest table [default: 1e9]")
    parser.add_argument("--tables", type=float, default=usual.tables, help="[default: 1e6]")
    parser.add_argument("--clients", type=float, default=usual.clients, help="[default: 1000]")
    parser.add_argument(
        "--queries", type=float, default=usual.queries, help="vector queries/s of a client [default: 1]"
    )
    parser.add_argument("--print", action="store_true", help=f"show, and leave {PAGE.name} as it is")
    arguments = parser.parse_args()
    service = Service(
        rows=arguments.rows, tables=arguments.tables, clients=arguments.clients, queries=arguments.queries
    )
    contents = page(service, Constants())
    if arguments.print:
        print("\n\n".join(contents[name] for name in MARKS if name != "service constants"))
        return
    text = PAGE.read_text()
    for name, content in contents.items():
        text = replaced(text, MARKS[name], content)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
