"""The command: choose rows, run them, print and record what came out."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from bench.results import Result, begin, record
from bench.spark import changing, rows
from bench.spark.rows import Environment

FILE = Path(__file__).parent / "RESULTS.md"
ROWS: dict[str, Callable[[Environment], list[Result]]] = {
    "ingest": rows.ingest,
    "frame": rows.frame,
    "read": rows.read,
    "upsert": changing.upsert,
    "backfill": changing.backfill,
    "btree": changing.btree,
    "ivf_pq": changing.ivf_pq,
    "scaling": rows.scaling,
    "memory": rows.memory,
}
"""In the order they run."""


def main() -> int:
    """Run rows; status 0 if every target was met."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Measure the pipeline on local[2] against pylance in one process, and against bare Spark.",
        epilog="rows: " + ", ".join(ROWS) + "\n\nexample: python -m bench.spark ingest read --rows 200000 --dry",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="ROW", choices=[*ROWS, []], help="rows to run [default: all]")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the source [default: 2000000]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians count [default: 3]")
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), help="folder that keeps prepared data")
    parser.add_argument("--dry", action="store_true", help=f"leave {FILE.name} as it is")
    arguments = parser.parse_args()
    settings = f"{arguments.rows:,} rows, {arguments.rounds} rounds, medians; PySpark {version('pyspark')}"
    run = begin(" ".join(["python -m bench.spark", *arguments.names]), settings)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        environment = Environment(arguments.work or Path(folder), arguments.rows, arguments.rounds)
        with environment.stack:
            for name in [name for name in ROWS if not arguments.names or name in arguments.names]:
                for result in ROWS[name](environment):
                    print(f"{result.what}: {result.ratio} (target: {result.target}) {result.verdict}")
                    print(f"    Tiltyard {result.ours}\n    {result.against}", flush=True)
                    results.append(result)
    if not arguments.dry:
        record(results, run, list(ROWS), FILE)
    return 0 if all(result.met is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
