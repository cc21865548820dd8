"""Searches by vector beside what users would pick instead: `python -m bench.vectors`.

Vectors in overlapping clusters, most of whose variance lies in a few dimensions, as that of embeddings does. Tiltyard
answers over HTTP, by the index of Lance and by its index in memory, in a process each; Chroma's HTTP server has the
same vectors. Sides take turns under the same load: one generator process and prepared requests. Recall is the share of
the ten nearest rows, found by comparing all of them, that responses have. FAISS (HNSW) and pylance run in one process,
which is the limit: their queries are Python threads.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import lance
import numpy as np
import pyarrow as pa
from tests.conformance import lance_spark

from bench.embedded import together
from bench.load import Address, Load
from bench.rounds import Side
from bench.servers import Server, tiltyard
from bench.wire import ARROW, call, call_json, of_table, post, stream

CALLERS = (1, 8, 32)
SHARES = (0.5, 0.1, 0.01, 0.001)
NEAREST = 10
QUERIES = 300
CHECKED = 100
CLUSTERS = 2_000
SPREAD = 0.7
TABLE = "vectors"
REQUIREMENTS = Path(__file__).with_name("chroma.txt")
CHROMA = Path(sys.prefix) / "chroma"
CHROMA_BATCH = 5_000
READY_SECONDS = 900.0
COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"

Matrix = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows, each with a rank that filters select by, and queries. Shapes: (rows, dimension), (rows,), (QUERIES, …)."""

    rows: Matrix
    ranks: np.ndarray[Any, np.dtype[np.int64]]
    queries: Matrix
    _nearest: dict[float, list[set[int]]] = field(default_factory=dict)

    @classmethod
    def make(cls, rows: int, dimension: int) -> Vectors:
        """Make them, the same ones each time."""
        rng = np.random.default_rng(2)
        scale = ((1 + np.arange(dimension)) ** -0.5).astype(np.float32)
        centers = rng.normal(size=(CLUSTERS, dimension)).astype(np.float32)

        def members(count: int) -> Matrix:
            noise = rng.standard_normal((count, dimension), dtype=np.float32)
            return ((centers[rng.integers(0, CLUSTERS, count)] + np.float32(SPREAD) * noise) * scale).astype(np.float32)

        values = members(rows)
        return cls(values, rng.permutation(rows), members(QUERIES))

    def table(self) -> pa.Table:
        """Return the rows as a table of id, rank and vec."""
        values = pa.FixedSizeListArray.from_arrays(pa.array(self.rows.ravel()), self.rows.shape[1])
        return pa.table({"id": pa.array(range(len(self.rows))), "rank": pa.array(self.ranks), "vec": values})

    def limit(self, share: float) -> int:
        """Return the rank below which a share of the rows is."""
        return int(len(self.rows) * share)

    def nearest(self, share: float) -> list[set[int]]:
        """Return the ids of the rows that are nearest to the first queries, among a share of the rows."""
        if share in self._nearest:
            return self._nearest[share]
        allowed = np.flatnonzero(self.ranks < self.limit(share))
        values = self.rows[allowed]
        squares = (values**2).sum(axis=1)
        best = (np.argpartition(squares - 2 * values @ query, NEAREST)[:NEAREST] for query in self.queries[:CHECKED])
        self._nearest[share] = [set(allowed[rows].tolist()) for rows in best]
        return self._nearest[share]


class Subject:
    """A server with the vectors, and how it is asked."""

    name: str
    server: Server

    def request(self, query: Matrix, limit: int | None) -> bytes:
        """Return the request for the nearest rows, of those whose rank is below a limit."""
        raise NotImplementedError

    def ids(self, query: Matrix, limit: int | None) -> list[int]:
        """Return the ids that the server finds."""
        raise NotImplementedError


class Tiltyard(Subject):
    """Our server; `request` leaves the effort of the search open, as a client does that names none."""

    def __init__(self, name: str, root: Path, log: Path, memory: int) -> None:
        self.name = name
        environ = {"TILTYARD_VECTOR_CACHE_BYTES": str(memory), "TILTYARD_UPKEEP": "false"}
        self.server = tiltyard(root, log, 1, environ=environ)

    def body(self, query: Matrix, limit: int | None) -> dict[str, Any]:
        """Return the body of a query."""
        body = {"vector": {"single_vector": query.tolist()}, "vector_column": "vec", "k": NEAREST}
        body["columns"] = {"column_names": ["id"]}
        return body if limit is None else {**body, "filter": f"rank < {limit}"}

    def request(self, query: Matrix, limit: int | None) -> bytes:
        return post(of_table(TABLE, "query"), self.body(query, limit))

    def ids(self, query: Matrix, limit: int | None) -> list[int]:
        body = json.dumps(self.body(query, limit)).encode()
        response = call(self.server.address, "POST", of_table(TABLE, "query"), body)
        ids: list[int] = pa.ipc.open_file(io.BytesIO(response)).read_all().column("id").to_pylist()
        return ids

    def wait_for_memory(self, vectors: Vectors) -> float:
        """Search until the index in memory answers; return the seconds. Raises RuntimeError after READY_SECONDS."""
        began = time.monotonic()
        while time.monotonic() < began + READY_SECONDS:
            self.ids(vectors.queries[0], None)
            plan = call_json(
                self.server.address, of_table(TABLE, "explain_plan"), {"query": self.body(vectors.queries[0], None)}
            )
            if "index in memory" in plan:
                return time.monotonic() - began
            time.sleep(0.5)
        raise RuntimeError("The index in memory is not built.")


