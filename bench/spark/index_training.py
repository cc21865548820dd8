"""Measure the training of vector indexes in tasks beside one task: `python -m bench.spark.index_training`.

One task is pylance's own training, with one thread on one processor, as a slot of a cluster has. Tasks run on
`local[2]`, two at once. Both train the same version of a table, in turns. The recall of each is that of an IVF_PQ index
built with its model, against exact search. Seconds are by the clock: the machine should do nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.constants import markdown_table, short_time
from bench.processor_time import tree_seconds
from bench.resting import rest
from bench.spark.line_processes import Process, answer
from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.pipeline.indexes.model_files import IndexModel
from tiltyard.pipeline.indexes.tasks import BuildInput, BuildSegment, IndexSpec, TrainModel
from tiltyard.pipeline.indexes.training import train_model
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.session import spark_session
from tiltyard.pipeline.table_location import CatalogConnection, TableLocation

DIMENSION, SUB_VECTORS = 128, 16
FRAGMENT_ROWS = 125_000
QUERIES, NEAREST, PROBES, REFINE = 500, 10, (8, 16, 32), 10
ONE_THREAD = {"LANCE_CPU_THREADS": "1", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
DATA = ("clustered", "uniform")
ESTIMATED = 16_384
"""Partitions of a table of 10 million rows, for which training is estimated."""


def vectors(rows: int, seed: int, data: str) -> np.ndarray[Any, Any]:
    """Return vectors that are uniform, or around 5,000 centres, in 16 directions more than in the others."""
    if data == "uniform":
        return np.random.default_rng([seed, 7]).random((rows, DIMENSION), np.float32)
    fixed = np.random.default_rng(1)
    centres = fixed.standard_normal((5000, DIMENSION), np.float32) * np.float32(0.5)
    directions = fixed.standard_normal((16, DIMENSION), np.float32) * np.float32(0.3)
    source = np.random.default_rng([seed, 7])
    rows_of = centres[source.integers(0, len(centres), rows)]
    noise = source.standard_normal((rows, DIMENSION), np.float32) * np.float32(0.1)
    moved: np.ndarray[Any, Any] = rows_of + source.standard_normal((rows, 16), np.float32) @ directions + noise
    return moved


def batches(rows: int, data: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the table: ids and vectors."""
    for first in range(0, rows, FRAGMENT_ROWS):
        ids = np.arange(first, min(first + FRAGMENT_ROWS, rows))
        flat = pa.array(vectors(len(ids), first, data).reshape(-1))
        yield pa.record_batch([pa.array(ids), pa.FixedSizeListArray.from_arrays(flat, DIMENSION)], ["id", "vector"])


def build_input(uri: str, kind: str, partitions: int) -> BuildInput:
    """Return the input of a build on the table's newest version."""
    codes = {"num_sub_vectors": SUB_VECTORS} if kind == "IVF_PQ" else {}
    spec = IndexSpec("vector", kind, "vector_idx", {"num_partitions": partitions, "distance_type": "l2", **codes})
    location = TableLocation(uri, {}, CatalogConnection("none", ()), ("t",))
    return BuildInput(location, int(lance.dataset(uri).version), None, spec)


def train_alone(uri: str, kind: str, partitions: int, cpu: int) -> dict[str, Any]:
    """Return the seconds of a training in this process, on one processor, and the model."""
    os.sched_setaffinity(0, {cpu})
    began = time.perf_counter()
    model = TrainModel(build_input(uri, kind, partitions))()
    return {"seconds": time.perf_counter() - began, "folder": model.folder, "sub_vectors": model.sub_vectors}


