"""What a change feed costs: `python -m bench.changes`.

A table of ten million rows in ten files: a commit updates every ten-thousandth row, another deletes some more, and a
compaction follows. The changes of all versions are read, by tables whose rows are known by stable ids, by a key, and by
neither. The goal is one second for a thousand changed rows. Wall and processor time are medians of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import lance
import numpy as np
import pyarrow as pa

import tiltyard

KINDS = ("stable row ids", "key", "neither")
GOAL_SECONDS = 1.0


def make_table(lake: tiltyard.Lake, kind: str, rows: int, changed: int) -> tiltyard.Table:
    """Return a table whose versions after the first one change so many rows, by updates and a deletion."""
    table = lake.table(kind.replace(" ", "_"))
    ids = np.arange(rows)
    data = pa.table({"id": ids, "value": ids * 0.5, "title": np.char.add("title ", (ids % 1000).astype("U"))})
    client = table._table.client
    stable = kind == "stable row ids"
    lance.write_dataset(
        data,
        namespace_client=client,
        table_id=list(table.path),
        max_rows_per_file=-(-rows // 10),
        enable_stable_row_ids=stable,
    )
    dataset, step = table.dataset(), rows // changed
    dataset.update({"value": "value + 1"}, where=f"id % {step} = 5")
    dataset.delete(f"id % {step * 10} = 7")
    dataset.optimize.compact_files(target_rows_per_fragment=2000)
    return table


def read(table: tiltyard.Table, kind: str) -> tuple[float, float, dict[str, int]]:
    """Read the changes once; return the wall and processor time, and the rows by change."""
    began, worked = time.perf_counter(), time.process_time()
    rows = table.changes(1, on="id" if kind == "key" else None).to_arrow()
    seconds = time.perf_counter() - began, time.process_time() - worked
    counts = rows["_change"].value_counts().to_pylist()
    return *seconds, {each["values"]: each["counts"] for each in counts}


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.changes", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of a table [default: 10,000,000]")
    parser.add_argument("--changed", type=int, default=1_000, help="rows that are updated [default: 1,000]")
    parser.add_argument("--rounds", type=int, default=5, help="how often they are read [default: 5]")
    arguments = parser.parse_args()
    print(f"{'rows are known by':16}{'wall':>10}{'cpu':>10}{'goal':>10}  changes")
    with tempfile.TemporaryDirectory() as folder:
        lake = tiltyard.connect(Path(folder) / "root")
        for kind in KINDS:
            table = make_table(lake, kind, arguments.rows, arguments.changed)
            rounds = [read(table, kind) for _ in range(arguments.rounds)]
            wall, cpu = (median(each[number] for each in rounds) for number in (0, 1))
            met = "met" if wall <= GOAL_SECONDS else "missed"
            print(f"{kind:16}{wall:>8.3f} s{cpu:>8.3f} s{met:>10}  {rounds[0][2]}", flush=True)


if __name__ == "__main__":
    main()
