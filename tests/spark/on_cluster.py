"""Functions that jobs run on a cluster: they write down who ran them, wait to be let go, and die once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FOLDER = "TILTYARD_TEST_FOLDER"
"""The variable that names where to write down."""


def _note(what: str) -> list[str]:
    """Write down an executor's folder and what it does; who did the same so far."""
    folder = Path(os.environ[FOLDER])
    with (folder / "notes").open("a") as file:
        file.write(f"{Path.cwd()} {what}\n")
    return [line.split(" ", 1)[0] for line in notes(folder) if line.endswith(f" {what}")]


def notes(folder: Path) -> list[str]:
    """All that was written down: an executor's folder and what it did."""
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def _until(done: Path) -> None:
    deadline = time.monotonic() + 150
    while not done.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(str(done))
        time.sleep(0.02)


def passed_by(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows. The task with the row 0 stands still at first, until a copy of it has overtaken it."""
    first = rows["id"][0].as_py()
    others = _note(f"ingest {first}")
    if first == 0:
        copied = Path(os.environ[FOLDER]) / "copied"
        if len(others) > 1:
            copied.touch()
        _until(copied)
    return rows


def held(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, from the last third only once the file `go` is there."""
    _note(f"held {rows['id'][0].as_py()}")
    if rows["id"][0].as_py() >= 2000:
        _until(Path(os.environ[FOLDER]) / "go")
    return rows


def doubled(rows: pa.RecordBatch) -> pa.Array:
    """Twice the first column; the first worker to be asked is killed."""
    if len(_note("double")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return pc.multiply(rows.column(0), 2)
