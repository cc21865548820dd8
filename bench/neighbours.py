"""What scans of a principal cost the requests of others, and idle connections memory: `python -m bench.neighbours`.

One server with `--auth`. Principal `scanner` reads a whole table over and over, by eight connections of a process of
its own, and then filters it by 64, which finds nothing and holds a thread until all is read; `describer` describes
tables by 32 connections, `searcher` finds the ten nearest of a small table by 8. The latter two are measured alone and
beside the scans, in turn. Then a crowd of connections is opened, each sends one request, and the memory of the server
is read while they are idle; and the same again with TLS.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from tests.services.certificates import loopback_certificate

from bench import data
from bench.load import Address, Load, Measured, drive_together, words
from bench.servers import Server, tiltyard
from bench.wire import of_table, post, request, stream, with_key
from tiltyard.config import Settings
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.server.connection_balancing import raise_descriptor_limit
from tiltyard.store import open_store, wall_clock

TABLES = 200
SMALL_ROWS = 10_000
DESCRIBERS, SEARCHERS = 32, 8
CROWD = 2_000
WARM_CONNECTIONS = 50
READ_BYTES = 1 << 20
GOAL = 3.0
GOAL_BYTES = 20 << 10
PRINCIPALS = ("scanner", "describer", "searcher")


@dataclass(frozen=True, slots=True)
class Heavy:
    """Heavy requests: how many at once, and what they ask for besides the large table."""

    name: str
    connections: int
    query: dict[str, Any]


READS = Heavy("8 reads of all rows", 8, {})
FILTERS = Heavy(
    "64 filters of all rows",
    64,
    {"k": 10, "filter": "regexp_like(name, 'r.*o.*w.*z$')", "columns": {"column_names": ["id"]}},
)


def _scan(address: Address, text: bytes, scanned: Any, stopping: Any) -> None:
    """Request a whole table over and over on one connection after the other, and throw its bytes away."""
    buffer = bytearray(READ_BYTES)
    closing = text.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    while not stopping.is_set():
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(closing)
            while not stopping.is_set() and (count := connection.recv_into(buffer)):
                with scanned.get_lock():
                    scanned.value += count


def _scan_process(address: Address, text: bytes, number: int, scanned: Any, stopping: Any) -> None:
    threads = [threading.Thread(target=_scan, args=(address, text, scanned, stopping)) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def scans(address: Address, text: bytes, number: int) -> Iterator[Any]:
    """Run so many scans at once for the time of a block; yields the counter of the bytes that they have read."""
    spawn = multiprocessing.get_context("spawn")
    scanned, stopping = spawn.Value("q", 0), spawn.Event()
    process = spawn.Process(target=_scan_process, args=(address, text, number, scanned, stopping))
    process.start()
    try:
        while not scanned.value and process.is_alive():
            stopping.wait(0.05)
        yield scanned
    finally:
        stopping.set()
        process.join(20)
        process.kill()


@dataclass(slots=True)
class Place:
    """A server with the tables and keys of the measurement."""

    server: Server
    keys: dict[str, str]
    rows: int

    def fill(self) -> None:
        """Create the tables. Raises RuntimeError if one cannot be created."""
        requests = [request("POST", f"/v1/namespace/{data.NAMESPACE}/create", b"{}")]
        requests += [post(of_table(data.in_namespace(f"t{number:06}"), "declare")) for number in range(TABLES)]
        requests += [self._creation("small", SMALL_ROWS), self._creation("large", self.rows)]
        keyed = iter([with_key(text, self.keys["owner"]) for text in requests])
        (measured,) = drive_together(self.server.address, [(keyed, Load(1, count=len(requests)))])
        if measured.failed:
            raise RuntimeError(f"The tables cannot be created: {dict(measured.failures)}")

    @staticmethod
    def _creation(name: str, rows: int) -> bytes:
        table = data.reader(rows).read_all()
        media = "application/vnd.apache.arrow.stream"
        return request("POST", of_table(data.in_namespace(name), "create"), stream(table), media)

    def requests(self) -> tuple[Iterator[bytes], Iterator[bytes]]:
        """Return the requests of the describers and the searchers."""
        described = [
            with_key(text, self.keys["describer"]) for text in islice(data.on_tables("describe", TABLES), TABLES)
        ]
        path = of_table(data.in_namespace("small"), "query")
        searched = [with_key(post(path, query), self.keys["searcher"]) for query in data.nearest_queries(["id"])]
        return cycle(described), cycle(searched)

    def scan(self, heavy: Heavy) -> bytes:
        """Return the request of a scan."""
        body = {"vector": {"single_vector": []}, "k": self.rows, **heavy.query}
        return with_key(post(of_table(data.in_namespace("large"), "query"), body), self.keys["scanner"])


@dataclass(slots=True)
class Rounds:
    """The measurements of describers and searchers."""

    described: list[Measured] = field(default_factory=list)
    searched: list[Measured] = field(default_factory=list)
    scanned: list[float] = field(default_factory=list)

    def take(self, place: Place, seconds: float) -> None:
        """Measure once more."""
        descriptions, searches = place.requests()
        loads = [(descriptions, Load(DESCRIBERS, seconds)), (searches, Load(SEARCHERS, seconds))]
        described, searched = drive_together(place.server.address, loads)
        self.described.append(described)
        self.searched.append(searched)


def measure_neighbours(place: Place, heavy: Heavy, rounds: int, seconds: float) -> list[str]:
    """Return the lines of the table for heavy requests of one kind."""
    alone, beside, text = Rounds(), Rounds(), place.scan(heavy)
    for _ in range(rounds):
        alone.take(place, seconds)
        with scans(place.server.address, text, heavy.connections) as scanned:
            before = scanned.value
            beside.take(place, seconds)
            beside.scanned.append((scanned.value - before) / (seconds + Load().warm_up))
    with scans(place.server.address, text, heavy.connections) as scanned:
        before = scanned.value
        threading.Event().wait(seconds)
        unshared = (scanned.value - before) / seconds
    lines = []
    for name in ("described", "searched"):
        first, second = getattr(alone, name), getattr(beside, name)
        ratio = median(one.p99 for one in second) / median(one.p99 for one in first)
        met = "yes" if ratio <= GOAL else "**no**"
        lines.append(f"| {name}, beside {heavy.name} | {words(first)} | {words(second)} | {ratio:.1f} | {met} |")
    share = median(beside.scanned) / unshared
    lines.append(f"| {heavy.name} | {unshared / 1e6:,.3g} MB/s | | {share:.2f} of their bytes alone | |")
    return lines


def open_crowd(address: Address, text: bytes, size: int, tls: ssl.SSLContext | None = None) -> list[socket.socket]:
    """Open connections that have had one response each. Raises RuntimeError where a response is no success."""
    crowd = []
    for _ in range(size):
        connection = socket.create_connection((address.host, address.port))
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address.host)
        connection.sendall(text)
        if not connection.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("A connection of the crowd was refused.")
        crowd.append(connection)
    return crowd


def measure_crowd(server: Server, text: bytes, tls: ssl.SSLContext | None = None) -> str:
    """Return the line of the table."""
    warm = open_crowd(server.address, text, WARM_CONNECTIONS, tls)
    before = server.total_memory()
    crowd = open_crowd(server.address, text, CROWD, tls)
    each = (server.total_memory() - before) / CROWD
    for connection in (*warm, *crowd):
        connection.close()
    met = "yes" if each <= GOAL_BYTES else "**no**"
    return f"| {CROWD:,} idle connections{', TLS' if tls else ''} | {each / 1024:.1f} KB each | | ≤ 20 KB | {met} |"


def measure_encrypted_crowd(folder: Path) -> str:
    """Return the line of the table for a server with a certificate, which is open to all."""
    files, root = loopback_certificate(folder), folder / "encrypted"
    root.mkdir()
    further = [f"--tls-certificate={files.certificate}", f"--tls-key={files.key}"]
    server = tiltyard(root, folder / "encrypted.log", 1, further=further)
    try:
        tls = ssl.create_default_context(cafile=str(files.certificate))
        return measure_crowd(server, request("GET", "/v1/namespace/%24/list"), tls)
    finally:
        server.stop()


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the scanned table [default: 500,000]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round [default: 8]")
    parser.add_argument("--workers", type=int, default=1, help="processes of the server [default: 1]")
    parser.add_argument("--set", nargs="*", default=[], metavar="FLAG", help="further flags of the server, without --")
    parser.add_argument("--only", choices=("neighbours", "crowd"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        with open_store(Settings(root=str(root)).database_url) as store:
            keys = {
                name: create_key(store, wall_clock, name, NewKeyOptions(), administrator=name == "owner").text
                for name in ("owner", *PRINCIPALS)
            }
            for name in PRINCIPALS:
                store.grant(f"principal:{name}", "server", 0, 2, "bench")
        further = ["--auth", *(f"--{flag}" for flag in arguments.set)]
        server = tiltyard(root, Path(folder) / "log", arguments.workers, further=further)
        try:
            place = Place(server, keys, arguments.rows)
            place.fill()
            print("| what | alone | beside | ratio of p99 | ≤ 3 |\n|---|---|---|---|---|")
            if arguments.only != "crowd":
                for heavy in (READS, FILTERS):
                    print("\n".join(measure_neighbours(place, heavy, arguments.rounds, arguments.seconds)), flush=True)
            if arguments.only != "neighbours":
                raise_descriptor_limit()
                print(measure_crowd(server, next(place.requests()[0])), flush=True)
        finally:
            server.stop()
        if arguments.only != "neighbours":
            print(measure_encrypted_crowd(Path(folder)))


if __name__ == "__main__":
    main()
