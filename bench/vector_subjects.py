"""The vectors of `python -m bench.vectors`, and the servers that have them: Tiltyard's and Chroma's."""

from __future__ import annotations

import io
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.conformance.packages import install

from bench.load import Address
from bench.servers import Server, tiltyard
from bench.wire import ARROW, call, call_json, of_table, post, stream

NEAREST = 10
QUERIES = 300
CHECKED = 100
"""Queries whose recall is checked."""
CLUSTERS = 2_000
SPREAD = 0.7
CHUNK_ROWS = 65_536
TABLE = "vectors"
REQUIREMENTS = Path(__file__).with_name("chroma.txt")
CHROMA = Path(sys.prefix) / "chroma"
CHROMA_BATCH = 1_000_000
"""Numbers of the vectors in one request: its server breaks the connection on one with 4 million."""
READY_SECONDS = 3_600.0
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Of both servers, as docs/vector-cache.md recommends it."""
COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"

Matrix = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Below:
    """A filter: the rows with the lowest values of a column, `limit` of those that stand from the beginning."""

    column: str
    limit: int


FILTERS = {"rank": "at random", "place": "along the vectors"}
"""Columns that filters select by, and how the rows that they leave lie."""


def describe(below: Below | None, rows: int) -> str:
    """Return which of so many rows a filter leaves."""
    return "all" if below is None else f"{below.limit / rows:.1%}, {FILTERS[below.column]}"


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows, each with numbers that filters select by, and queries. Shapes: (rows, dimension), (rows,), (QUERIES, …).

    `ranks` are random; `places` are those of the rows by the first number of their vectors, so that a filter by these
    goes with the vectors: it leaves no row that is near to most of the queries.

    The first `standing` rows are there from the beginning, the others are written while searches are measured.
    """

    rows: Matrix
    ranks: np.ndarray[Any, np.dtype[np.int64]]
    places: np.ndarray[Any, np.dtype[np.int64]]
    queries: Matrix
    standing: int
    _nearest: dict[tuple[Below | None, int], list[set[int]]] = field(default_factory=dict)

    @classmethod
    def make(cls, rows: int, dimension: int, written: int = 0) -> Vectors:
        """Make them, the same ones each time."""
        rng = np.random.default_rng(2)
        scale = ((1 + np.arange(dimension)) ** -0.5).astype(np.float32)
        centers = rng.normal(size=(CLUSTERS, dimension)).astype(np.float32)

        values = np.empty((rows + written, dimension), np.float32)
        queries = np.empty((QUERIES, dimension), np.float32)

        def fill(members: Matrix) -> None:
            """Fill an array with members of clusters, in place: all vectors may be half of the memory."""
            rng.standard_normal(out=members, dtype=np.float32)
            chosen = rng.integers(0, CLUSTERS, len(members))
            members *= np.float32(SPREAD)
            for start in range(0, len(members), CHUNK_ROWS):
                members[start : start + CHUNK_ROWS] += centers[chosen[start : start + CHUNK_ROWS]]
            members *= scale

        fill(values[:rows])
        fill(queries)
        ranks = np.concatenate([rng.permutation(rows), np.arange(rows, rows + written)])
        fill(values[rows:])
        places = np.concatenate([values[:rows, 0].argsort().argsort(), np.arange(rows, rows + written)])
        return cls(values, ranks, places, queries, rows)

    def table(self, rows: range) -> pa.Table:
        """Return some of the rows as a table of id, rank, place and vec."""
        part = slice(rows.start, rows.stop)
        values = pa.FixedSizeListArray.from_arrays(pa.array(self.rows[part].ravel()), self.rows.shape[1])
        numbers = {"rank": pa.array(self.ranks[part]), "place": pa.array(self.places[part])}
        return pa.table({"id": pa.array(rows), **numbers, "vec": values})

    def limit(self, share: float) -> int:
        """Return the rank below which a share of the standing rows is."""
        return int(self.standing * share)

    def nearest(self, below: Below | None = None, written: int = 0) -> list[set[int]]:
        """Return the ids of the rows nearest to the first queries: of those of a filter, or of all, the written too."""
        key = below, written
        if key in self._nearest:
            return self._nearest[key]
        if below is None:
            allowed = np.arange(self.standing + written)
        else:
            allowed = np.flatnonzero((self.ranks if below.column == "rank" else self.places) < below.limit)
        queries = self.queries[:CHECKED]
        best = np.full((len(queries), 0), 0), np.full((len(queries), 0), np.float32(0))
        for start in range(0, len(allowed), CHUNK_ROWS):
            rows = allowed[start : start + CHUNK_ROWS]
            values = self.rows[rows]
            distances = np.einsum("ij,ij->i", values, values) - 2 * queries @ values.T
            numbers = np.broadcast_to(rows, distances.shape)
            numbers, distances = np.hstack([best[0], numbers]), np.hstack([best[1], distances])
            places = np.argpartition(distances, NEAREST)[:, :NEAREST]
            best = np.take_along_axis(numbers, places, 1), np.take_along_axis(distances, places, 1)
        self._nearest[key] = [set(numbers.tolist()) for numbers in best[0]]
        return self._nearest[key]


