"""What an index is worth, and what it costs: `python -m bench.indexes`.

One question after another is asked of one table, by one caller over HTTP: first without an index, then by each index
that answers it. For each: milliseconds of a call (the median), how long the index took from its request until it was
listed as ready, its bytes on disk, and for vectors the share of the ten nearest rows that were found. Rows have an id,
a moment, one of a hundred kinds, three of a hundred labels, a text of twelve words and a vector of 128 numbers in
clusters. The server keeps no vectors in memory, but in the last row.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.load import Address, Load
from bench.rounds import Side
from bench.servers import Server, tiltyard
from bench.vector_subjects import NEAREST, QUERIES, Vectors
from bench.wire import ARROW, call, call_json, of_table, post, stream

TABLE = "rows"
DIMENSION = 128
KINDS = 100
VOCABULARY, WORDS = 20_000, 12
BUILD_SECONDS = 1_800.0
CHUNK_ROWS = 200_000
SEED = 20_261_129
Body = dict[str, Any]
NO_VECTOR: Body = {"vector": {"single_vector": []}, "k": NEAREST, "columns": {"column_names": ["id"]}}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in which column, by which indexes."""

    title: str
    column: str
    indexes: Sequence[str]
    action: str
    bodies: Sequence[Body]
    parameters: Body = field(default_factory=dict)
    needs_index: bool = False
    """Whether nothing answers it without an index."""


