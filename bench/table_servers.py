"""Servers that share out tables, beside servers that do not: `python -m bench.table_servers`.

Each group of servers has one PostgreSQL and one folder, and 24 tables of vectors with an index. A balancer spreads 16
connections over the servers, which search all tables in turn, until nothing more comes into the servers' memory; then
rounds are counted. All run on the same processors, so rates cannot grow with servers: what counts is what a server
keeps and what a query costs. At last one of four servers is killed in the middle of a round, which goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.services.ports import reserve_two_ports
from tests.services.postgres import postgres_server

from bench.load import Load, drive, words
from bench.replicas import balancer
from bench.servers import Server, tiltyard
from bench.wire import ARROW, call, call_json, of_table, post, stream

TABLES = 24
DIMENSION = 128
CONNECTIONS = 16
WARM_SECONDS = 600.0
QUERIES = 200
HOST = "127.0.0.1"
SEED = 7


@contextmanager
def servers(number: int, folder: Path, database: str, *, is_shared: bool) -> Iterator[list[Server]]:
    """Start servers on one catalog, which share out tables or not."""
    with ExitStack() as stack:
        started = []
        for place in range(number):
            port, reserved = reserve_two_ports(HOST)
            own = folder / f"machine{place}"
            own.mkdir(parents=True)
            environ = {"TMPDIR": str(own), "TILTYARD_VECTOR_CACHE_BYTES": str(2 << 30)}
            if is_shared:
                environ["TILTYARD_SERVER_URL"] = f"http://{HOST}:{port}"
            flags = ["--port", str(port)]
            server = tiltyard(folder / "root", folder / f"log{place}", 1, database, further=flags, environ=environ)
            stack.callback(server.stop)
            for each in reserved:
                stack.callback(each.close)
            started.append(server)
        yield started


def fill(server: Server, rows: int) -> None:
    """Create the tables with their indexes, and wait for them."""
    generator = np.random.default_rng(SEED)
    for number in range(TABLES):
        values = generator.standard_normal((rows, DIMENSION), dtype=np.float32).reshape(-1)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), DIMENSION)
        table = pa.table({"id": pa.array(range(rows), pa.int64()), "vector": vectors})
        name = f"t{number}"
        call(server.address, "POST", of_table(name, "create"), stream(table), ARROW)
        index = {"column": "vector", "index_type": "IVF_FLAT", "distance_type": "l2", "num_partitions": 64}
        call_json(server.address, of_table(name, "create_index"), index)
        while any(
            each["status"] != "done" for each in call_json(server.address, of_table(name, "index/list"))["indexes"]
        ):
            time.sleep(0.2)


def searches() -> list[tuple[str, dict[str, object]]]:
    """Return searches of all tables in turn."""
    vectors = np.random.default_rng(SEED + 1).standard_normal((QUERIES, DIMENSION), dtype=np.float32)
    return [
        (
            f"t{number % TABLES}",
            {"vector": {"single_vector": vector.tolist()}, "k": 10, "columns": {"column_names": ["id"]}},
        )
        for number, vector in enumerate(vectors)
    ]


def kept_bytes(server: Server) -> int:
    """Return the bytes of vectors that a server keeps in memory."""
    text = call(server.address, "GET", "/metrics").decode()
    [value] = re.findall(r'kind="bytes of vectors in memory"\} (\S+)', text) or re.findall(
        r"bytes of vectors in memory\S* (\S+)", text
    )
    return int(float(value))


def warm(group: list[Server], front: Server, requests: list[bytes]) -> None:
    """Search until no server takes more vectors into its memory. Raises RuntimeError if that takes too long."""
    until, before, same = time.monotonic() + WARM_SECONDS, [-1], 0
    while same < 3:
        if time.monotonic() > until:
            raise RuntimeError(f"The servers' memory did not settle: {before}")
        drive(front.address, cycle(requests), Load(CONNECTIONS, 2.0))
        now = [kept_bytes(server) for server in group]
        same = same + 1 if now == before and any(now) else 0
        before = now


def answers(server: Server, found: list[tuple[str, dict[str, object]]]) -> list[bytes]:
    """Return what a server answers to searches, to the byte."""
    return [call(server.address, "POST", of_table(name, "query"), json.dumps(body).encode()) for name, body in found]


def measure(group: list[Server], folder: Path, seconds: float, rounds: int) -> tuple[str, list[list[bytes]]]:
    """Return the cells of the table, and the answers of each server."""
    asked = searches()
    requests = [post(of_table(name, "query"), body) for name, body in asked]
    with balancer(group, folder) as front:
        warm(group, front, requests)
        before = sum(server.cpu_seconds() for server in group)
        measured = [drive(front.address, cycle(requests), Load(CONNECTIONS, seconds)) for _ in range(rounds)]
        cost = (sum(server.cpu_seconds() for server in group) - before) / sum(each.succeeded for each in measured)
    kept = [kept_bytes(server) / 1e6 for server in group]
    resident = [server.memory() / 1e6 for server in group]
    memory = f"{max(kept):,.0f} MB | {sum(kept):,.0f} MB | {max(resident):,.0f} MB"
    return f"{memory} | {words(measured)} | {cost * 1e6:,.0f} µs", [answers(server, asked[:40]) for server in group]


def measure_death(group: list[Server], folder: Path, seconds: float) -> Iterator[str]:
    """Yield lines: kill a server in the middle of a round, whose connections go to another one."""
    requests = [post(of_table(name, "query"), body) for name, body in searches()]
    victim, others = group[-1], group[:-1]
    with balancer(others, folder) as front:  # the dead server gets forwarded queries alone
        timer = threading.Timer(seconds / 2, victim.kill)
        timer.start()
        measured = drive(front.address, cycle(requests), Load(CONNECTIONS, seconds))
        timer.join()
    yield f"| a server that keeps tables is killed | {words([measured])}, longest {measured.longest * 1e3:.0f} ms |"
    yield f"| failed queries | {measured.failed} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.table_servers", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="of each table [default: 10,000]")
    parser.add_argument("--rounds", type=int, default=2, help="[default: 2]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    arguments = parser.parse_args()
    print(
        "| servers | shared out | kept by a server, at most | by all | resident, at most | searches | processor time |"
    )
    print("|---|---|---|---|---|---|---|")
    with postgres_server() as cluster, tempfile.TemporaryDirectory() as name:
        expected: list[bytes] = []
        lines: list[str] = []
        for number, is_shared in ((1, False), (2, False), (4, False), (4, True)):
            folder = Path(name) / f"{number}-{is_shared}"
            with servers(number, folder, cluster.new_database(), is_shared=is_shared) as group:
                fill(group[0], arguments.rows)
                cells, found = measure(group, folder, arguments.seconds, arguments.rounds)
                expected = expected or found[0]
                same = all(each == expected for each in found)
                print(
                    f"| {number} | {'yes' if is_shared else 'no'} | {cells}{'' if same else ', **answers differ**'} |",
                    flush=True,
                )
                if is_shared:
                    lines += measure_death(group, folder, 2 * arguments.seconds)
        print("\n| one of four servers that share out tables is killed | |\n|---|---|", *lines, sep="\n")


if __name__ == "__main__":
    main()
