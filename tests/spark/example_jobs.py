"""Example jobs that log their steps to a file, installed beside the real ones as another package's would be."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.spark_tasks import run_tasks


def install(folder: Path) -> None:
    """Write the metadata of an installed package with these jobs into `folder`, which belongs on the import path."""
    metadata = folder / "example_jobs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-jobs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tiltyard.jobs]\ntoy = {__name__}\ntoy_on_spark = {__name__}\n")


@job("toy", spark=False, creates=True)
def toy(
    run: Run,
    catalog: Any,
    spark: None,
    folder: Annotated[str, "Where to write down what is done."],
    *,
    table: Annotated[str | None, "A table that it works on."] = None,
    steps: Annotated[int, "How many steps."] = 5,
    pause: Annotated[float, "Seconds that a step takes."] = 0.0,
    hold: Annotated[int | None, "A step that begins only once the file `go` is in the folder."] = None,
    broken: Annotated[bool, "Whether it fails at its end."] = False,
    udf: Annotated[str | None, "Code of the client's; it is not run."] = None,
) -> Mapping[str, object]:
    """Go through steps, each once in all drivers together, then commit."""
    log = Path(folder)
    run.progress(rows=len(run.checkpoints()), rows_total=steps)
    for step in range(steps):
        if str(step) in run.checkpoints():
            continue
        while step == hold and not (log / "go").exists():
            run.check()
            time.sleep(0.01)
        time.sleep(pause)
        run.check()
        _log(log, f"step {step}")
        run.save_checkpoint(str(step), "{}")
        run.progress(rows=step + 1)
    if broken:
        raise InvalidInputError("The toy is broken: take another.")
    run.check()
    _log(log, "commit")
    return {"rows": steps}


@job("toy_on_spark")
def toy_on_spark(
    run: Run, catalog: Any, spark: Any, folder: Annotated[str, "Where to write down what is done."]
) -> Mapping[str, object]:
    """Count on Spark, and in tasks."""
    run.check()
    rows = spark.range(1_000).count()
    assert run_tasks(spark, run, len, ["a", "bb"], name="length") == [1, 2]
    _log(Path(folder), f"application {spark.sparkContext.applicationId}")
    return {"rows": rows, "shuffles": spark.conf.get("spark.sql.shuffle.partitions")}


def _log(log: Path, text: str) -> None:
    with (log / "log").open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def logged_steps(folder: Path) -> list[str]:
    """Return the logged steps in order, without their processes."""
    log = folder / "log"
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []


def drivers(folder: Path) -> set[int]:
    """Return the processes that logged steps."""
    log = folder / "log"
    return {int(line.split()[0]) for line in log.read_text().splitlines()} if log.exists() else set()
