"""The data of the rows: catalogs of many tables, a table of vectors with its indexes, files to upload.

All of it is made from fixed seeds; speed does not depend on what the numbers are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.load import Address, Load, drive
from bench.wire import call, call_json, of_table, post, stream

DIMENSION = 128
ROWS = 100_000
BATCH = 8_192
SEED = 20_260_101
NAMESPACE = "bench"
VECTORS = f"{NAMESPACE}$vectors"
LARGE = f"{NAMESPACE}$large"

Id = Callable[[str], str]
"""Where a table of the catalog is: its id from its name."""


def in_namespace(name: str) -> str:
    """The id of a table in the namespace."""
    return f"{NAMESPACE}${name}"


def in_root(name: str) -> str:
    """The id of a table in the root."""
    return name


def fill_catalog(address: Address, tables: int, connections: int, place: Id = in_namespace) -> None:
    """A namespace, and tables declared over HTTP by the load generator. Raises RuntimeError if one fails."""
    call_json(address, f"/v1/namespace/{NAMESPACE}/create")
    requests = (post(of_table(place(f"t{number:06}"), "declare")) for number in range(tables))
    measured = drive(address, requests, Load(connections, count=tables))
    if measured.failed:
        raise RuntimeError(f"Declaring {tables} tables: {dict(measured.failures)} failed.")


def on_tables(action: str, tables: int, place: Id = in_namespace) -> Iterator[bytes]:
    """One request for each of many tables, in no order, over and over."""
    order = np.random.default_rng(SEED).permutation(tables)
    return cycle([post(of_table(place(f"t{number:06}"), action)) for number in order[:20_000]])


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "vector": pa.list_(pa.float32(), DIMENSION)})


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    """Rows with an id, a name and a vector."""
    ids = range(first, first + count)
    numbers = np.random.default_rng(SEED + first).standard_normal(count * DIMENSION, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), DIMENSION)
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"row {number}" for number in ids]), vectors], SCHEMA)


def batches(total: int) -> Iterator[pa.RecordBatch]:
    """Many rows, a batch at a time."""
    for first in range(0, total, BATCH):
        yield rows(min(BATCH, total - first), first)


def reader(total: int) -> pa.RecordBatchReader:
    """The same as a reader."""
    return pa.RecordBatchReader.from_batches(SCHEMA, batches(total))


def indexed_table(folder: Path) -> Path:
    """100,000 rows with IVF_PQ on the vectors and a BTREE on the ids; made once per work folder."""
    target = folder / "vectors"
    if not target.exists():
        making = folder / "vectors.making"
        shutil.rmtree(making, ignore_errors=True)
        dataset = lance.write_dataset(reader(ROWS), str(making))
        dataset.create_index("vector", "IVF_PQ", num_partitions=256, num_sub_vectors=16)
        dataset.create_scalar_index("id", "BTREE")
        making.rename(target)
    return target


def large_table(folder: Path, total: int) -> Path:
    """A table whose answer is large; made once per work folder."""
    target = folder / "large"
    if not target.exists():
        making = folder / "large.making"
        shutil.rmtree(making, ignore_errors=True)
        lance.write_dataset(reader(total), str(making))
        making.rename(target)
    return target


def stream_file(folder: Path, size: int) -> Path:
    """An Arrow IPC stream of at least so many bytes; made once per work folder."""
    target = folder / f"stream-{size}.arrows"
    if not target.exists():
        making = target.with_suffix(".making")
        with pa.OSFile(str(making), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            first = 0
            while sink.tell() < size:
                writer.write_batch(rows(BATCH, first))
                first += BATCH
        making.rename(target)
    return target


def register(source: Path, root: Path, name: str, address: Address) -> None:
    """Give a server a table that is there: its files linked into the root, then registered."""
    folder = "registered.lance"
    link(source, root / folder)
    try:
        call_json(address, of_table(name, "register"), {"location": str(root / folder)})
    except RuntimeError as refused:  # Tiltyard takes the whole path, RestAdapter one below its root
        try:
            call_json(address, of_table(name, "register"), {"location": folder})
        except RuntimeError:
            raise refused from None


def link(source: Path, target: Path) -> None:
    """Link the files of a folder into another one."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def nearest_queries(columns: list[str], count: int = 1_000) -> list[dict[str, Any]]:
    """Queries of the ten nearest rows, with twenty partitions probed (lancedb's default)."""
    vectors = np.random.default_rng(SEED + 1).standard_normal((count, DIMENSION), dtype=np.float32)
    return [
        {
            "vector": {"single_vector": vector.tolist()},
            "vector_column": "vector",
            "k": 10,
            "nprobes": 20,
            "columns": {"column_names": columns},
        }
        for vector in vectors
    ]


def equal_queries(count: int = 10_000) -> list[dict[str, Any]]:
    """The row with one id."""
    ids = np.random.default_rng(SEED + 2).integers(0, ROWS, count)
    return [
        {
            "vector": {"single_vector": []},
            "k": 1,
            "filter": f"id = {number}",
            "columns": {"column_names": ["id", "name"]},
        }
        for number in ids
    ]


def keep_queries(folder: Path, name: str, queries: list[dict[str, Any]]) -> Path:
    """The queries in a file, for another process."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(queries))
    return file


def found_ids(address: Address, table: str, query: dict[str, Any]) -> list[int]:
    """The ids that a server answers."""
    body = json.dumps(query).encode()
    response = call(address, "POST", of_table(table, "query"), body)
    ids: list[int] = pa.ipc.open_file(response).read_all().column("id").to_pylist()
    return ids


def one_row(number: int) -> bytes:
    """One row as an Arrow IPC stream."""
    return stream(pa.Table.from_batches([rows(1, number)]))
