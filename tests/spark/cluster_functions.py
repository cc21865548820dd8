"""Functions that jobs run on a cluster: they log their executor, wait for a file, and die once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FOLDER = "TILTYARD_TEST_FOLDER"
"""The variable that names the folder of the log."""


def _note(action: str) -> list[str]:
    """Log an executor's folder and its action; return the executors that have logged this action so far."""
    folder = Path(os.environ[FOLDER])
    with (folder / "notes").open("a") as file:
        file.write(f"{Path.cwd()} {action}\n")
    return [line.split(" ", 1)[0] for line in notes(folder) if line.endswith(f" {action}")]


def notes(folder: Path) -> list[str]:
    """Return all lines of the log: an executor's folder and its action."""
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def _until(done: Path) -> None:
    deadline = time.monotonic() + 150
    while not done.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(str(done))
        time.sleep(0.02)


def passed_by(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows; the task with row 0 waits until a speculative copy of it has started."""
    first = rows["id"][0].as_py()
    hosts = _note(f"ingest {first}")
    if first == 0:
        copied = Path(os.environ[FOLDER]) / "copied"
        if len(hosts) > 1:
            copied.touch()
        _until(copied)
    return rows


def held(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows; those of the last third only once the file `go` exists."""
    _note(f"held {rows['id'][0].as_py()}")
    if rows["id"][0].as_py() >= 2000:
        _until(Path(os.environ[FOLDER]) / "go")
    return rows


def doubled(rows: pa.RecordBatch) -> pa.Array:
    """Double the first column; the first worker is killed."""
    if len(_note("double")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return pc.multiply(rows.column(0), 2)
