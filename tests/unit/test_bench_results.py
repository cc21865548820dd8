"""The table of the bench, written where nothing is installed but what the lock file names."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import results


def test_record_takes_the_place_of_older_rows_and_says_how_they_came(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"
    shutil.copy(results.FILE, file)
    before = file.read_text()
    sides = ("20/s", "peer: 10/s")
    run = results.begin("python -m bench insert", "one round")
    new = [results.at_least("insert", "what", sides, 2.0, 1.5), results.at_most("insert", "p99", sides, 2.0, (1, "ms"))]
    results.record(new, run, ["describe", "insert", "upload"], file)
    text = file.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| insert |")]
    assert rows == [
        f"| insert | what | 1.5x | 20/s | peer: 10/s | 2.00x | yes | {run.seen} |",
        f"| insert | p99 | ≤ 1 ms | 20/s | peer: 10/s | 2.00 ms | **no** | {run.seen} |",
    ]
    assert "- Command: `python -m bench insert` (one round)" in text
    row = [line for line in before.splitlines() if line.startswith("| upload |")]
    assert row and all(line in text for line in row)
