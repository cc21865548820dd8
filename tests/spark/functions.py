"""Functions that backfills run in Spark's Python workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def doubled(rows: pa.RecordBatch) -> pa.Array:
    """Twice the first column."""
    return pc.multiply(rows.column(0), 2)


def tripled(rows: pa.RecordBatch) -> pa.Array:
    """Three times the first column."""
    return pc.multiply(rows.column(0), 3)


def failing(rows: pa.RecordBatch) -> pa.Array:
    """Fail."""
    raise ValueError("no idea")


def few(rows: pa.RecordBatch) -> pa.Array:
    """The first column, for the first fragments of a table; it fails for later ones, when those are there."""
    if rows.column(0)[0].as_py() >= 750:
        time.sleep(3)
        raise ValueError("too many")
    return rows.column(0)


class Late:
    """A function in a file that works when it is tried on a few rows, and then does what `do` sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def do(self, step: str) -> None:
        """Set what the function does from now on: `wait`, `fail`, or (empty) its work."""
        (self.folder / "step").write_text(step)

    def waits(self) -> bool:
        """Return whether the function waits, now or within a minute; False once `do` sets another step."""
        ends = time.monotonic() + 60
        while (self.folder / "step").read_text() == "wait" and time.monotonic() < ends:
            if (self.folder / "waiting").exists():
                return True
            time.sleep(0.05)
        return False

    def write(self) -> str:
        """Write the file; return the function's name, as --udf takes it."""
        file = self.folder / "late.py"
        file.write_text(f"""
import pathlib, time
import pyarrow.compute as pc

def late(rows):
    here = pathlib.Path({str(self.folder)!r})
    step = (here / "step").read_text()
    if rows.num_rows > 16 and step == "fail":
        raise ValueError("later")
    if rows.num_rows > 16 and step == "wait":
        (here / "waiting").touch()
        time.sleep(1)
    return pc.multiply(rows.column(0), 2)
""")
        return f"{file}:late"


class Counting:
    """Double the first column, and log the number of rows in a folder. The first worker may be killed."""

    def __init__(self, folder: Path, *, kill: bool = False) -> None:
        self.folder, self.kill = folder, kill

    def __call__(self, rows: pa.RecordBatch) -> Any:
        if self.kill and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (self.folder / "rows").open("a") as file:
            file.write(f"{rows.num_rows}\n")
        return doubled(rows)

    def seen(self) -> int:
        """Return the number of rows since the last call."""
        file = self.folder / "rows"
        count = sum(int(line) for line in file.read_text().split()) if file.exists() else 0
        file.unlink(missing_ok=True)
        return count
