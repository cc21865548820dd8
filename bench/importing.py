"""Measure `tiltyard import` against pylance's own write of the same files: `python -m bench.importing`.

A file of the same rows in each format becomes a table: by the command through a server, by the command on a root of its
own, and by `lance.write_dataset` of what pyarrow reads, in a process of its own. All are timed from the start of their
process to its end, so that a command's start counts; they take turns. pyarrow reads CSV and JSON lines with all
processors, and neither compares values with how they are written nor names the line of a bad one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bench import servers

BATCH_ROWS = 50_000
DIRECT = """
import sys, lance, pyarrow as pa, pyarrow.csv, pyarrow.json, pyarrow.parquet
source, target = sys.argv[1:]
if source.endswith(".csv"):
    rows = pyarrow.csv.open_csv(source)
elif source.endswith(".jsonl"):
    rows = pyarrow.json.open_json(source)
else:
    file = pyarrow.parquet.ParquetFile(source)
    rows = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
lance.write_dataset(rows, target)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took: seconds, processor seconds of its process."""

    seconds: float
    cpu_seconds: float


def make_files(folder: Path, megabytes: int) -> dict[str, Path]:
    """Write the same rows in each format, about so many megabytes as CSV; return the files by format."""
    files = {name: folder / f"rows.{name}" for name in ("csv", "jsonl", "parquet")}
    source = random.Random(3)  # for content
    words = [f"{source.getrandbits(40):x}" for _ in range(5_000)]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("x", pa.float64()), ("flag", pa.bool_())])
    first = 0
    with (
        files["csv"].open("wb") as csv_file,
        files["jsonl"].open("w") as lines,
        pyarrow.parquet.ParquetWriter(files["parquet"], schema) as parquet,
        pyarrow.csv.CSVWriter(csv_file, schema) as csv_writer,
    ):
        while csv_file.tell() < megabytes << 20:
            rows = [
                {
                    "id": first + number,
                    "text": " ".join(source.choices(words, k=8)),
                    "x": round(source.random() * 1000, 6),
                    "flag": source.random() < 0.5,
                }
                for number in range(BATCH_ROWS)
            ]
            batch = pa.RecordBatch.from_pylist(rows, schema)
            csv_writer.write_batch(batch)
            parquet.write_batch(batch)
            lines.writelines(json.dumps(row) + "\n" for row in rows)
            first += BATCH_ROWS
    return files


def run(command: list[str], environ: dict[str, str] | None = None) -> Cost:
    """Run a process to its end. Raises CalledProcessError."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **(environ or {})},
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=servers.TREE,
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing", description="Measure imports of files.")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side [default: 3]")
    parser.add_argument("--megabytes", type=int, default=512, help="size of the CSV file [default: 512]")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-importing-")))
        files = make_files(folder, options.megabytes)
        server = servers.tiltyard(folder / "served", folder / "log", 1)
        stack.callback(server.stop)
        url = f"http://{server.address.host}:{server.address.port}"
        environ = {"XDG_STATE_HOME": str(folder / "state")}
        print("| file | MB | through a server | on a root | pylance | ratio | ratio | CPU s: command, pylance |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for name, file in files.items():
            costs: dict[str, list[Cost]] = {"served": [], "root": [], "pylance": []}
            for number in range(options.rounds):
                target = folder / "direct.lance"
                command = ["-m", "tiltyard", "import", str(file), f"rows_{name}", "--overwrite"]
                costs["served"].append(run([*command, "--server", url], environ))
                costs["root"].append(run([*command, "--root", str(folder / f"root{number}")], environ))
                costs["pylance"].append(run(["-c", DIRECT, str(file), str(target)]))
                shutil.rmtree(target)
                shutil.rmtree(folder / f"root{number}")
            size = file.stat().st_size / 1e6
            rates = {side: size / median(cost.seconds for cost in each) for side, each in costs.items()}
            cpu = {side: median(cost.cpu_seconds for cost in each) for side, each in costs.items()}
            figures = " | ".join(f"{rate:,.0f} MB/s" for rate in rates.values())
            ratios = " | ".join(f"{rates[side] / rates['pylance']:.2f}x" for side in ("served", "root"))
            print(
                f"| {name} | {size:,.0f} | {figures} | {ratios} | {cpu['served']:.1f}, {cpu['pylance']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
