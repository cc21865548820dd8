"""The plan of a query: the route that answers, and the steps as a tree, those that were measured with their figures."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_STEPS = 500
MAX_DETAIL = 400
_ROUTE = re.compile(r"Route: (\w+): (.*)")
_OTHER_ROUTE = re.compile(r"Not (\w+): (.*)")
_FOREIGN = re.compile(r"FFI_ExecutionPlan: (\w+), number_of_children=\d+")
"""How DataFusion prints a step of Lance's."""
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
    "FilteredReadExec": "read the rows of a filter",
    "TableScan": "read the table",
    "Projection": "choose columns",
    "Filter": "filter row by row",
    "Sort": "sort",
    "Limit": "take the first rows",
    "Aggregate": "group",
    "AggregateExec": "group",
    "HashJoinExec": "join by a hash table",
    "SortPreservingMergeExec": "join sorted streams",
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


@dataclass(slots=True)
class QueryPlan:
    """The name of the route that answers a query, and how; why each other does not; and the steps of what it runs."""

    route: str = ""
    how: str = ""
    others: list[tuple[str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def read_plan(text: str) -> QueryPlan:
    """Read the plan of a query, whose steps are indented; lines beyond MAX_STEPS are left out."""
    plan = QueryPlan()
    above: list[tuple[int, Step]] = []
    for line in [line for line in text.splitlines() if line.strip()][:MAX_STEPS]:
        if (match := _ROUTE.fullmatch(line)) is not None:
            plan.route, plan.how = match[1], match[2][:MAX_DETAIL]
            continue
        if (match := _OTHER_ROUTE.fullmatch(line)) is not None:
            plan.others.append((match[1], match[2][:MAX_DETAIL]))
            continue
        indent = len(line) - len(line.lstrip())
        step = _step(line.strip())
        while above and above[-1][0] >= indent:
            above.pop()
        (above[-1][1].inputs if above else plan.steps).append(step)
        above.append((indent, step))
    return plan


def _step(line: str) -> Step:
    line = _FOREIGN.sub(r"\1:", line)
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
