"""What a refresh of a view costs after a few rows changed: `python -m bench.views`.

Three views of a table: its rows, a join with a small table, and its groups. In each round an upsert updates a thousand
rows, and a deletion removes as many; then each view is refreshed, incrementally and (`full`) from all rows, by turns.
Wall times are medians of the rounds; the first round, in which Spark compiles, does not count.
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

CHANGED = 1000
SPARK = {"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
VIEWS = {
    "rows": "SELECT id, upper(title) AS title, price FROM films WHERE price > 10",
    "join": "SELECT f.id, r.name, f.price FROM films f JOIN regions r ON f.region = r.region",
    "groups": "SELECT customer, count(*) AS n, sum(price) AS total, avg(price) AS mean FROM films GROUP BY customer",
}


def make_rows(ids: np.ndarray, price: float | None = None) -> pa.Table:
    """Return rows of these ids; without a price, each has one of its own."""
    return pa.table(
        {
            "id": ids,
            "customer": ids % 100_000,
            "region": pa.array(ids % 50).cast(pa.string()),
            "price": np.full(len(ids), price) if price else (ids % 1000) / 4,
            "title": np.char.add("a film of the number ", ids.astype("U")),
        }
    )


def change_rows(table: tiltyard.Table, number: int) -> None:
    """Update some rows of the table and delete others, each round those of its own."""
    first = number * 2 * CHANGED
    table.upsert(make_rows(np.arange(first, first + CHANGED), price=99.5), on="id")
    table.delete(f"id >= {first + CHANGED} AND id < {first + 2 * CHANGED}")


def refresh(view: tiltyard.View, *, full: bool) -> float:
    """Refresh a view; return the seconds that it took. Raises RuntimeError if it was refreshed in another way."""
    began = time.perf_counter()
    run = view.refresh(full=full or None)
    seconds = time.perf_counter() - began
    if (run.figures["mode"] == "full") != full:
        raise RuntimeError(f"{view.name}: {run.figures['mode']}, for {run.figures['reason']}.")
    return seconds


def main() -> None:
    """Print a table of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.views", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="rows of the table [default: 3,000,000]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count [default: 3]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = tiltyard.connect(Path(folder) / "root", master="local[2]", conf=SPARK)
        films = lake.table("films")
        films.ingest(make_rows(np.arange(arguments.rows)))
        regions = [str(number) for number in range(50)]
        lake.table("regions").ingest(pa.table({"region": regions, "name": [f"region {name}" for name in regions]}))
        views = {name: lake.create_view(f"view_{name}", sql) for name, sql in VIEWS.items()}
        for view in views.values():
            view.refresh()
        seconds: dict[tuple[str, bool], list[float]] = {(name, full): [] for name in views for full in (False, True)}
        for number in range(1 + arguments.rounds):
            change_rows(films, number)
            for (name, full), taken in seconds.items():
                taken.append(refresh(views[name], full=full))
    print(f"{'view':10}{'incremental':>12}{'full':>10}{'ratio':>8}")
    for name in views:
        incremental, full = (median(seconds[name, is_full][1:]) for is_full in (False, True))
        print(f"{name:10}{incremental:>10.2f} s{full:>8.2f} s{full / incremental:>7.1f}x")


if __name__ == "__main__":
    main()
