"""Duplicates of short texts: seconds, precision and recall of planted ones: `python -m bench.spark.deduplicate`.

Of the texts, a tenth is an earlier one with a word changed or left out, a twentieth an earlier one as it is, and a
hundredth one boilerplate text with a number. Recall is the share of planted pairs, with a similarity of the threshold,
that are in one group; precision the share of duplicates, of up to 2,000, that are similar to another row of their
group. Then a hundredth is added, and the job runs again. With `--sizes` of two numbers or more, ten million is
estimated from how the times grow.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard

WORDS, SEED, THRESHOLD, SHINGLE = 20_000, 20_260_101, 0.8, 5
ESTIMATED = 10_000_000
CHECKED = 2_000
SPARK = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}


def make_texts(rows: int) -> tuple[list[str], list[tuple[int, int]]]:
    """Return texts of 8 to 24 words, some of which are frequent, and the planted pairs of positions."""
    chance = random.Random(SEED)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randrange(2, 11))) for _ in range(WORDS)]
    weights = [1 / (rank + 20) for rank in range(WORDS)]
    texts: list[str] = []
    planted: list[tuple[int, int]] = []
    for row in range(rows):
        kind = chance.random()
        if kind < 0.01:
            texts.append(f"this page has moved, and will be found at the new address that the owner gave us: {row}")
        elif kind < 0.16 and row:
            source = chance.randrange(row)
            planted.append((source, row))
            texts.append(texts[source] if kind < 0.06 else _changed(texts[source], chance.choice(words), chance))
        else:
            texts.append(" ".join(chance.choices(words, weights, k=chance.randrange(8, 25))))
    return texts, planted


def _changed(text: str, word: str, chance: random.Random) -> str:
    parts = text.split(" ")
    place = chance.randrange(len(parts))
    return " ".join([*parts[:place], *([word] if chance.random() < 0.7 else []), *parts[place + 1 :]])


def similarity(one: str, other: str) -> float:
    """Return the Jaccard similarity of two texts' shingles."""
    left, right = ({text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1))} for text in (one, other))
    return len(left & right) / len(left | right)


def measure(lake: tiltyard.Lake, rows: int) -> float:
    """Deduplicate so many texts, twice; print what came out, and return the seconds of the first run."""
    texts, planted = make_texts(rows)
    table = lake.table(f"texts_{rows}")
    table.ingest(pa.table({"id": range(rows), "text": texts}))
    run, seconds = _run(table)
    found = table.to_arrow(columns=["id", "duplicate_of"]).sort_by("id")["duplicate_of"].to_pylist()
    group = [row if head is None else head for row, head in enumerate(found)]
    alike = [pair for pair in planted if similarity(texts[pair[0]], texts[pair[1]]) >= THRESHOLD]
    recall = sum(group[one] == group[other] for one, other in alike) / len(alike)
    precision = _precision(texts, found, group)
    figures = ", ".join(f"{run.figures[name]} {name}" for name in ("compared", "alike", "groups", "duplicates"))
    print(f"{rows:,} texts: {seconds:.1f} s, {rows / seconds:,.0f} rows/s; {figures}")
    print(f"    recall {recall:.4f} of {len(alike):,} planted pairs, precision {precision:.4f}")
    added = max(1, rows // 100)
    more = [_changed(text, "anew", random.Random(row)) for row, text in enumerate(texts[:added])]
    table.write(pa.table({"id": range(rows, rows + added), "text": more}))
    run, again = _run(table)
    print(f"    again with {added:,} more: {again:.1f} s, {run.figures['hashed']} hashed", flush=True)
    return seconds


def _run(table: tiltyard.Table) -> tuple[Any, float]:
    began = time.perf_counter()
    run = table.deduplicate("text", id="id", threshold=THRESHOLD)
    return run, time.perf_counter() - began


def _precision(texts: list[str], found: list[int | None], group: list[int]) -> float:
    members: dict[int, list[int]] = defaultdict(list)
    for row, head in enumerate(group):
        members[head].append(row)
    duplicates = [row for row, head in enumerate(found) if head is not None]
    checked = random.Random(SEED).sample(duplicates, min(CHECKED, len(duplicates)))
    right = 0
    for row in checked:
        others = (other for other in members[group[row]] if other != row)
        right += any(similarity(texts[row], texts[other]) >= THRESHOLD for other in others)
    return right / len(checked)


def main() -> None:
    """Measure each size, in a new catalog, and estimate."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.deduplicate", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[250_000, 1_000_000], help="rows, the smallest first")
    parser.add_argument("--master", default="local[2]", help="where Spark runs [default: local[2]]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        lake = tiltyard.connect(Path(folder) / "root", master=arguments.master, conf=SPARK)
        lake.spark.range(10).count()  # the session's start is no part of a run
        times = [measure(lake, rows) for rows in arguments.sizes]
    if len(times) > 1:
        (small, large), (first, last) = arguments.sizes[-2:], times[-2:]
        power = max(1.0, math.log(last / first) / math.log(large / small))
        estimate = last * (ESTIMATED / large) ** power
        print(
            f"{ESTIMATED:,} texts: {estimate / 60:.0f} min, estimated: times grow by rows to the power of {power:.2f}"
        )


if __name__ == "__main__":
    main()