class ChromaServer(Server):
    """Chroma's server, whose log does not say its address: the port is chosen here."""

    def __init__(self, folder: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        command = ["bench.chroma", "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(self._port)]
        super().__init__("Chroma", command, log, environ={"PYTHONPATH": str(CHROMA / "python")})

    def _wait(self) -> Address:
        address = Address("127.0.0.1", self._port)
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                call(address, "GET", "/api/v2/heartbeat")
            except OSError:
                time.sleep(0.1)
            else:
                return address
        self.stop()
        raise RuntimeError(f"Chroma did not start:\n{self._log.read_text(errors='replace')}")


class Chroma(Subject):
    """Chroma over HTTP, by requests as its client sends them."""

    name = "Chroma"

    def __init__(self, folder: Path, log: Path, search_width: int) -> None:
        """`search_width` is its `ef_search`."""
        lance_spark.prepare(CHROMA, REQUIREMENTS)
        self.server = ChromaServer(folder, log)
        configuration = {"hnsw": {"space": "l2", "ef_search": search_width}}
        created = call_json(self.server.address, COLLECTIONS, {"name": TABLE, "configuration": configuration})
        self._path = f"{COLLECTIONS}/{created['id']}"

    def add(self, vectors: Vectors) -> None:
        """Send all rows."""
        for start in range(0, len(vectors.rows), CHROMA_BATCH):
            rows = range(start, min(start + CHROMA_BATCH, len(vectors.rows)))
            body = {
                "ids": [str(row) for row in rows],
                "embeddings": vectors.rows[rows.start : rows.stop].tolist(),
                "metadatas": [{"rank": int(vectors.ranks[row])} for row in rows],
            }
            call_json(self.server.address, f"{self._path}/add", body)

    def body(self, query: Matrix, limit: int | None) -> dict[str, Any]:
        """Return the body of a query."""
        body = {"query_embeddings": [query.tolist()], "n_results": NEAREST, "include": ["distances"]}
        return body if limit is None else {**body, "where": {"rank": {"$lt": limit}}}

    def request(self, query: Matrix, limit: int | None) -> bytes:
        return post(f"{self._path}/query", self.body(query, limit))

    def ids(self, query: Matrix, limit: int | None) -> list[int]:
        response = call_json(self.server.address, f"{self._path}/query", self.body(query, limit))
        return [int(text) for text in response["ids"][0]]


def recall(ids: Callable[[Matrix, int | None], Sequence[int]], vectors: Vectors, share: float) -> float:
    """Return the share of the nearest rows that responses to the first queries have."""
    limit = None if share == 1 else vectors.limit(share)
    pairs = zip(vectors.queries, vectors.nearest(share), strict=False)
    return sum(len(expected & set(ids(query, limit))) for query, expected in pairs) / (NEAREST * CHECKED)


def measure(
    subjects: Sequence[Subject], vectors: Vectors, share: float, callers: int, arguments: argparse.Namespace
) -> Iterator[str]:
    """Yield the lines of the table for one load: the last of the subjects is what the others are compared with."""
    limit = None if share == 1 else vectors.limit(share)
    sides = [Side(subject.server) for subject in subjects]
    load = Load(callers, arguments.seconds)
    for _ in range(arguments.rounds):
        for side, subject in zip(sides, subjects, strict=True):
            requests = [subject.request(query, limit) for query in vectors.queries]
            side.take(lambda requests=requests: cycle(requests), load)  # type: ignore[misc]
    for side, subject in zip(sides, subjects, strict=True):
        found = recall(subject.ids, vectors, share)
        spread = median(one.p99 / one.p50 for one in side.rounds)
        what = "all" if share == 1 else f"{share:.1%}"
        ratio = f"{side.rate / sides[-1].rate:.2f}x" if len(sides) > 1 else ""
        yield f"| {what} | {callers} | {subject.name} | {side.words()} | {found:.3f} | {spread:.1f} | {ratio} |"


def _limits(folder: str, rows: int, dimension: int, callers: int, seconds: float, kind: str, answer: Any) -> None:
    """Search in this process by threads, and send the rate and the recall."""
    vectors = Vectors.make(rows, dimension)
    ids = _faiss_search(vectors) if kind == "FAISS HNSW" else _pylance_search(folder)
    rate = together(lambda turn: ids(vectors.queries[turn % QUERIES], None), callers, seconds, 0.5)
    answer.send((rate, recall(ids, vectors, 1)))


def _faiss_search(vectors: Vectors) -> Callable[[Matrix, int | None], list[int]]:
    index = faiss.IndexHNSWFlat(vectors.rows.shape[1], 16)
    index.hnsw.efConstruction = 80
    index.add(vectors.rows)
    parameters = faiss.SearchParametersHNSW(efSearch=128)

    def search(query: Matrix, _: int | None) -> list[int]:
        faiss.omp_set_num_threads(1)
        ids: list[int] = index.search(query[None], NEAREST, params=parameters)[1][0].tolist()
        return ids

    return search


def _pylance_search(folder: str) -> Callable[[Matrix, int | None], list[int]]:
    (location,) = Path(folder).glob(f"{TABLE}-*.lance")
    dataset = lance.dataset(str(location))

    def search(query: Matrix, _: int | None) -> list[int]:
        nearest = {"column": "vec", "q": query, "k": NEAREST, "nprobes": 40, "refine_factor": 20}
        scanner = dataset.scanner(columns=["id"], nearest=nearest, disable_scoring_autoprojection=True)
        ids: list[int] = scanner.to_table().column("id").to_pylist()
        return ids

    return search


def limits(folder: Path, arguments: argparse.Namespace, kind: str) -> Iterator[str]:
    """Yield the lines of searches in one process."""
    spawn = multiprocessing.get_context("spawn")
    for callers in CALLERS:
        receiver, sender = spawn.Pipe(duplex=False)
        values = str(folder), arguments.rows, arguments.dimension, callers, arguments.seconds, kind, sender
        process = spawn.Process(target=_limits, args=values)
        process.start()
        sender.close()
        rate, found = receiver.recv()
        process.join()
        yield f"| all | {callers} | {kind} in one process | {rate:,.0f}/s | {found:.3f} | | |"


def fill(subject: Tiltyard, vectors: Vectors, index_type: str) -> None:
    """Create the table and its indexes, and wait for them."""
    address = subject.server.address
    call(address, "POST", of_table(TABLE, "create"), stream(vectors.table()), ARROW)
    partitions = int(len(vectors.rows) ** 0.5)
    vector = {"column": "vec", "index_type": index_type, "distance_type": "l2", "num_partitions": partitions}
    call_json(address, of_table(TABLE, "create_scalar_index"), {"column": "rank", "index_type": "BTREE"})
    call_json(address, of_table(TABLE, "create_index"), vector)
    while len(call_json(address, of_table(TABLE, "index/list"))["indexes"]) < len(("rank", "vec")):
        time.sleep(0.5)


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.vectors", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="[default: 300,000]")
    parser.add_argument("--dimension", type=int, default=256, help="[default: 256]")
    parser.add_argument("--index", default="IVF_PQ", help="Lance's index [default: IVF_PQ]")
    parser.add_argument("--memory", type=int, default=2 << 30, help="vector_cache_bytes [default: 2 GiB]")
    parser.add_argument("--search-width", type=int, default=100, help="ef_search of Chroma [default: 100, its own]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: 3]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round [default: 4]")
    parser.add_argument("--only", choices=("callers", "filters", "limits"), help="part of the table")
    parser.add_argument("--without-chroma", action="store_true", help="measure our own sides alone")
    arguments = parser.parse_args()
    vectors = Vectors.make(arguments.rows, arguments.dimension)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        subjects = start(folder, vectors, arguments, stack)
        print("| filter | callers | side | | recall | p99 / p50 | ratio |\n|---|---|---|---|---|---|---|")
        loads = [(1.0, callers) for callers in CALLERS if arguments.only in (None, "callers")]
        loads += [(share, 8) for share in SHARES if arguments.only in (None, "filters")]
        for share, callers in loads:
            for line in measure(subjects, vectors, share, callers, arguments):
                print(line, flush=True)
        stack.pop_all().close()
        for kind in ("pylance", "FAISS HNSW") if arguments.only in (None, "limits") else ():
            for line in limits(folder / "root", arguments, kind):
                print(line, flush=True)


def start(folder: Path, vectors: Vectors, arguments: argparse.Namespace, stack: ExitStack) -> list[Subject]:
    """Start all servers with the vectors in them."""
    root = folder / "root"
    root.mkdir()
    lance_index = Tiltyard(f"Tiltyard, {arguments.index}", root, folder / "tiltyard.log", 0)
    stack.callback(lance_index.server.stop)
    fill(lance_index, vectors, arguments.index)
    memory = Tiltyard("Tiltyard, in memory", root, folder / "memory.log", arguments.memory)
    stack.callback(memory.server.stop)
    subjects: list[Subject] = [lance_index, memory]
    print(f"index in memory after {memory.wait_for_memory(vectors):.0f} s", flush=True)
    if not arguments.without_chroma:
        began = time.monotonic()
        chroma = Chroma(folder / "chroma", folder / "chroma.log", arguments.search_width)
        stack.callback(chroma.server.stop)
        chroma.add(vectors)
        print(f"Chroma filled after {time.monotonic() - began:.0f} s", flush=True)
        subjects.append(chroma)
    for subject in subjects:
        memory_size = subject.server.memory() / (1 << 20)
        print(f"{subject.name}: {memory_size:,.0f} MiB", flush=True)
    return subjects


if __name__ == "__main__":
    main()