@dataclass(slots=True)
class TimedRun(LocalRun):
    """A run that measures its stages."""

    began: dict[str, float] = field(default_factory=dict)

    def progress(self, **figures: object) -> None:
        """Note when a stage begins."""
        if "training" in figures:
            self.began[str(figures["training"])] = time.perf_counter()
        LocalRun.progress(self, **figures)

    def stages(self) -> Mapping[str, float]:
        """Return the seconds of each stage, of which the last one ends now."""
        ends = [*list(self.began.values())[1:], time.perf_counter()]
        return {name: end - first for (name, first), end in zip(self.began.items(), ends, strict=True)}


def train_together(spark: Any, uri: str, partitions: int) -> tuple[float, Mapping[str, float], IndexModel]:
    """Return the seconds of a training in tasks, those of its stages, and the model."""
    dataset, run = lance.dataset(uri), TimedRun()
    began = time.perf_counter()
    asked = build_input(uri, "IVF_PQ", partitions)
    model = train_model(run, spark, asked, dataset, fragments_by_id(dataset), None)
    if "codebook" not in run.began:
        raise RuntimeError(f"It was trained {run.figures['training']}.")
    return time.perf_counter() - began, run.stages(), model


def recall(uri: str, partitions: int, model: IndexModel, queries: Any, exact: list[set[int]]) -> dict[int, float]:
    """Return the recall of an index with a model, by the number of partitions that are searched."""
    dataset = lance.dataset(uri)
    numbers = tuple(fragment.fragment_id for fragment in dataset.get_fragments())
    segment = BuildSegment(build_input(uri, "IVF_PQ", partitions), model, numbers)()
    dataset.commit_existing_index_segments("vector_idx", "vector", [segment])
    found = {}
    for probes in PROBES:
        search = {"column": "vector", "k": NEAREST, "nprobes": probes, "refine_factor": REFINE}
        hits = 0
        for query, nearest in zip(queries, exact, strict=True):
            rows = dataset.to_table(columns=["id", "_distance"], nearest={**search, "q": query})
            hits += len(nearest.intersection(rows["id"].to_pylist()))
        found[probes] = hits / NEAREST / len(queries)
    return found


def exact_nearest(rows: int, queries: Any, data: str) -> list[set[int]]:
    """Return the ids of the nearest rows of each query."""
    best = [(np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64))]
    for batch in batches(rows, data):
        matrix = batch["vector"].flatten().to_numpy().reshape(-1, DIMENSION)
        distances = np.einsum("ij,ij->i", matrix, matrix) - 2 * queries @ matrix.T
        distances = np.concatenate([best[0][0], distances], axis=1)
        ids = np.concatenate([best[0][1], np.broadcast_to(batch["id"].to_numpy(), (len(queries), len(matrix)))], axis=1)
        nearest = np.argpartition(distances, NEAREST, axis=1)[:, :NEAREST]
        best = [(np.take_along_axis(distances, nearest, axis=1), np.take_along_axis(ids, nearest, axis=1))]
    return [set(ids.tolist()) for ids in best[0][1]]


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.index_training", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_048_576, help="[default: 1,048,576]")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1024, 4096], help="[default: 1,024 and 4,096]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side; medians count [default: 3]")
    parser.add_argument("--data", choices=DATA, default=DATA[0], help="how vectors lie [default: clustered]")
    parser.add_argument("--slots", type=int, default=2, help="tasks at once [default: 2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiltyard-index-training-") as folder:
        uri = str(Path(folder) / "t.lance")
        parts = batches(options.rows, options.data)
        reader = pa.RecordBatchReader.from_batches(next(batches(1, options.data)).schema, parts)
        lance.write_dataset(reader, uri, max_rows_per_file=FRAGMENT_ROWS)
        queries = vectors(QUERIES, -1 % 2**32, options.data)
        exact = exact_nearest(options.rows, queries, options.data)
        alone = Process("bench.spark.index_training", "alone", environ=ONE_THREAD)
        spark = spark_session(f"local[{options.slots}]", config={"spark.ui.enabled": "false"})
        try:
            for partitions in options.partitions:
                _measure(options, spark, alone, uri, partitions, queries, exact)
        finally:
            alone.stop()
            spark.stop()


