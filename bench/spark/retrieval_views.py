"""Refresh a view of chunks with vectors after some pages changed: `python -m bench.spark.retrieval_views`.

Of `--pages` pages, `--changed` get a new first word, and one in ten of these is deleted. The time of the refresh is set
beside that of the model alone: the vectors of the chunks that the refresh computed, in one process, once the model is
loaded. The goal is 1.2 times that, with a model that takes its time: wordllama is a table of vectors, and all the rest
takes longer than it. The first refresh, of all pages, loads the model in the workers. Figures are medians of
rounds; each refresh has to compute as many values as chunks are new.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import tiltyard
from tiltyard.functions import chunk_words, embed_text

SEED, WORDS, CHUNK_WORDS = 20_260_101, 5_000, 100
SPARK = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}


def make_pages(first: int, end: int, words: int) -> pa.Table:
    """Return pages (id, text) of so many words."""
    chance = np.random.default_rng(SEED + first)
    vocabulary = np.array([f"w{number}" for number in range(WORDS)])
    texts = [" ".join(row) for row in vocabulary[chance.integers(0, WORDS, (end - first, words))]]
    return pa.table({"id": np.arange(first, end), "text": texts})


def change_pages(pages: tiltyard.Table, numbers: list[int], round_number: int) -> int:
    """Give pages another first word each, and delete one in ten; return how many have another first chunk."""
    deleted, changed = numbers[::10], [number for index, number in enumerate(numbers) if index % 10]
    rows = pages.to_arrow(filter=f"id IN ({', '.join(map(str, changed))})")
    texts = [f"round{round_number}x{row['id']} {row['text'].partition(' ')[2]}" for row in rows.to_pylist()]
    pages.upsert(pa.table({"id": rows["id"], "text": texts}), on="id")
    pages.delete(f"id IN ({', '.join(map(str, deleted))})")
    return len(changed)


def main() -> None:
    """Measure refreshes, and the model alone."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.retrieval_views", description=__doc__)
    parser.add_argument("--pages", type=int, default=100_000, help="pages [default: 100000]")
    parser.add_argument("--changed", type=int, default=1_000, help="pages that change in a round [default: 1000]")
    parser.add_argument("--words", type=int, default=300, help="words of a page [default: 300]")
    parser.add_argument("--model", default="wordllama", help="a package or a folder [default: wordllama]")
    parser.add_argument("--indexes", action="store_true", help="a full-text index, too, which each refresh extends")
    parser.add_argument("--rounds", type=int, default=3, help="rounds [default: 3]")
    parser.add_argument("--master", default="local[2]", help="where Spark runs [default: local[2]]")
    arguments = parser.parse_args()
    model = embed_text(model=arguments.model)
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        lake = tiltyard.connect(Path(folder) / "root", master=arguments.master, conf=SPARK)
        pages = lake.table("pages")
        for first in range(0, arguments.pages, 50_000):
            rows = make_pages(first, min(first + 50_000, arguments.pages), arguments.words)
            pages.ingest(rows, mode="append" if first else "create")
        view = lake.create_view(
            "chunks",
            "SELECT id, text FROM pages",
            chunk=chunk_words(size=CHUNK_WORDS),
            columns={"vector": model},
            indexes=[{"column": "chunk", "type": "FTS"}] if arguments.indexes else None,
        )
        began = time.perf_counter()
        first_refresh = view.refresh().figures
        print(f"all: {time.perf_counter() - began:.1f} s, {int(first_refresh['computed']):,} vectors")
        chance = np.random.default_rng(SEED)
        order = chance.permutation(arguments.pages).tolist()
        refreshes: list[float] = []
        alone: list[float] = []
        for number in range(arguments.rounds):
            numbers = order[number * arguments.changed : (number + 1) * arguments.changed]
            expected = change_pages(pages, numbers, number)
            began = time.perf_counter()
            figures = view.refresh().figures
            refreshes.append(time.perf_counter() - began)
            if (figures["mode"], int(figures["computed"])) != ("incremental", expected):
                raise RuntimeError(f"The refresh has computed {figures['computed']} values, and {expected} are new.")
            chunks = view.to_arrow("chunk", filter=f"chunk LIKE 'round{number}x%'")["chunk"].combine_chunks()
            model(chunks.slice(0, 32))
            began = time.perf_counter()
            model(chunks)
            alone.append(time.perf_counter() - began)
    ratio = median(refreshes) / median(alone)
    print(
        f"{arguments.changed:,} of {arguments.pages:,} pages changed: {median(refreshes):.2f} s, the model alone "
        f"{median(alone):.2f} s for {expected:,} chunks: {ratio:.1f} x"
    )


if __name__ == "__main__":
    main()
