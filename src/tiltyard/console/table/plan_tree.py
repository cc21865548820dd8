"""The plan of a query as a tree: each step with what it does, and where it was measured, how long and how much."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_STEPS = 500
MAX_DETAIL = 400
_METRICS = re.compile(r",?\s*metrics=\[(.*)\]\s*$")
_ELAPSED = re.compile(r"elapsed=([^,\s]+)(?:,\s*)?")
_FOLDER = re.compile(r"uri=[^,\s]*/(?=[^/,\s]+/data\b)")
_METRIC = re.compile(r"(\w+)=((?:[^,=]|,(?!\s*\w+=))+)")
_SHOWN = ("output_rows", "elapsed_compute", "bytes_read", "iops", "rows_scanned", "index_comparisons", "parts_loaded")
MEANINGS = {
    "AnalyzeExec": "measure",
    "TracedExec": "trace",
    "ProjectionExec": "choose columns",
    "LanceRead": "read columns",
    "LanceScan": "scan the table",
    "Take": "fetch rows by id",
    "TakeExec": "fetch rows by id",
    "FilterExec": "filter row by row",
    "SortExec": "sort",
    "GlobalLimitExec": "take the first rows",
    "CoalesceBatchesExec": "join batches",
    "CoalescePartitionsExec": "join streams",
    "MatchQuery": "look up words in the full-text index",
    "ScalarIndexQuery": "look up in an index",
    "ANNSubIndex": "compare with vectors of the nearest partitions",
    "ANNIvfPartition": "find the nearest partitions",
    "KNNVectorDistance": "compare with every vector",
    "UnionExec": "put together",
    "RepartitionExec": "spread over threads",
}
"""What the most frequent steps of Lance and DataFusion do, in a word."""


@dataclass(slots=True)
class Step:
    """One step of a plan, and those that it takes its rows from."""

    name: str
    meaning: str
    detail: str
    elapsed: str
    metrics: list[tuple[str, str]]
    inputs: list[Step] = field(default_factory=list)


def read_plan(text: str) -> list[Step]:
    """Read an indented plan; lines beyond MAX_STEPS are left out."""
    roots: list[Step] = []
    above: list[tuple[int, Step]] = []
    for line in [line for line in text.splitlines() if line.strip()][:MAX_STEPS]:
        indent = len(line) - len(line.lstrip())
        step = _step(line.strip())
        while above and above[-1][0] >= indent:
            above.pop()
        (above[-1][1].inputs if above else roots).append(step)
        above.append((indent, step))
    return roots


def _step(line: str) -> Step:
    name, _, rest = line.partition(":")
    metrics: list[tuple[str, str]] = []
    if (found := _METRICS.search(line)) is not None:
        rest = rest[: len(rest) - len(found[0])] if _METRICS.search(rest) else ""
        values = {key: value.strip() for key, value in _METRIC.findall(found[1])}
        metrics = [(key.replace("_", " "), values[key]) for key in _SHOWN if key in values]
        name = name.partition(",")[0]
    elapsed = _ELAPSED.search(rest) or _ELAPSED.search(line)
    detail = _ELAPSED.sub("", rest, count=1).strip(" ,")
    shown, _, behind = name.strip().partition(" ")
    detail = _FOLDER.sub("uri=", f"{behind} {detail}".strip())
    return Step(shown, MEANINGS.get(shown, ""), detail[:MAX_DETAIL], elapsed[1] if elapsed else "", metrics)
