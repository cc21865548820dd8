"""Searches by vector in a process of its own, by Python threads: libraries without a server, and lancedb's client.

A kind opens what it searches once, and is then measured by each number of callers, or by filters. Qdrant's engine is
one of them: it answers without HTTP, so that its rates are no server's.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import lance
import lancedb
from tests.conformance.packages import install

from bench.embedded import together
from bench.vector_subjects import CHECKED, NEAREST, QUERIES, TABLE, Below, Matrix, Vectors, describe

Search = Callable[..., list[int]]
"""Returns the ids of the nearest to a query; one of Qdrant takes a filter besides."""
Asked = tuple[Below | None, int]
QDRANT_REQUIREMENTS = Path(__file__).with_name("qdrant.txt")
QDRANT = Path(sys.prefix) / "qdrant"
QDRANT_BATCH = 5_000
MILVUS_REQUIREMENTS = Path(__file__).with_name("milvus.txt")
MILVUS = Path(sys.prefix) / "milvus"
MILVUS_BATCH = 5_000
HNSW_LINKS = 16
HNSW_CONSTRUCTION = 80
LANCE_EFFORT = {"nprobes": 40, "refine_factor": 20}
"""By which Lance's IVF_PQ has a recall of .96 on the vectors of `Vectors`."""


def faiss_search(vectors: Vectors, _: str) -> Search:
    """FAISS, HNSW."""
    index = faiss.IndexHNSWFlat(vectors.rows.shape[1], HNSW_LINKS)
    index.hnsw.efConstruction = HNSW_CONSTRUCTION
    index.add(vectors.rows[: vectors.standing])
    parameters = faiss.SearchParametersHNSW(efSearch=128)

    def search(query: Matrix) -> list[int]:
        faiss.omp_set_num_threads(1)
        ids: list[int] = index.search(query[None], NEAREST, params=parameters)[1][0].tolist()
        return ids

    return search


def pylance_search(_: Vectors, root: str) -> Search:
    """Pylance on the folder of the server's table."""
    dataset = lance.dataset(str(_folder(root)))

    def search(query: Matrix) -> list[int]:
        nearest = {"column": "vec", "q": query, "k": NEAREST, **LANCE_EFFORT}
        scanner = dataset.scanner(columns=["id"], nearest=nearest, disable_scoring_autoprojection=True)
        ids: list[int] = scanner.to_table().column("id").to_pylist()
        return ids

    return search


def lancedb_search(_: Vectors, root: str) -> Search:
    """Lancedb on the folder of the server's table."""
    table = lancedb.connect(root).open_table(_folder(root).stem)

    def search(query: Matrix) -> list[int]:
        asked: Any = table.search(query).nprobes(LANCE_EFFORT["nprobes"]).refine_factor(LANCE_EFFORT["refine_factor"])
        ids: list[int] = asked.limit(NEAREST).select(["id", "_distance"]).to_arrow().column("id").to_pylist()
        return ids

    return search


def lancedb_client(_: Vectors, url: str) -> Search:
    """Lancedb's client against a server."""
    table = lancedb.connect("db://bench", api_key="none", host_override=url).open_table(TABLE)

    def search(query: Matrix) -> list[int]:
        found = table.search(query).limit(NEAREST).select(["id"]).to_arrow()
        ids: list[int] = found.column("id").to_pylist()
        return ids

    return search


def milvus_search(vectors: Vectors, _: str) -> Search:
    """Milvus Lite, HNSW, by its client."""
    sys.path.insert(0, str(MILVUS / "python"))
    from pymilvus import DataType, MilvusClient  # noqa: PLC0415  # of an environment of its own

    folder = TemporaryDirectory()
    client = MilvusClient(f"{folder.name}/milvus.db")
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("vec", DataType.FLOAT_VECTOR, dim=vectors.rows.shape[1])
    index = client.prepare_index_params()
    effort = {"M": HNSW_LINKS, "efConstruction": HNSW_CONSTRUCTION}
    index.add_index("vec", index_type="HNSW", metric_type="L2", params=effort)
    client.create_collection(TABLE, schema=schema, index_params=index)
    for start in range(0, vectors.standing, MILVUS_BATCH):
        rows = range(start, min(start + MILVUS_BATCH, vectors.standing))
        client.insert(TABLE, [{"id": row, "vec": vectors.rows[row].tolist()} for row in rows])
    client.flush(TABLE)
    client.load_collection(TABLE)

    def search(query: Matrix, _: TemporaryDirectory[str] = folder) -> list[int]:
        parameters = {"params": {"ef": 128}}
        (hits,) = client.search(TABLE, data=[query.tolist()], limit=NEAREST, search_params=parameters)
        return [hit["id"] for hit in hits]

    return search


