"""The command: choose rows, run them, print and record what came out."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from bench.results import Result, begin, record
from bench.spark import changing, peer_rows, rows, starting
from bench.spark.peers import DELTA, LANCE_SPARK
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
    "lance-spark": peer_rows.lance_spark,
    "lance-ray": peer_rows.lance_ray,
    "delta": peer_rows.delta,
    "starting": starting.starting,
}
"""In the order they run."""

EPILOG = f"""rows: {", ".join(ROWS)}

{LANCE_SPARK.name} and {DELTA.name} run with the PySpark that each is made for:
the first run puts it, and what Spark fetches from Maven, beside this environment (850 and 650 MB).

examples:
  python -m bench.spark frame upsert                              two rows, at full size
  python -m bench.spark lance-spark --rows 200000 --dry           small, and RESULTS.md stays as it is
  python -m bench.spark delta --merge-rows 1000000 --dry
"""


def main() -> int:
    """Run rows; status 0 if every target was met."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Measure the pipeline on local[2] against pylance in one process, bare Spark, lance-spark,\n"
        "lance-ray and Delta Lake. Both sides of a row take turns in one run; times are by the clock, beside the\n"
        "processor time of all processes of that side.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="ROW", choices=[*ROWS, []], help="rows to run [default: all]")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the source [default: 2000000]")
    parser.add_argument(
        "--merge-rows", type=int, default=10_000_000, help="rows of the table in the row delta [default: 10000000]"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians count [default: 3]")
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), help="folder that keeps prepared data")
    parser.add_argument("--dry", action="store_true", help=f"leave {FILE.name} as it is")
    arguments = parser.parse_args()
    settings = f"{arguments.rows:,} rows, {arguments.rounds} rounds, medians; PySpark {version('pyspark')}"
    run = begin(" ".join(["python -m bench.spark", *arguments.names]), settings)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        environment = Environment(
            arguments.work or Path(folder), arguments.rows, arguments.rounds, arguments.merge_rows
        )
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
