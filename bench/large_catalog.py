"""Catalogs of a million tables: `python -m bench.large_catalog`, and `--postgres` for a catalog in PostgreSQL.

`--databases` and `--folder` keep catalogs in PostgreSQL for several runs, `--fill` fills them before one is measured.

A small catalog (1,000 tables) and a large one (1,000,000 tables, 100,000 namespaces, 10 million version records) are
filled by SQL, with the same form: a tenth of the tables is in one namespace, ten are in each other one. A server on
each takes its turn under the same load, on tables drawn anew at random, so that nothing fits into a cache that would
not with other tables. What should not depend on the size of the catalog is shown as a ratio of both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
from tests.services.postgres import postgres_server

from bench.data import SEED, rows
from bench.load import Load
from bench.rounds import Side
from bench.servers import Server, tiltyard
from bench.staging import stage, template
from bench.wire import ARROW, call, of_table, post, request, stream, with_key
from tiltyard.config import Settings
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.store import open_store, wall_clock
from tiltyard.store.access.grants import TABLE, place_grants
from tiltyard.store.backend import Connection
from tiltyard.store.store import open_database

SMALL, LARGE = 1_000, 1_000_000
IN_EACH = 10
"""Tables in each namespace but the wide one, and versions of each table."""
GROUP = 1_000
"""Namespaces that one namespace of the root has."""
WIDE = "wide"
AT_ONCE = 20_000
"""Rows that one transaction inserts."""
FEW_GRANTS, GRANTS = 100, 10_000
"""Of a principal in the small catalog and in the large one."""
READ = 2
"""The bit of the privilege."""
CONNECTIONS = 32
COMMITS = 400
CLIENTS = 4
PAGE = 100

NUMBERS = """
    WITH RECURSIVE numbers (n) AS (
        SELECT CAST(? AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST(? AS BIGINT)
    )
"""
NAMESPACES = f"""{NUMBERS}
    INSERT INTO namespaces (parent_id, name, properties, created_at)
    SELECT CAST(? AS BIGINT), CAST(? AS TEXT) || (1000000 + n), '{{}}', 0 FROM numbers
"""
TABLES = f"""{NUMBERS}
    INSERT INTO tables (
        namespace_id, name, location, properties, managed, declared, registered, created_at, updated_at
    )
    SELECT namespaces.id, 't' || (1000000 + n),
        CAST(? AS TEXT) || '/' || namespaces.id || '_t' || (1000000 + n) || '.lance',
        '{{"owner": "bench"}}', TRUE, FALSE, FALSE, 0, 0
    FROM namespaces CROSS JOIN numbers WHERE namespaces.id >= CAST(? AS BIGINT) AND namespaces.id < CAST(? AS BIGINT)
"""
VERSIONS = f"""{NUMBERS}
    INSERT INTO table_versions (
        table_id, branch, version, staged_path, manifest_path, manifest_size, metadata, naming_scheme, created_at,
        finalized
    )
    SELECT tables.id, '', n, location || '/_versions/' || (1000000000 - n) || '.manifest-0123456789abcdef',
        '_versions/' || (1000000000 - n) || '.manifest', 700, '{{}}', 'V2', 0, TRUE
    FROM tables CROSS JOIN numbers WHERE tables.id >= CAST(? AS BIGINT) AND tables.id < CAST(? AS BIGINT)
"""
GRANT = """
    INSERT INTO grants (grantee, kind, object_id, privileges, granted_by, granted_at)
    SELECT CAST(? AS TEXT), 'table', id, CAST(? AS BIGINT), 'bench', 0 FROM tables
    WHERE id % CAST(? AS BIGINT) = 0 ORDER BY id LIMIT CAST(? AS BIGINT)
"""


@dataclass(frozen=True, slots=True)
class Catalog:
    """A filled catalog: its folder, its database (None: SQLite in the folder), and how many tables it has."""

    root: Path
    database: str | None
    tables: int

    @property
    def url(self) -> str:
        """The address of its database."""
        return self.database or Settings(root=str(self.root)).database_url

    @property
    def wide(self) -> int:
        """Tables in the wide namespace."""
        return self.tables // 10

    @property
    def namespaces(self) -> int:
        """The namespaces with IN_EACH tables."""
        return (self.tables - self.wide) // IN_EACH

    def names(self) -> Iterator[str]:
        """Names of tables, drawn at random for ever."""
        draw = random.Random(SEED)
        while True:
            number = draw.randrange(self.tables)
            if number < self.wide:
                yield f"{WIDE}$t{1_000_000 + number}"
            else:
                yield f"{self.namespace(draw.randrange(self.namespaces))}$t{1_000_000 + draw.randrange(IN_EACH)}"

    def namespace(self, number: int) -> str:
        """The id of the namespace of this number."""
        return f"g{1_000_000 + number // GROUP}$n{1_000_000 + number % GROUP}"


def fill(catalog: Catalog) -> float:
    """Fill a catalog; return the seconds that it took."""
    started_at = time.perf_counter()
    open_store(catalog.url).close()
    database = open_database(catalog.url)

    def insert(sql: str, *values: object) -> None:
        database.write(lambda connection: connection.change(sql, *values))

    def ids_of(table: str) -> tuple[int, int]:
        row = database.read(lambda connection: connection.row(f"SELECT min(id), max(id) FROM {table} WHERE id > 1"))
        assert row is not None
        return row[0], row[1] + 1

    groups = -(-catalog.namespaces // GROUP)
    insert(NAMESPACES, 0, groups - 1, 1, "g")
    first, _ = ids_of("namespaces")
    for group in range(groups):
        insert(NAMESPACES, 0, min(GROUP, catalog.namespaces - group * GROUP) - 1, first + group, "n")
    leaf, end = first + groups, ids_of("namespaces")[1]
    for start in range(leaf, end, AT_ONCE // IN_EACH):
        insert(TABLES, 0, IN_EACH - 1, str(catalog.root), start, min(start + AT_ONCE // IN_EACH, end))
    insert("INSERT INTO namespaces (parent_id, name, properties, created_at) VALUES (1, ?, '{}', 0)", WIDE)
    wide = ids_of("namespaces")[1] - 1
    for start in range(0, catalog.wide, AT_ONCE):
        insert(TABLES, start, min(start + AT_ONCE, catalog.wide) - 1, str(catalog.root), wide, wide + 1)
    first, end = ids_of("tables")
    for start in range(first, end, AT_ONCE // IN_EACH):
        insert(VERSIONS, 1, IN_EACH, start, min(start + AT_ONCE // IN_EACH, end))
    database.close()
    if catalog.database:
        with psycopg.connect(catalog.database, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # what autovacuum does sooner or later, perhaps while we measure
    return time.perf_counter() - started_at


def key_of(catalog: Catalog, name: str, grants: int) -> str:
    """The key of a new principal that may read so many tables, far apart, each by a grant of its own."""
    with open_store(catalog.url) as store:
        key = create_key(store, wall_clock, name, NewKeyOptions(), administrator=False).text
    database = open_database(catalog.url)
    grantee = f"principal:{name}"

    def grant(connection: Connection) -> None:
        connection.change(GRANT, grantee, READ, max(1, catalog.tables // grants), grants)
        place_grants(connection, TABLE, "grantee = ?", grantee)

    database.write(grant)
    database.close()
    return key


@dataclass(frozen=True, slots=True)
class Pair:
    """The servers on both catalogs."""

    catalogs: tuple[Catalog, Catalog]
    servers: tuple[Server, Server]
    rounds: int
    seconds: float

    def compare(self, title: str, requests: Callable[[Catalog], Iterator[bytes]]) -> str:
        """Drive both in turn; return a line of the table."""
        sides = [Side(server) for server in self.servers]
        lanes = [requests(catalog) for catalog in self.catalogs]
        for _ in range(self.rounds):
            for side, lane in zip(sides, lanes, strict=True):
                side.take(lambda lane=lane: lane, Load(CONNECTIONS, self.seconds))  # type: ignore[misc]
        return line(title, sides)


def line(title: str, sides: list[Side]) -> str:
    """A line of the table: both, the time of the large one as a multiple, and its processor time."""
    small, large = sides
    clock, cpu = small.rate / large.rate, statistics.median(large.cpu) / statistics.median(small.cpu)
    return f"| {title} | {small.words()} | {large.words()} | {clock:.2f}x | {cpu:.2f}x |"


def pages(action: str, key: str | None = None, limit: int = PAGE) -> Iterator[bytes]:
    """Requests of one page, for ever."""
    asked = request("GET", f"{action}{'&' if '?' in action else '?'}limit={limit}")
    return repeat(with_key(asked, key) if key else asked)


def commits(pair: Pair, work: Path) -> str:
    """CreateTableVersion by clients that each have a new table of their own, in both catalogs."""
    sides = [Side(server) for server in pair.servers]
    source = template(work)
    for _ in range(pair.rounds):
        for side in sides:
            names = [f"{WIDE}$committed-{time.time_ns()}-{client}" for client in range(CLIENTS)]
            staged = [stage(side.server.address, name, source, COMMITS) for name in names]
            side.take(lambda staged=staged: [one.requests() for one in staged], Load(CLIENTS, count=COMMITS * CLIENTS))  # type: ignore[misc]
    return line(f"CreateTableVersion, {CLIENTS} clients", sides)


def every_page(server: Server, key: str | None, most: int) -> tuple[float, float, int]:
    """Follow ListAllTables; return the median seconds of the first ten pages and the last ten, and how many tables."""
    token: str | None = ""
    seconds: list[float] = []
    number = 0
    while True:
        path = f"/v1/table?limit=1000&page_token={quote(token, safe='')}" if token else "/v1/table?limit=1000"
        headers = {"x-api-key": key} if key else {}
        started_at = time.perf_counter()
        answer = call_with(server, path, headers)
        seconds.append(time.perf_counter() - started_at)
        number += len(answer["tables"])
        token = answer.get("page_token")
        if not token or len(seconds) == most:
            return statistics.median(seconds[:10]), statistics.median(seconds[-10:]), number


def call_with(server: Server, path: str, headers: dict[str, str]) -> Any:
    """GET a JSON answer."""
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=600)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {body[:300]!r}")
    return json.loads(body)


def timed(function: Callable[[], object], times: int = 3) -> float:
    """The best of some seconds: of the work, not of what else the machine does."""
    found = []
    for _ in range(times):
        started_at = time.perf_counter()
        function()
        found.append(time.perf_counter() - started_at)
    return min(found)


def start(catalog: Catalog, folder: Path, *further: str) -> tuple[Server, float, float]:
    """Start a server; return it with the seconds until it serves, and its processor time by then."""
    log = folder / f"{catalog.tables}{''.join(further)}.log"
    started_at = time.perf_counter()
    server = tiltyard(catalog.root, log, 1, catalog.database, further=further)
    return server, time.perf_counter() - started_at, server.cpu_seconds()


def in_command(*command: str) -> float:
    """The seconds of a command of Tiltyard. Raises CalledProcessError."""
    return timed(lambda: subprocess.run([sys.executable, "-m", "tiltyard", *command], check=True, capture_output=True))


def of_open_servers(pair: Pair, work: Path) -> Iterator[str]:
    """What anybody asks for."""
    draws = {catalog.tables: catalog.names() for catalog in pair.catalogs}

    def on_tables(action: str) -> Callable[[Catalog], Iterator[bytes]]:
        return lambda catalog: (post(of_table(name, action)) for name in draws[catalog.tables])

    hot = [next(draws[pair.catalogs[1].tables]) for _ in range(SMALL)]
    yield pair.compare("DescribeTable, any table", on_tables("describe"))
    yield pair.compare(
        "DescribeTable, 1,000 tables of the large one",
        lambda catalog: (
            cycle([post(of_table(name, "describe")) for name in hot])
            if catalog.tables == pair.catalogs[1].tables
            else on_tables("describe")(catalog)
        ),
    )
    yield pair.compare("TableExists, any table", on_tables("exists"))
    yield pair.compare("ListTableVersions, any table, latest", on_tables("version/list?limit=1&descending=true"))
    yield pair.compare(
        "ListTables, first page of the wide namespace", lambda c: pages(f"/v1/namespace/{WIDE}/table/list")
    )
    yield pair.compare("ListNamespaces, first page of a group", lambda c: pages("/v1/namespace/g1000000/list"))
    yield pair.compare("ListAllTables, first page", lambda c: pages("/v1/table"))
    yield commits(pair, work)
    yield pair.compare("/metrics", lambda c: repeat(request("GET", "/metrics")))


def of_guarded_servers(pair: Pair, keys: tuple[str, str]) -> Iterator[str]:
    """What one asks for who may read some tables, each by a grant of its own: FEW_GRANTS in the small catalog,
    GRANTS in the large one.
    """
    by_catalog = {catalog.tables: key for catalog, key in zip(pair.catalogs, keys, strict=True)}

    def granted(catalog: Catalog) -> Iterator[bytes]:
        headers = {"x-api-key": by_catalog[catalog.tables]}
        server = pair.servers[pair.catalogs.index(catalog)]
        names = call_with(server, "/v1/table?limit=1000", headers)["tables"]
        return cycle([with_key(post(of_table(name, "describe")), headers["x-api-key"]) for name in names])

    yield pair.compare("DescribeTable by single grants, 100 and 10,000", granted)
    # Pages of both are of one size, and have a token; but the small catalog has one namespace in its root to show.
    for title, action, limit in (
        ("ListTables of the wide namespace, five on a page, the same", f"/v1/namespace/{WIDE}/table/list", 5),
        ("ListAllTables, five on a page, the same", "/v1/table", 5),
        ("ListNamespaces of the root, one on a page, the same", "/v1/namespace/$/list", 1),
        ("ListNamespaces of a group, five on a page, the same", "/v1/namespace/g1000000/list", 5),
    ):
        yield pair.compare(
            title,
            lambda c, action=action, limit=limit: pages(action, by_catalog[c.tables], limit),  # type: ignore[misc]
        )


def measure(catalogs: tuple[Catalog, Catalog], arguments: argparse.Namespace, work: Path) -> None:
    """Measure what the module says, and print it."""
    print("| row | small | large | time | CPU |\n|---|---|---|---|---|", flush=True)
    for catalog in catalogs:  # the first start reads the database from the disk
        server = start(catalog, work)[0]
        call(server.address, "POST", of_table(f"{WIDE}$kept", "create?mode=exist_ok"), stream(pa.table(rows(1))), ARROW)
        server.stop()
        if catalog.database is None:
            for file in catalog.root.glob("catalog.db*"):
                file.read_bytes()
    facts: list[tuple[str, list[str]]] = []
    with ExitStack() as stack:
        started = [start(catalog, work) for catalog in catalogs]
        servers = [server for server, _, _ in started]
        for server in servers:
            stack.callback(server.stop)
        facts.append(("start", [f"{clock:.1f} s, {cpu:.1f} s CPU" for _, clock, cpu in started]))
        facts.append(("memory after the start", [f"{server.memory() >> 20} MiB" for server in servers]))
        pair = Pair(catalogs, (servers[0], servers[1]), arguments.rounds, arguments.seconds)
        for text in of_open_servers(pair, work):
            print(text, flush=True)
        walks = [every_page(server, None, arguments.pages) for server in servers]
        facts.append(
            (
                "ListAllTables, pages of 1,000: first, last",
                [f"{a * 1e3:.1f}, {b * 1e3:.1f} ms ({n:,} tables)" for a, b, n in walks],
            )
        )
        facts.append(("memory after all of it", [f"{server.memory() >> 20} MiB" for server in servers]))
    reader = f"reader-{time.time_ns()}"
    keys = key_of(catalogs[0], reader, FEW_GRANTS), key_of(catalogs[1], reader, GRANTS)
    with ExitStack() as stack:
        servers = [start(catalog, work, "--auth")[0] for catalog in catalogs]
        for server in servers:
            stack.callback(server.stop)
        for text in of_guarded_servers(
            Pair(catalogs, (servers[0], servers[1]), arguments.rounds, arguments.seconds), keys
        ):
            print(text, flush=True)
        facts.append(("memory with grants", [f"{server.memory() >> 20} MiB" for server in servers]))
    places = [
        ["--root", str(catalog.root), *(["--db", catalog.database] if catalog.database else [])] for catalog in catalogs
    ]
    facts.append(
        (
            "`tiltyard gc TABLE --dry-run`",
            [f"{in_command('gc', f'{WIDE}$kept', '--dry-run', *place):.1f} s" for place in places],
        )
    )
    for name, values in facts:
        print(f"| {name} | {values[0]} | {values[1]} | | |")


def main() -> None:
    """Fill both catalogs, unless the folder has them, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=LARGE, help="tables of the large catalog")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--pages", type=int, default=1_000, help="of ListAllTables that are followed at most")
    parser.add_argument("--postgres", action="store_true", help="catalogs in PostgreSQL")
    parser.add_argument(
        "--databases", nargs=2, metavar=("SMALL", "LARGE"), help="PostgreSQL databases of the catalogs, with --folder"
    )
    parser.add_argument("--folder", type=Path, help="keep the catalogs there, and take them from there")
    parser.add_argument("--fill", action="store_true", help="fill catalogs that are kept, and measure nothing")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        work = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-large-")))
        work.mkdir(parents=True, exist_ok=True)
        databases: list[str] | list[None] = arguments.databases or [None, None]
        if arguments.postgres:
            cluster = stack.enter_context(postgres_server())
            databases = [cluster.new_database(socket=True) for _ in databases]
        catalogs = []
        for tables, database in zip((SMALL, arguments.tables), databases, strict=True):
            catalog = Catalog(work / str(tables), database, tables)
            full = catalog.root / "full"
            if not full.exists():
                catalog.root.mkdir(exist_ok=True)
                seconds = fill(catalog)
                full.touch()
                print(f"{tables:,} tables, {tables * IN_EACH:,} versions: filled in {seconds:.0f} s", flush=True)
            catalogs.append(catalog)
        if not arguments.fill:
            measure((catalogs[0], catalogs[1]), arguments, work)


if __name__ == "__main__":
    main()