def qdrant_search(vectors: Vectors, _: str) -> Search:
    """Qdrant's engine, HNSW as it comes, with an index of the columns that filters name."""
    sys.path.insert(0, str(QDRANT / "python"))
    import qdrant_edge as qdrant  # noqa: PLC0415  # of an environment of its own

    folder = TemporaryDirectory()
    parameters = qdrant.EdgeVectorParams(size=vectors.rows.shape[1], distance=qdrant.Distance.Euclid)
    shard = qdrant.EdgeShard.create(folder.name, qdrant.EdgeConfig(vectors=parameters))
    numbers = {"rank": vectors.ranks, "place": vectors.places}
    for column in numbers:
        shard.update(qdrant.UpdateOperation.create_field_index(column, qdrant.PayloadSchemaType.Integer))
    for start in range(0, vectors.standing, QDRANT_BATCH):
        points = [
            qdrant.Point(row, vectors.rows[row].tolist(), {name: int(each[row]) for name, each in numbers.items()})
            for row in range(start, min(start + QDRANT_BATCH, vectors.standing))
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))
    shard.optimize()

    def search(query: Matrix, below: Below | None = None, _: TemporaryDirectory[str] = folder) -> list[int]:
        chosen = None
        if below is not None:
            condition = qdrant.FieldCondition(below.column, range=qdrant.RangeFloat(lt=float(below.limit)))
            chosen = qdrant.Filter(must=[condition])
        nearest = qdrant.Query.Nearest(query.tolist())
        found = shard.query(qdrant.QueryRequest(limit=NEAREST, query=nearest, filter=chosen))
        return [point.id for point in found]

    return search


EDGE = "Qdrant (edge, in process, without HTTP)"
LIBRARIES: dict[str, Callable[[Vectors, str], Search]] = {
    "pylance in one process": pylance_search,
    "LanceDB embedded, in one process": lancedb_search,
    "FAISS HNSW in one process": faiss_search,
    "Milvus Lite, HNSW, by its client": milvus_search,
    EDGE: qdrant_search,
}


def _folder(root: str) -> Path:
    (location,) = Path(root).glob(f"{TABLE}-*.lance")
    return location


def measure_client(
    name: str,
    open_search: Callable[[Vectors, str], Search],
    target: str,
    vectors: tuple[int, int],
    loads: Sequence[Asked],
    seconds: float,
) -> Iterator[str]:
    """Yield the lines of the table for a client; `vectors` are the rows and dimension that they are made from."""
    if open_search is milvus_search:
        install(MILVUS, MILVUS_REQUIREMENTS)
    if open_search is qdrant_search:
        install(QDRANT, QDRANT_REQUIREMENTS)
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_search, args=(open_search, target, vectors, loads, seconds, sender))
    process.start()
    sender.close()
    for below, number in loads:
        rate, found = receiver.recv()
        yield f"| {describe(below, vectors[0])} | {number} | {name} | {rate:,.0f}/s | {found:.3f} | | |"
    process.join()


def _search(
    open_search: Callable[[Vectors, str], Search],
    target: str,
    shape: tuple[int, int],
    loads: Sequence[Asked],
    seconds: float,
    answer: Any,
) -> None:
    """Search in this process by threads, and send the rate and the recall of each load."""
    vectors = Vectors.make(*shape)
    search = open_search(vectors, target)
    for below, number in loads:
        chosen = {} if below is None else {"below": below}
        ask = partial(search, **chosen)
        rate = together(partial(_ask, ask, vectors.queries), number, seconds, 0.5)
        pairs = zip(vectors.queries, vectors.nearest(below), strict=False)
        found = sum(len(nearest & set(ask(query))) for query, nearest in pairs) / (NEAREST * CHECKED)
        answer.send((rate, found))


def _ask(search: Search, queries: Matrix, turn: int) -> object:
    return search(queries[turn % QUERIES])