def questions(rows: int, vectors: Vectors) -> list[Question]:
    """Return what is asked of a table of so many rows."""
    draw = np.random.default_rng(SEED + 1)
    ids = draw.integers(0, rows, QUERIES).tolist()
    words = [f"w{one} w{other}" for one, other in draw.integers(2, 400, (QUERIES, 2))]
    width = max(1, rows // 100)
    nearest = [
        {**NO_VECTOR, "vector": {"single_vector": query.tolist()}, "vector_column": "vec"} for query in vectors.queries
    ]
    texts = [{**NO_VECTOR, "full_text_query": {"string_query": {"query": pair, "columns": ["text"]}}} for pair in words]
    labels = [{"predicate": f"array_has_any(labels, ['l{number % KINDS}'])"} for number in ids]
    return [
        Question("the 10 nearest", "vec", ("IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"), "query", nearest, {"metric": "l2"}),
        Question("one row, `id = 7`", "id", ("BTREE",), "query", [{**NO_VECTOR, "filter": f"id = {n}"} for n in ids]),
        Question(
            "count of a hundredth, `moment >= a AND moment < b`", "moment", ("BTREE", "ZONEMAP"), "count_rows",
            [{"predicate": f"moment >= {n} AND moment < {n + width}"} for n in ids],
        ),
        Question(
            "count of a hundredth, `kind = 'k7'`", "kind", ("BITMAP", "BTREE"), "count_rows",
            [{"predicate": f"kind = 'k{n % KINDS}'"} for n in ids],
        ),
        Question("count by a label in a list", "labels", ("LABEL_LIST",), "count_rows", labels),
        Question("the 10 best texts for two words", "text", ("FTS",), "query", texts, needs_index=True),
        Question(
            "count of texts with a part of a word, `text LIKE '%w1234%'`", "text", ("NGRAM",), "count_rows",
            [{"predicate": f"text LIKE '%w{1000 + n % 19_000}%'"} for n in ids],
        ),
    ]  # fmt: skip


def table(vectors: Vectors, rows: range) -> pa.Table:
    """Return some of the rows."""
    draw = np.random.default_rng(SEED + rows.start)
    words = np.minimum(draw.zipf(1.3, (len(rows), WORDS)), VOCABULARY)
    columns = {
        "moment": pa.array(rows, pa.int64()),
        "kind": pa.array([f"k{number}" for number in draw.integers(0, KINDS, len(rows))]),
        "labels": pa.array([[f"l{one}" for one in row] for row in draw.integers(0, KINDS, (len(rows), 3))]),
        "text": pa.array([" ".join(f"w{number}" for number in row) for row in words]),
    }
    part = vectors.table(rows)
    for name, values in columns.items():
        part = part.append_column(name, values)
    return part


def fill(address: Address, vectors: Vectors) -> None:
    """Create the table."""
    for start in range(0, vectors.standing, CHUNK_ROWS):
        part = table(vectors, range(start, min(start + CHUNK_ROWS, vectors.standing)))
        call(address, "POST", of_table(TABLE, "insert" if start else "create"), stream(part), ARROW)


def build(address: Address, root: Path, question: Question, index: str) -> tuple[float, int]:
    """Build an index; return its seconds and its bytes on disk. Raises RuntimeError where it is not ready in time."""
    before, began = index_bytes(root), time.monotonic()
    name = f"{question.column}_idx"
    body = {"column": question.column, "index_type": index, "name": name, "replace": True}
    call_json(address, of_table(TABLE, "create_index"), {**body, **question.parameters})
    while time.monotonic() < began + BUILD_SECONDS:
        listed = call_json(address, of_table(TABLE, "index/list"))["indexes"]
        if any(one["index_name"] == name and one.get("status", "done") == "done" for one in listed):
            return time.monotonic() - began, index_bytes(root) - before
        time.sleep(0.02)
    raise RuntimeError(f"{index} was not built in {BUILD_SECONDS:g} s.")


def drop(address: Address, question: Question) -> None:
    """Drop the index that was measured."""
    call(address, "POST", of_table(TABLE, f"index/{question.column}_idx/drop"))


def index_bytes(root: Path) -> int:
    """Return the bytes of all index files below a root."""
    return sum(file.stat().st_size for file in root.glob("*.lance/_indices/*/*"))


def recall(address: Address, question: Question, vectors: Vectors) -> float:
    """Return the share of the nearest rows that are found."""
    found = 0
    expected = vectors.nearest()
    for body, nearest in zip(question.bodies, expected, strict=False):
        answer = call(address, "POST", of_table(TABLE, "query"), json.dumps(body).encode())
        found += len(nearest & set(pa.ipc.open_file(io.BytesIO(answer)).read_all().column("id").to_pylist()))
    return found / (NEAREST * len(expected))


def ask(server: Server, question: Question, seconds: float) -> str:
    """Return the milliseconds of a call, for the table."""
    requests = [post(of_table(TABLE, question.action), body) for body in question.bodies]
    side = Side(server)
    measured = side.take(lambda: cycle(requests), Load(1, seconds))
    return "failed" if side.failed else f"{measured.p50 * 1e3:.3g}"


def measure(rows: int, folder: Path, seconds: float) -> Iterator[str]:
    """Yield the lines of the table for a number of rows."""
    vectors = Vectors.make(rows, DIMENSION)
    root = folder / str(rows)
    off = {"TILTYARD_UPKEEP": "false", "TILTYARD_VECTOR_CACHE_BYTES": "0"}
    server = tiltyard(root, folder / "server.log", 1, environ=off)
    asked = questions(rows, vectors)
    try:
        fill(server.address, vectors)
        for question in asked:
            if not question.needs_index:
                yield f"| {rows:,} | {question.title} | none | {ask(server, question, seconds)} | | | |"
            for index in question.indexes:
                took, size = build(server.address, root, question, index)
                found = f"{recall(server.address, question, vectors):.3f}" if question.column == "vec" else ""
                time_of = ask(server, question, seconds)
                yield f"| {rows:,} | {question.title} | {index} | {time_of} | {took:.2f} | {size / 1e6:.2f} | {found} |"
                if not (question.column == "vec" and index == question.indexes[-1]):
                    drop(server.address, question)
    finally:
        server.stop()
    yield from in_memory(rows, root, folder, asked[0], vectors, seconds)


def in_memory(
    rows: int, root: Path, folder: Path, question: Question, vectors: Vectors, seconds: float
) -> Iterator[str]:
    """Yield the line of the vectors in memory, of a server as it comes."""
    server = tiltyard(root, folder / "server.log", 1, environ={"TILTYARD_UPKEEP": "false"})
    try:
        began = time.monotonic()
        body = question.bodies[0]
        while time.monotonic() < began + BUILD_SECONDS:
            call(server.address, "POST", of_table(TABLE, "query"), json.dumps(body).encode())
            if "Route: index_in_memory" in call_json(server.address, of_table(TABLE, "explain_plan"), {"query": body}):
                break
            time.sleep(0.2)
        ready = time.monotonic() - began
        found = recall(server.address, question, vectors)
        time_of = ask(server, question, seconds)
        yield f"| {rows:,} | {question.title} | in memory | {time_of} | {ready:.2f} | | {found:.3f} |"
    finally:
        server.stop()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    arguments = parser.parse_args()
    print("| rows | question | index | ms a call | s to build | MB on disk | recall |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as name:
        for rows in arguments.rows:
            for line in measure(rows, Path(name), arguments.seconds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
