"""Bring 17,472 films into a table by a pipeline on Spark, and search them through the stock lancedb client.

    python examples/films.py [--url URL] [--keep]

What the pipeline does is in films.yaml: a file, embeddings, a table with three indexes, published and tagged. Without a
URL it starts a server of its own on a new folder, and stops it at the end, or when it is interrupted, where it is to
keep it for a look at the console. `make demo` runs this, `make demo KEEP=1` with --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import lance_namespace
import lancedb
import numpy as np
import pyarrow.parquet as pq
from lancedb.query import ColumnOrdering
from lancedb.remote.table import RemoteTable
from lancedb.rerankers import RRFReranker

import tiltyard
from film_data import load_films
from film_embedding import embedded
from local_server import local_server

Row = dict[str, Any]

SHOWN = ["title", "year", "genre", "director"]
NEAREST = 5
HERE = Path(__file__).parent
CONSOLE_SEARCH = {
    "environ": {
        "TILTYARD_EMBEDDINGS": json.dumps({"wordllama": "film_embedding:embedded"}),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", "")))),
    }
}
"""What lets the console turn a text into a vector as the pipeline did: by the function that made the table's."""


def main() -> None:
    """Load, index, search, and say what was found."""
    parser = argparse.ArgumentParser(description="Search films through the stock lancedb client.")
    parser.add_argument("--url", help="a running server; without it, one is started for the demo")
    parser.add_argument("--keep", action="store_true", help="leave the table, and the server until Ctrl-C")
    arguments = parser.parse_args()
    url, keep = arguments.url, arguments.keep
    with nullcontext(url) if url else local_server(**CONSOLE_SEARCH) as server:
        print(f"A Tiltyard server answers on {server}.")
        tell(server, keep)
        print("\nDone.")
        if keep:
            print(f"Look around in the console, and end it by Ctrl-C: {server}/console/table/films", flush=True)
            wait_for_interrupt()
    if not keep:
        print(f"The console was at {server}/console/: make demo KEEP=1 leaves it running.")


def wait_for_interrupt() -> None:
    """Wait until the demo is interrupted, or ended."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background processes ignore the first
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        signal.pause()


def tell(url: str, keep: bool) -> None:
    """The whole story, against a server; its table is dropped in the end, unless it is to be kept."""
    with timed("Made the table by a pipeline on Spark, with embeddings and three indexes, and published it"):
        made = make_table(url)
    database = lancedb.connect("db://demo", api_key="any", host_override=url)
    table = database.open_table("films")
    print(f"  {table.count_rows():,} films")
    assert table.count_rows() == made
    for index in table.list_indices():
        print(f"  {index.name}: {index.index_type} on {', '.join(index.columns)}")
    search_by_meaning(table, url)
    search_by_words(table)
    search_by_both(table)
    search_by_filter(table)
    read_without_lancedb(url, made)
    if keep:
        declare_embedding(url)
    else:
        database.drop_table("films")


def make_table(url: str) -> int:
    """Write the films to a file, as anybody's data might lie there, and run the pipeline; how many films there are.

    A process of its own: Spark forks its workers, which the libraries of clients dislike. Its progress is shown.
    """
    films = load_films()
    with TemporaryDirectory(prefix="tiltyard-films-") as folder:
        file = Path(folder) / "films.parquet"
        pq.write_table(films, file, row_group_size=4_096)
        print(f"Spark starts, within some seconds, and reads {films.num_rows:,} films:", flush=True)
        plan = [str(HERE / "films.yaml"), "--set", f"films={file}", "--uri", url]
        command = [sys.executable, "-m", "tiltyard", "pipeline", "run", *plan]
        environ = {**os.environ, "LANCE_LOG": "error"}  # its warnings would stand in the middle of the progress
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environ)
    if done.returncode != 0:
        sys.exit(done.returncode)  # its own last line says why
    figures = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    return int(figures["rows"])


def declare_embedding(url: str) -> None:
    """Say in the table's metadata what its vectors were made by, as lancedb does: the console can then search texts."""
    function = [{"name": "wordllama", "source_column": "description", "vector_column": "vector", "model": {}}]
    client = lance_namespace.connect("rest", {"uri": url})
    metadata = {"embedding_functions": json.dumps(function)}
    request = lance_namespace.UpdateTableSchemaMetadataRequest(id=["films"], metadata=metadata)
    client.update_table_schema_metadata(request)


