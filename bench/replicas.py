"""Several servers on one PostgreSQL behind a TCP balancer: `python -m bench.replicas`.

*Throughput*: one, two and four servers under the same load, and one without the balancer. *Staleness*: a change is made
by one server, and another is asked over and over until it answers by it; counted from the response to the change.
*Death*: one of four servers is ended by SIGKILL while 32 connections describe tables and 8 insert into one table.
All servers have one process, API keys (`--auth`), a folder of their own for temporary files (as on machines of their
own: no locks of files between them), and share the tables' folder.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, cycle, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from tests.services.postgres import postgres_server

from bench import data
from bench.load import Load, drive, drive_together, words
from bench.servers import Server, tiltyard
from bench.wire import ARROW, JSON, of_table, post, request, with_key
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.store import open_store, wall_clock

TABLES = 200
READERS, WRITERS = 32, 8
STALE_SECONDS = 5.0
GOAL_SECONDS = 0.1
CONNECTIONS = 16
"""`db_connections` of each server, its default."""
KILL_AFTER = 3.0
READER = "reader"
INSERTS = "insert 1 row, 8 callers, one table"
ROWS = data.in_namespace("rows")


@dataclass(slots=True)
class Replicas:
    """Servers on one database and one folder, and the keys of an administrator and of a principal without grants."""

    servers: list[Server]
    database: str
    owner: str
    reader: str

    def cpu_seconds(self) -> float:
        """Processor time of all servers."""
        return sum(server.cpu_seconds() for server in self.servers)

    def connections(self) -> int:
        """Return how many connections the servers have to PostgreSQL."""
        with psycopg.connect(self.database) as connection:
            sql = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
            row = connection.execute(sql).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def replicas(number: int, folder: Path, database: str) -> Iterator[Replicas]:
    """Start servers, and fill their catalog."""
    root = folder / "root"
    root.mkdir(parents=True)
    with open_store(database) as store:
        owner, reader = (
            create_key(store, wall_clock, name, NewKeyOptions(), administrator=name == "owner").text
            for name in ("owner", READER)
        )
    with ExitStack() as stack:
        servers = []
        for place in range(number):
            own = folder / f"machine{place}"  # servers on several machines share no folder of temporary files
            own.mkdir()
            environ = {"TMPDIR": str(own)}
            server = tiltyard(root, folder / f"log{place}", 1, database, further=["--auth"], environ=environ)
            stack.callback(server.stop)
            servers.append(server)
        requests = [request("POST", f"/v1/namespace/{data.NAMESPACE}/create", b"{}")]
        requests += [post(of_table(data.in_namespace(f"t{place:06}"), "declare")) for place in range(TABLES)]
        requests += [request("POST", of_table(ROWS, "create"), data.one_row(0), ARROW)]
        keyed = iter([with_key(text, owner) for text in requests])
        measured = drive(servers[0].address, keyed, Load(1, count=len(requests)))
        if measured.failed:
            raise RuntimeError(f"The tables cannot be created: {dict(measured.failures)}")
        yield Replicas(servers, database, owner, reader)


@contextmanager
def balancer(servers: Sequence[Server], folder: Path) -> Iterator[Server]:
    """Run a balancer in front of servers, in a process of its own."""
    addresses = [f"{server.address.host}:{server.address.port}" for server in servers]
    process = Server("Balancer", ["bench.balancer", *addresses], folder / "balancer.log")
    try:
        yield process
    finally:
        process.stop()


def loads(group: Replicas) -> list[tuple[str, int, Callable[[], Iterator[bytes]]]]:
    """Return the kinds of requests: name, connections, and the requests themselves."""
    described = [with_key(text, group.owner) for text in islice(data.on_tables("describe", TABLES), TABLES)]
    page = with_key(request("GET", f"/v1/namespace/{data.NAMESPACE}/table/list?limit=100"), group.owner)
    names = count()

    def declarations() -> Iterator[bytes]:
        while True:
            yield with_key(post(of_table(data.in_namespace(f"new-{next(names)}"), "declare")), group.owner)

    return [
        ("DescribeTable", READERS, lambda: cycle(described)),
        ("ListTables, 100", READERS, lambda: repeat(page)),
        ("DeclareTable", WRITERS, declarations),
        (INSERTS, WRITERS, lambda: inserts(group.owner)),
    ]


def inserts(key: str) -> Iterator[bytes]:
    """Return inserts of one row each into one table."""
    return repeat(with_key(request("POST", of_table(ROWS, "insert"), data.one_row(1), ARROW), key))


def measure_throughput(
    group: Replicas, folder: Path, rounds: int, seconds: float, only: str | None = None
) -> Iterator[str]:
    """Yield the lines of the table for a group of servers: of one kind of requests, if that is named."""
    number = len(group.servers)
    with balancer(group.servers, folder) as front:
        targets = [(f"{number} behind the balancer", front)] + [("1, no balancer", group.servers[0])] * (number == 1)
        for name, connections, requests in loads(group):
            if only not in (None, name):
                continue
            for side, target in targets:
                measured, costs = [], []
                for _ in range(rounds):
                    before = group.cpu_seconds()
                    one = drive(target.address, requests(), Load(connections, seconds))
                    costs.append((group.cpu_seconds() - before) / max(1, one.succeeded))
                    measured.append(one)
                yield f"| {name} | {side} | {words(measured)} | {median(costs) * 1e6:,.0f} µs |"
    used, bound = group.connections(), CONNECTIONS * number
    yield f"| connections to PostgreSQL after it | {number} | {used} of at most {bound} | |"


class Caller:
    """A connection to a server, with a key."""

    def __init__(self, server: Server, key: str) -> None:
        self._connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=60)
        self._key = key

    def send(self, path: str, body: Any = None, media: str = JSON) -> tuple[int, Any]:
        """Return the status and the decoded body of a response."""
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self._connection.request("POST", path, content, {"Content-Type": media, "x-api-key": self._key})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"null")

    def do(self, path: str, body: Any = None, media: str = JSON) -> Any:
        """Return the body of a response. Raises RuntimeError unless it is a success."""
        status, answer = self.send(path, body, media)
        if status >= 300:
            raise RuntimeError(f"{path}: {status} {answer}")
        return answer


@dataclass(frozen=True, slots=True)
class Change:
    """A change that one server makes, and what is asked of another one, whose answer changes with it."""

    name: str
    path: str
    body: Any
    asked: Caller
    question: str

    def make(self, caller: Caller) -> None:
        """Make it. Raises RuntimeError if the server refuses."""
        caller.do(self.path, self.body, ARROW if isinstance(self.body, bytes) else JSON)

    def ask(self) -> object:
        """Return the status of the response, and its body if it is a success."""
        status, answer = self.asked.send(self.question)
        return (status, answer) if status < 300 else status


def changes(group: Replicas, owner: Caller) -> Iterator[Change]:
    """Yield changes without end; each kind follows the ones before, or undoes one."""
    second = group.servers[1]
    other, reader = Caller(second, group.owner), Caller(second, group.reader)
    grant = {"object_kind": "table", "id": ROWS.split("$"), "grantee": READER, "privileges": ["read"]}
    policy = {"name": "none", "filter": "id < 0"}
    rows = of_table(ROWS, "count_rows")
    for number in count():
        table = data.in_namespace(f"change-{number}")
        exists = of_table(table, "exists")
        yield Change("a table is declared", of_table(table, "declare"), None, other, exists)
        yield Change("a table is dropped", of_table(table, "drop"), None, other, exists)
        yield Change("a row is inserted", of_table(ROWS, "insert"), data.one_row(1), other, rows)
        yield Change("a grant is added", "/tiltyard/v1/grant/add", grant, reader, rows)
        yield Change("a policy is set", of_policy("set"), policy, reader, rows)
        yield Change("a policy is dropped", of_policy("drop"), {"name": "none"}, reader, rows)
        yield Change("a grant is revoked", "/tiltyard/v1/grant/revoke", grant, reader, rows)
        made = owner.do("/tiltyard/v1/key/create", {"principal": READER})
        holder = Caller(second, made["api_key"])
        revoked = {"key_id": made["key"]["key_id"]}
        yield Change("a key is revoked", "/tiltyard/v1/key/revoke", revoked, holder, "/tiltyard/v1/whoami")


def of_policy(action: str) -> str:
    """Return the path of an operation on the policies of the table."""
    return f"/tiltyard{of_table(ROWS, 'policy')}/{action}"


def staleness(change: Change, owner: Caller) -> float:
    """Make a change; return the seconds from its response to the first response of the other server that follows it.

    Raises RuntimeError if none does within STALE_SECONDS.
    """
    before = change.ask()
    time.sleep(random.uniform(0, GOAL_SECONDS))
    change.ask()
    change.make(owner)
    made_at = time.perf_counter()
    while change.ask() == before:
        if time.perf_counter() > made_at + STALE_SECONDS:
            raise RuntimeError(f"{change.name}: the other server still says {before}")
    return time.perf_counter() - made_at


def measure_staleness(group: Replicas, trials: int) -> Iterator[str]:
    """Yield the lines of the table."""
    seconds: dict[str, list[float]] = {}
    owner = Caller(group.servers[0], group.owner)
    for change in changes(group, owner):
        if len(seconds.setdefault(change.name, [])) == trials:
            break
        seconds[change.name].append(staleness(change, owner))
    for name, values in seconds.items():
        met = "yes" if max(values) <= GOAL_SECONDS else "**no**"
        ordered = sorted(values)
        p95 = ordered[int(0.95 * len(ordered))]
        middle, most = median(values) * 1e3, max(values) * 1e3
        yield f"| {name} | {middle:.1f} ms | {p95 * 1e3:.1f} ms | {most:.1f} ms | {met} |"


def measure_death(group: Replicas, folder: Path, seconds: float) -> Iterator[str]:
    """Yield the lines of the table: end one of the servers while requests come."""
    described = cycle([with_key(text, group.owner) for text in islice(data.on_tables("describe", TABLES), TABLES)])
    rows = Caller(group.servers[0], group.owner)
    before = int(rows.do(of_table(ROWS, "count_rows")))
    victim = group.servers[-1]
    load = [(described, Load(READERS, seconds)), (inserts(group.owner), Load(WRITERS, seconds))]
    with balancer(group.servers, folder) as front:
        timer = threading.Timer(KILL_AFTER, victim.kill)
        timer.start()
        reads, writes = drive_together(front.address, load)
        timer.join()
    share = (READERS + WRITERS) / len(group.servers)
    yield f"| failed requests, {share:.0f} connections of the dead server | {reads.failed + writes.failed} |"
    kinds = {status or "no answer": number for status, number in (reads.failures + writes.failures).items()}
    yield f"| their kinds | {kinds} |"
    yield f"| DescribeTable | {words([reads])}, longest {reads.longest * 1e3:.0f} ms |"
    yield f"| insert of 1 row | {words([writes])}, longest {writes.longest * 1e3:.0f} ms |"
    added = int(rows.do(of_table(ROWS, "count_rows"))) - before
    yield f"| rows acknowledged, rows there | {writes.succeeded}, {added} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    parser.add_argument("--trials", type=int, default=40, help="of each change [default: 40]")
    parser.add_argument("--only", choices=("throughput", "inserts", "staleness", "death"))
    arguments = parser.parse_args()
    with postgres_server() as cluster, tempfile.TemporaryDirectory() as name:
        parts = ("throughput", "staleness", "death") if arguments.only is None else (arguments.only,)
        if "throughput" in parts or "inserts" in parts:
            only = INSERTS if "inserts" in parts else None
            print("| requests | servers | | processor time of the servers |\n|---|---|---|---|")
            for number in (1, 2, 4):
                folder = Path(name) / str(number)
                with replicas(number, folder, cluster.new_database()) as group:
                    for line in measure_throughput(group, folder, arguments.rounds, arguments.seconds, only):
                        print(line, flush=True)
        if "staleness" in parts:
            print("| change | median | 95 of 100 | longest | ≤ 100 ms |\n|---|---|---|---|---|")
            folder = Path(name) / "staleness"
            with replicas(2, folder, cluster.new_database()) as group:
                for line in measure_staleness(group, arguments.trials):
                    print(line, flush=True)
        if "death" in parts:
            print("| one of four servers is killed | |\n|---|---|")
            folder = Path(name) / "death"
            with replicas(4, folder, cluster.new_database()) as group:
                for line in measure_death(group, folder, KILL_AFTER + arguments.seconds):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
