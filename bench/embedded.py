"""The limit for a server: pylance in one process with an open dataset, driven line by line over its standard input.

A line is a JSON object: {"do": "nearest" | "equal" | "write", …}; the answer is a line too.
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

from bench.servers import TREE


def together(work: Callable[[int], None], threads: int, seconds: float, warm_up: float) -> float:
    """How often a second several threads get through `work`."""
    begin = time.perf_counter() + warm_up
    end = begin + seconds
    turns = count()
    done = [0] * threads

    def run(number: int) -> None:
        while time.perf_counter() < end:
            work(next(turns))
            if begin <= time.perf_counter() < end:
                done[number] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / seconds


def search(dataset: lance.LanceDataset, query: dict[str, Any]) -> pa.Table:
    """One query of `data.nearest_query` or `data.equal_query`, as one would write it with pylance."""
    columns = query["columns"]["column_names"]
    if (vector := query.get("prepared")) is not None:
        nearest = {"column": query["vector_column"], "q": vector, "k": query["k"], "nprobes": query["nprobes"]}
        return dataset.scanner(
            columns=[*columns, "_distance"], nearest=nearest, disable_scoring_autoprojection=True
        ).to_table()
    return dataset.to_table(columns=columns, filter=query["filter"], limit=query["k"])


def _prepared(file: Path) -> list[dict[str, Any]]:
    """The queries of a file, their vectors as pylance takes them fastest."""
    queries: list[dict[str, Any]] = json.loads(file.read_text())
    for query in queries:
        if vector := query["vector"]["single_vector"]:
            query["prepared"] = np.array(vector, np.float32)
    return queries


def write(source: str, target: str) -> float:
    """Seconds to write an Arrow IPC file as a table, which is removed again."""
    began = time.perf_counter()
    with pa.OSFile(source) as file, pa.ipc.open_stream(file) as reader:
        lance.write_dataset(reader, target)
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def main() -> None:
    """Answer line by line until the input ends."""
    datasets: dict[str, lance.LanceDataset] = {}
    queries: dict[str, list[dict[str, Any]]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "write":
            answer: Any = write(order["source"], order["target"])
        else:
            dataset = datasets.setdefault(order["dataset"], lance.dataset(order["dataset"]))
            if order["queries"] not in queries:
                queries[order["queries"]] = _prepared(Path(order["queries"]))
            asked = queries[order["queries"]]
            if order["do"] == "first":
                answer = [search(dataset, query).column("id").to_pylist() for query in asked[: order["count"]]]
            else:
                answer = together(
                    lambda turn, asked=asked, dataset=dataset: search(dataset, asked[turn % len(asked)]) and None,
                    order["threads"],
                    order["seconds"],
                    order["warm_up"],
                )
        print(json.dumps(answer), flush=True)


class Embedded:
    """That process, from the outside."""

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

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


if __name__ == "__main__":
    main()
