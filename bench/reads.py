"""Text, both kinds of search, counting, and rows by ids, beside pylance and RestAdapter: `python -m bench.reads`.

100,000 rows with a text of twelve words, a vector, and indexes on the text, the vector and the id. Tiltyard with
`--workers` processes, RestAdapter with one session for all requests, and pylance with an open dataset and eight threads
in one process take turns. Hybrid search is what lancedb's client sends for it: a search of the vector and one of the
text, which it ranks itself; the figure is of such pairs. Processor time is that of a call.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench import data
from bench.data import NAMESPACE, ROWS, SEED
from bench.embedded import Embedded
from bench.load import Load
from bench.rounds import Side
from bench.servers import peer, tiltyard
from bench.wire import of_table, post

TABLE = f"{NAMESPACE}$texts"
VOCABULARY, WORDS = 20_000, 12
CALLERS = 8
QUERIES = 500
COLUMNS = ["id", "text"]
NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: requests of the servers as (action, body), and what pylance does for each."""

    title: str
    requests: list[tuple[str, dict[str, Any]]]
    embedded: list[dict[str, Any]]
    calls: int = 1


def texts() -> Iterator[pa.RecordBatch]:
    """The rows: words of a vocabulary, the common ones often."""
    draw = np.random.default_rng(SEED + 3)
    for batch in data.batches(ROWS):
        numbers = np.minimum(draw.zipf(1.3, (batch.num_rows, WORDS)), VOCABULARY)
        column = pa.array([" ".join(f"w{number}" for number in row) for row in numbers])
        yield batch.append_column("text", column)


def indexed(folder: Path) -> Path:
    """The table with its indexes; made once per work folder."""
    target = folder / "texts"
    if not target.exists():
        making = folder / "texts.making"
        shutil.rmtree(making, ignore_errors=True)
        schema = data.SCHEMA.append(pa.field("text", pa.string()))
        dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, texts()), str(making))
        dataset.create_index("vector", "IVF_PQ", num_partitions=256, num_sub_vectors=16)
        dataset.create_scalar_index("id", "BTREE")
        dataset.create_scalar_index("text", "INVERTED")
        making.rename(target)
    return target


def rows() -> list[Row]:
    """The rows that are measured."""
    draw = np.random.default_rng(SEED + 4)
    words = [f"w{one} w{other}" for one, other in draw.integers(2, 400, (QUERIES, 2))]
    bounds = draw.integers(0, ROWS - 10_000, QUERIES)
    ids = [sorted(map(int, draw.choice(ROWS, 100, replace=False))) for _ in range(QUERIES)]
    nothing: dict[str, Any] = {"vector": {"single_vector": []}, "k": 10, "columns": {"column_names": COLUMNS}}
    text = [
        nothing | {"full_text_query": {"string_query": {"query": pair, "columns": ["text"]}}, "k": 10} for pair in words
    ]
    vector, ids_alone = data.nearest_queries(COLUMNS, QUERIES), data.nearest_queries(["id"], QUERIES)
    found = [{"text": pair, "columns": {"column_names": COLUMNS}, "k": 10} for pair in words]
    count = [f"id >= {bound} AND id < {bound + 10_000}" for bound in bounds]
    scanned = [f"name LIKE '%{bound}%'" for bound in bounds]
    row_ids = [f"_rowid IN ({', '.join(map(str, some))})" for some in ids]
    lists = [f"id IN ({', '.join(map(str, some))})" for some in ids]
    return [
        Row("full text, 2 words, k = 10", [("query", query) for query in text], found),
        Row(
            "hybrid: full text and vector, k = 10 each",
            [("query", query) for pair in zip(text, vector, strict=True) for query in pair],
            [query for pair in zip(found, vector, strict=True) for query in pair],
            2,
        ),
        Row("10 nearest by vector, ids alone", [("query", query) for query in ids_alone], ids_alone),
        Row(
            "count_rows, a range by BTREE",
            [("count_rows", {"predicate": predicate}) for predicate in count],
            [{"count": predicate} for predicate in count],
        ),
        Row(
            "count_rows, LIKE without an index",
            [("count_rows", {"predicate": predicate}) for predicate in scanned],
            [{"count": predicate} for predicate in scanned],
        ),
        Row(
            "100 rows by ids in a BTREE",
            [("query", nothing | {"filter": some, "k": 100}) for some in lists],
            [{"filter": some, "k": 100, "columns": {"column_names": COLUMNS}} for some in lists],
        ),
        Row(
            "100 rows by row ids, as lancedb's take_row_ids asks",
            [("query", nothing | {"filter": some, "k": NO_LIMIT}) for some in row_ids],
            [{"row_ids": some, "columns": {"column_names": COLUMNS}} for some in ids],
        ),
    ]


def measure(row: Row, sides: list[Side], embedded: Embedded, place: dict[str, str], options: argparse.Namespace) -> str:
    """Return the line of a row."""
    load, limits, cpu = Load(CALLERS, options.seconds), [], []
    requests = [post(of_table(TABLE, action), body) for action, body in row.requests]
    file = Path(place["folder"]) / f"{row.title.encode().hex()[:64]}.json"
    file.write_text(json.dumps([{"vector": {"single_vector": []}} | query for query in row.embedded]))
    for _ in range(options.rounds):
        for side in sides:
            side.take(lambda: cycle(requests), load)
        before = embedded.cpu_seconds()
        limits.append(
            embedded.ask(
                do="search", dataset=place["dataset"], queries=str(file), threads=CALLERS, seconds=load.seconds,
                warm_up=load.warm_up,
            )
        )  # fmt: skip
        cpu.append((embedded.cpu_seconds() - before) / (limits[-1] * (load.seconds + load.warm_up)))
    limit = median(limits) / row.calls
    cells = [side.words() for side in sides]
    to_peer = f"{sides[0].rate / sides[1].rate:.2f}x" if sides[1].rate else "refused"
    ratios = [f"{sides[0].rate / row.calls / limit:.2f}x", to_peer]
    pylance = f"{limit:,.0f}/s, {median(cpu) * 1e3:.2f} ms CPU"
    return "| " + " | ".join([row.title, *cells, pylance, *ratios]) + " |"


def main() -> None:
    """Measure all rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose title has this text")
    parser.add_argument("--work", type=Path, help="folder that keeps the table for the next run")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-reads-", dir=options.work)))
        source = indexed(options.work or folder)
        roots = [folder / "ours", folder / "peer"]
        for root in roots:
            root.mkdir()
        servers = [tiltyard(roots[0], folder / "ours.log", options.workers)]
        stack.callback(servers[0].stop)
        servers.append(peer(roots[1], folder / "peer.log", session=True))
        stack.callback(servers[1].stop)
        for server, root in zip(servers, roots, strict=True):
            data.fill_catalog(server.address, 1, 1)
            data.register(source, root, TABLE, server.address)
        embedded = Embedded()
        stack.callback(embedded.stop)
        place = {"folder": str(folder), "dataset": str(source)}
        print("| row | Tiltyard | RestAdapter, session shared | pylance in one process | to pylance | to RestAdapter |")
        print("|---|---|---|---|---|---|")
        for row in rows():
            if options.only in row.title:
                print(measure(row, [Side(server) for server in servers], embedded, place, options), flush=True)


if __name__ == "__main__":
    main()