class Subject:
    """A server with the vectors, and how it is asked."""

    name: str
    server: Server

    def request(self, query: Matrix, below: Below | None) -> bytes:
        """Return the request for the nearest rows, of those that a filter selects."""
        raise NotImplementedError

    def ids(self, query: Matrix, below: Below | None) -> list[int]:
        """Return the ids that the server finds."""
        raise NotImplementedError

    def insert(self, vectors: Vectors, rows: range) -> None:
        """Add rows, whose ids are their places."""
        raise NotImplementedError


class Tiltyard(Subject):
    """Our server; `request` leaves the effort of the search open, as a client does that names none."""

    def __init__(self, name: str, root: Path, log: Path, memory: str) -> None:
        self.name = name
        environ = {"TILTYARD_VECTOR_CACHE_BYTES": memory, "TILTYARD_UPKEEP": "false", **HUGE_PAGES}
        self.server = tiltyard(root, log, 1, environ=environ)

    def body(self, query: Matrix, below: Below | None) -> dict[str, Any]:
        """Return the body of a query."""
        body = {"vector": {"single_vector": query.tolist()}, "vector_column": "vec", "k": NEAREST}
        body["columns"] = {"column_names": ["id"]}
        return body if below is None else {**body, "filter": f"{below.column} < {below.limit}"}

    def request(self, query: Matrix, below: Below | None) -> bytes:
        return post(of_table(TABLE, "query"), self.body(query, below))

    def ids(self, query: Matrix, below: Below | None) -> list[int]:
        body = json.dumps(self.body(query, below)).encode()
        response = call(self.server.address, "POST", of_table(TABLE, "query"), body)
        ids: list[int] = pa.ipc.open_file(io.BytesIO(response)).read_all().column("id").to_pylist()
        return ids

    def insert(self, vectors: Vectors, rows: range) -> None:
        call(self.server.address, "POST", of_table(TABLE, "insert"), stream(vectors.table(rows)), ARROW)

    def wait_for_memory(self, vectors: Vectors) -> float:
        """Search until the index in memory answers; return the seconds. Raises RuntimeError after READY_SECONDS."""
        began = time.monotonic()
        while time.monotonic() < began + READY_SECONDS:
            self.ids(vectors.queries[0], None)
            plan = call_json(
                self.server.address, of_table(TABLE, "explain_plan"), {"query": self.body(vectors.queries[0], None)}
            )
            if "Route: index_in_memory" in plan:
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
        super().__init__("Chroma", command, log, environ={"PYTHONPATH": str(CHROMA / "python"), **HUGE_PAGES})

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
        install(CHROMA, REQUIREMENTS)
        self.server = ChromaServer(folder, log)
        configuration = {"hnsw": {"space": "l2", "ef_search": search_width}}
        wanted = {"name": TABLE, "configuration": configuration, "get_or_create": True}
        created = call_json(self.server.address, COLLECTIONS, wanted)
        self._path = f"{COLLECTIONS}/{created['id']}"

    def add(self, vectors: Vectors) -> None:
        """Send all rows that it has not got."""
        batch = CHROMA_BATCH // vectors.rows.shape[1]
        there = int(call(self.server.address, "GET", f"{self._path}/count"))
        for start in range(there, vectors.standing, batch):
            self.insert(vectors, range(start, min(start + batch, vectors.standing)))

    def insert(self, vectors: Vectors, rows: range) -> None:
        body = {
            "ids": [str(row) for row in rows],
            "embeddings": vectors.rows[rows.start : rows.stop].tolist(),
            "metadatas": [{"rank": int(vectors.ranks[row]), "place": int(vectors.places[row])} for row in rows],
        }
        call_json(self.server.address, f"{self._path}/add", body)

    def body(self, query: Matrix, below: Below | None) -> dict[str, Any]:
        """Return the body of a query."""
        body = {"query_embeddings": [query.tolist()], "n_results": NEAREST, "include": ["distances"]}
        return body if below is None else {**body, "where": {below.column: {"$lt": below.limit}}}

    def request(self, query: Matrix, below: Below | None) -> bytes:
        return post(f"{self._path}/query", self.body(query, below))

    def ids(self, query: Matrix, below: Below | None) -> list[int]:
        response = call_json(self.server.address, f"{self._path}/query", self.body(query, below))
        return [int(text) for text in response["ids"][0]]