def search_by_meaning(table: RemoteTable, url: str) -> None:
    """The nearest titles, by the index; compared with the true nearest, worked out here."""
    wish = "a haunted house horror film"
    [vector] = embedded([wish])
    query = table.search(vector, vector_column_name="vector").distance_type("cosine").nprobes(20).refine_factor(10)
    rows = query.select([*SHOWN, "_distance"]).limit(NEAREST).to_list()
    show(f"Vector search: {wish!r}", rows, [*SHOWN, "_distance"])
    films = opened(url).to_table(columns=["title", "vector"])
    vectors = films["vector"].combine_chunks().flatten().to_numpy().reshape(films.num_rows, -1)
    order = np.argsort(-(vectors @ vector))[:NEAREST]
    exact = {films["title"][int(number)].as_py() for number in order}
    found = {row["title"] for row in rows}
    assert len(rows) == NEAREST
    assert len(found & exact) >= NEAREST - 1, f"the index found {found}, nearest are {exact}"


def search_by_words(table: RemoteTable) -> None:
    """Films whose sentence has the words, best match first."""
    rows = table.search("Kurosawa Mifune", query_type="fts").select([*SHOWN, "_score"]).limit(NEAREST).to_list()
    show("Full-text search: 'Kurosawa Mifune'", rows, [*SHOWN, "_score"])
    assert len(rows) == NEAREST
    assert all("Kurosawa" in row["director"] for row in rows)


def search_by_both(table: RemoteTable) -> None:
    """Meaning and words at once: two searches of 50 films each, their ranks joined by the client."""
    words, meaning = "Audrey Hepburn", "a holiday in Rome"
    [vector] = embedded([meaning])
    query = table.search(query_type="hybrid", vector_column_name="vector", fts_columns="description")
    rows = query.vector(vector).text(words).distance_type("cosine").rerank(RRFReranker()).limit(50).to_list()
    show(f"Hybrid search: {words!r} and {meaning!r}", rows[:NEAREST], [*SHOWN, "_relevance_score"])
    assert rows[0]["title"] == "Roman Holiday"


def search_by_filter(table: RemoteTable) -> None:
    """A plain SQL condition; the B-tree narrows the years."""
    condition = "year BETWEEN 1940 AND 1949 AND genre LIKE '%Mystery%' AND reviews >= 20"
    best = [ColumnOrdering(column_name="score", ascending=False), ColumnOrdering(column_name="title")]
    rows = table.search().where(condition).select([*SHOWN, "score"]).order_by(best).limit(NEAREST).to_list()
    show(f"Filter: {condition}", rows, [*SHOWN, "score"])
    assert len(rows) == NEAREST
    assert all(1940 <= row["year"] <= 1949 for row in rows)
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


def opened(url: str) -> lance.LanceDataset:
    """The same table, as the pipeline has tagged it: pylance asks the server where it is, and reads it."""
    return tiltyard.connect(url).table("films").dataset(tag="demo")


def read_without_lancedb(url: str, films: int) -> None:
    """What the pipeline tagged, read by pylance without lancedb."""
    decades = opened(url).to_table(columns={"decade": "year - year % 10"})["decade"].value_counts().to_pylist()
    rows = sorted(
        ({"decade": entry["values"], "films": entry["counts"]} for entry in decades), key=lambda row: row["decade"]
    )
    show("Films by decade, read by pylance", rows[-NEAREST:], ["decade", "films"])
    assert sum(row["films"] for row in rows) == films


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what was done, and how long it took."""
    start = time.perf_counter()
    yield
    print(f"{what} in {time.perf_counter() - start:.1f} s.")


def show(title: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print rows as a table."""
    cells = [[column.strip("_") for column in columns], *([_text(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[number]) for line in cells) for number in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    print(f"\n{title}\n  {lines[0]}\n  {'  '.join('-' * width for width in widths)}")
    print("\n".join(f"  {line}" for line in lines[1:]))


def _text(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 44 else text[:43] + "…"


if __name__ == "__main__":
    main()