def _measure(
    options: argparse.Namespace, spark: Any, alone: Process, uri: str, partitions: int, queries: Any, exact: Any
) -> None:
    order: dict[str, Any] = {"uri": uri, "partitions": partitions, "cpu": max(os.sched_getaffinity(0))}
    one: dict[str, list[float]] = {"IVF_FLAT": [], "IVF_PQ": []}
    together: list[float] = []
    cpu: dict[str, list[float]] = {"alone": [], "together": []}
    stages: list[Mapping[str, float]] = []
    train_together(spark, uri, partitions)  # the first starts Spark's workers
    for _ in range(options.rounds):
        for kind, seconds in one.items():
            rest()
            trained = alone.ask("train", kind=kind, **order)
            seconds.append(trained["seconds"])
        cpu["alone"].append(alone.cpu)
        rest()
        before = tree_seconds(os.getpid())
        seconds_together, each, model = train_together(spark, uri, partitions)
        cpu["together"].append(tree_seconds(os.getpid()) - before)
        together.append(seconds_together)
        stages.append(each)
    theirs = recall(uri, partitions, IndexModel(trained["folder"], partitions, SUB_VECTORS), queries, exact)
    ours = recall(uri, partitions, model, queries, exact)
    whole, ivf = median(one["IVF_PQ"]), median(one["IVF_FLAT"])
    share = whole / options.slots
    shape = f"{options.rows:,} × {DIMENSION}, {options.data}"
    print(f"\n{shape}, {partitions:,} partitions, {options.slots} slots, {options.rounds} rounds\n")
    heads = "one task", "of it centroids", "÷ slots", "in tasks", "in tasks ÷ (one task ÷ slots)", "of processor time"
    ratio = median(together) / share
    spent = f"{median(cpu['together']):.1f} s ÷ {median(cpu['alone']):.1f} s"
    figures = [short_time(each) for each in (whole, ivf, share, median(together))]
    print(markdown_table(heads, [[*figures, f"{ratio:.2f}x (goal: ≤ 1.5x)", spent]]))
    medians = {name: median(each[name] for each in stages) for name in stages[0]}
    print("\nstages: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()) + "\n")
    heads = "partitions searched", "recall, one task", "recall, in tasks", "difference"
    rows = [
        [f"{probes}", f"{theirs[probes]:.4f}", f"{ours[probes]:.4f}", f"{ours[probes] - theirs[probes]:+.4f}"]
        for probes in PROBES
    ]
    print(markdown_table(heads, rows), flush=True)
    _estimate(options.slots, partitions, whole, ivf, medians)


def _estimate(slots: int, partitions: int, whole: float, ivf: float, stages: Mapping[str, float]) -> None:
    """Print what 10 million rows with 16,384 partitions would take by these figures, on as many slots.

    Both grow with the vectors, 256 for each partition. pylance halves its clusters' number by 16 at each level, so that
    its work grows with the logarithm of the partitions too; ours with their root, and of the steps of all
    centroids not at all. A codebook takes what it takes here.
    """
    more = ESTIMATED / partitions
    theirs = ivf * more * np.log(ESTIMATED) / np.log(partitions) + (whole - ivf)
    grown = {"sample": more, "coarse": more, "sorted": more**1.5, "clusters": more**1.5, "centroids": more}
    grown |= {"sums": more, "moved": more}
    ours = sum(seconds * grown.get(name.rstrip("0123456789"), 1.0) for name, seconds in stages.items())
    ratio = ours / (theirs / slots)
    print(
        f"\nby arithmetic, 10 M rows with {ESTIMATED:,} partitions: one task {short_time(theirs)}, in tasks on {slots} "
        f"slots {short_time(ours)}: {ratio:.2f}x of one task ÷ slots",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["alone"]:
        answer({"train": train_alone})
    else:
        main()
