"""Servers that share out tables, beside servers that do not: `python -m bench.table_servers`.

Each group of servers has one PostgreSQL and one folder, and 24 tables of vectors with an index. A balancer spreads 16
connections over the servers, which search all tables in turn, until nothing more comes into the servers' memory; then
rounds are counted. All run on the same processors, so rates cannot grow with servers: what counts is what a server
keeps and what a query costs. At last one of four servers is killed in the middle of a round, which goes on.

With `--large`, one table whose index has eight segments instead, which the servers search together: what each keeps of
it and reads, what a search costs, and whether answers are those of one server.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from shutil import copytree

import lance
import numpy as np
import psycopg
import pyarrow as pa
from lance.indices import IndicesBuilder
from tests.services.ports import reserve_two_ports
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.segments import owned_in_turn

from bench.load import Load, drive, words
from bench.replicas import balancer
from bench.servers import Server, tiltyard
from bench.wire import ARROW, call, call_json, of_table, post, stream

TABLES = 24
DIMENSION = 128
CONNECTIONS = 16
WARM_SECONDS = 600.0
QUERIES = 200
SEGMENTS = 8
LARGE = "large"
EXPLAIN = json.dumps({"query": {"k": 10, "vector": {"single_vector": [0.5] * DIMENSION}}}).encode()
HOST = "127.0.0.1"
SEED = 7


@contextmanager
def servers(
    number: int, folder: Path, database: str, *, is_shared: bool, settings: Mapping[str, str] | None = None
) -> Iterator[list[Server]]:
    """Start servers on one catalog, which share out tables or not; `settings` are further variables."""
    with ExitStack() as stack:
        started = []
        for place in range(number):
            port, reserved = reserve_two_ports(HOST)
            own = folder / f"machine{place}"
            own.mkdir(parents=True)
            environ = {"TMPDIR": str(own), "TILTYARD_VECTOR_CACHE_BYTES": str(2 << 30), **(settings or {})}
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


def kept_bytes(server: Server, what: str = "vectors") -> int:
    """Return the bytes of vectors, or of Lance's pages, that a server keeps in memory."""
    text = call(server.address, "GET", "/metrics").decode()
    [value] = re.findall(rf"bytes of {what} in memory\S* (\S+)", text)
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


def write_large(folder: Path, rows: int) -> dict[str, object]:
    """Write a table of vectors in clusters; return the model of its index."""
    generator = np.random.default_rng(SEED)
    centers = generator.standard_normal((512, DIMENSION), dtype=np.float32)
    values = centers[generator.integers(512, size=rows)]
    values += 0.5 * generator.standard_normal((rows, DIMENSION), dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIMENSION)
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "vector": vectors})
    dataset = lance.write_dataset(table, str(folder / f"{LARGE}.lance"), max_rows_per_file=rows // SEGMENTS)
    builder = IndicesBuilder(dataset, "vector")
    ivf = builder.train_ivf(num_partitions=256)
    codebook = builder.train_pq(ivf, num_subvectors=DIMENSION // 8).codebook
    return {
        "num_partitions": 256,
        "num_sub_vectors": DIMENSION // 8,
        "ivf_centroids": ivf.centroids,
        "pq_codebook": codebook,
    }


def index_large(group: list[Server], root: Path, database: str, model: dict[str, object]) -> None:
    """Register the table, and build its index, of whose segments each server has as many; wait until all are known."""
    call_json(group[0].address, of_table(LARGE, "register"), {"location": f"{LARGE}.lance"})
    with psycopg.connect(database) as connection:
        [[table_id]] = connection.execute(b"SELECT id FROM tables WHERE name = 'large'").fetchall()
    owners = owned_in_turn(table_id, [f"http://{HOST}:{server.address.port}" for server in group])
    dataset = lance.dataset(str(root / f"{LARGE}.lance"))
    segments = [
        dataset.create_index_uncommitted(
            "vector", "IVF_PQ", name="near", fragment_ids=[each.fragment_id], index_uuid=next(owners), **model
        )
        for each in dataset.get_fragments()
    ]
    dataset.commit_existing_index_segments("near", "vector", segments)
    known = f"{len(group)} servers search" if len(group) > 1 else "Not spread_search: no other server"
    for server in group:
        while known not in call(server.address, "POST", of_table(LARGE, "explain_plan"), EXPLAIN).decode():
            time.sleep(0.5)


def measure_large(group: list[Server], folder: Path, seconds: float, rounds: int) -> tuple[str, list[list[bytes]]]:
    """Return the cells of the table, and the answers of each server."""
    asked = [(LARGE, body) for _, body in searches()]
    earlier = [server.read_bytes() for server in group]
    requests = [post(of_table(name, "query"), body) for name, body in asked]
    found = [answers(server, asked[:40]) for server in group]
    with balancer(group, folder) as front:
        drive(front.address, cycle(requests), Load(CONNECTIONS, seconds))
        read = [server.read_bytes() - before for server, before in zip(group, earlier, strict=True)]
        before = sum(server.cpu_seconds() for server in group)
        measured = [drive(front.address, cycle(requests), Load(CONNECTIONS, seconds)) for _ in range(rounds)]
        cost = (sum(server.cpu_seconds() for server in group) - before) / sum(each.succeeded for each in measured)
    kept = [kept_bytes(server, "Lance's pages") / 1e6 for server in group]
    sizes = f"{max(kept):,.1f} MB | {sum(kept):,.1f} MB | {max(read) / 1e6:,.0f} MB"
    return f"{sizes} | {words(measured)} | {cost * 1e6:,.0f} µs", found


def run_large(cluster: PostgresServer, folder: Path, rows: int, seconds: float, rounds: int) -> None:
    """Print the table of one large table, searched by one server and by several together."""
    print("| servers | Lance keeps on a server, most | on all | a server reads, most | searches | processor time |")
    print("|---|---|---|---|---|---|")
    settings = {"TILTYARD_VECTOR_CACHE_BYTES": "0", "TILTYARD_SPREAD_SEARCH_ROWS": "1"}
    model, expected = write_large(folder, rows), list[bytes]()
    for number in (1, 2, 4):
        own, database = folder / f"{number}", cluster.new_database()
        copytree(folder / f"{LARGE}.lance", own / "root" / f"{LARGE}.lance")
        with servers(number, own, database, is_shared=True, settings=settings) as group:
            index_large(group, own / "root", database, model)
            cells, found = measure_large(group, own, seconds, rounds)
            expected = expected or found[0]
            same = all(each == expected for each in found)
            print(f"| {number} | {cells}{'' if same else ', **answers differ**'} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.table_servers", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="of each table [default: 10,000]")
    parser.add_argument("--rounds", type=int, default=2, help="[default: 2]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    parser.add_argument("--large", type=int, default=0, help="rows of one table that is searched by all together")
    arguments = parser.parse_args()
    if arguments.large:
        with postgres_server() as cluster, tempfile.TemporaryDirectory() as name:
            run_large(cluster, Path(name), arguments.large, arguments.seconds, arguments.rounds)
        return
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
