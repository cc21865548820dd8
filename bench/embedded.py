"""The limit for a server: pylance in one process with an open dataset, driven line by line over its standard input.

A line is a JSON object: {"do": "first" | "search" | "write", …}; the answer is a line too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.servers import TICKS, TREE


def together(work: Callable[[int], object], threads: int, seconds: float, warm_up: float) -> float:
    """Return how often per second several threads run `work`."""
    start = time.perf_counter() + warm_up
    end = start + seconds
    turns = count()
    done = [0] * threads

    def run(number: int) -> None:
        while time.perf_counter() < end:
            work(next(turns))
            if start <= time.perf_counter() < end:
                done[number] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / seconds


def search(dataset: lance.LanceDataset, query: dict[str, Any]) -> pa.Table:
    """One query of `bench.data` or `bench.reads`, as one would write it with pylance."""
    if (predicate := query.get("count")) is not None:
        return pa.table({"count": [dataset.count_rows(predicate)]})
    columns = query["columns"]["column_names"]
    if (row_ids := query.get("row_ids")) is not None:
        return dataset._take_rows(row_ids, columns=columns)
    if (vector := query.get("prepared")) is not None:
        nearest = {"column": query["vector_column"], "q": vector, "k": query["k"], "nprobes": query["nprobes"]}
        return dataset.scanner(
            columns=[*columns, "_distance"], nearest=nearest, disable_scoring_autoprojection=True
        ).to_table()
    if (text := query.get("text")) is not None:
        return dataset.to_table(
            columns=[*columns, "_score"], full_text_query={"query": text, "columns": ["text"]}, limit=query["k"],
            disable_scoring_autoprojection=True,
        )  # fmt: skip
    return dataset.to_table(columns=columns, filter=query["filter"], limit=query["k"])


def _prepared(file: Path) -> list[dict[str, Any]]:
    """The queries of a file, their vectors as pylance takes them fastest."""
    queries: list[dict[str, Any]] = json.loads(file.read_text())
    for query in queries:
        if vector := query["vector"]["single_vector"]:
            query["prepared"] = np.array(vector, np.float32)
    return queries


def write(source: str, target: str, *, mapped: bool) -> float:
    """Seconds to write an Arrow IPC file, read or mapped into memory, as a table, which is removed again."""
    started_at = time.perf_counter()
    with pa.memory_map(source) if mapped else pa.OSFile(source) as file, pa.ipc.open_stream(file) as reader:
        lance.write_dataset(reader, target)
    seconds = time.perf_counter() - started_at
    shutil.rmtree(target)
    return seconds


class Searches:
    """An open dataset, and queries to search it with."""

    def __init__(self, dataset: str, queries: str) -> None:
        self._dataset = lance.dataset(dataset)
        self._queries = _prepared(Path(queries))

    def run(self, turn: int) -> pa.Table:
        """One query after the other, over and over."""
        return search(self._dataset, self._queries[turn % len(self._queries)])

    def first(self, count: int) -> list[list[int]]:
        """Return the results of the first queries."""
        return [self.run(turn).column("id").to_pylist() for turn in range(count)]


def main() -> None:
    """Answer line by line until the input ends."""
    searches: dict[tuple[str, str], Searches] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "write":
            response: Any = write(order["source"], order["target"], mapped=order["mapped"])
        else:
            key = order["dataset"], order["queries"]
            if key not in searches:
                searches[key] = Searches(*key)
            if order["do"] == "first":
                response = searches[key].first(order["count"])
            else:
                response = together(searches[key].run, order["threads"], order["seconds"], order["warm_up"])
        print(json.dumps(response), flush=True)


class Embedded:
    """The client of that process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.embedded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TREE
        )

    def ask(self, **order: Any) -> Any:
        """Have it do something; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("pylance in a process of its own ended; its reason stands above.")
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


if __name__ == "__main__":
    main()
