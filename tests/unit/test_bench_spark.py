"""What the bench of the pipeline counts: rounds that alternate, and the processor time of all processes of a side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.processor_time import tree_seconds
from bench.results import Result
from bench.spark import changing, peer_rows, peers, rows
from bench.spark.costs import Cost, alternate
from bench.spark.rows import Environment

_WORK = "import time; [None for _ in iter(lambda: time.process_time() < 0.1, False)]"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_WORK!r}]); print(flush=True); input()"


def test_alternate_changes_who_is_first_and_returns_the_medians() -> None:
    seconds = {"ours": [3.0, 1.0, 2.0], "theirs": [4.0, 6.0, 5.0]}
    order: list[str] = []

    def measure(side: str, number: int) -> Cost:
        order.append(side)
        return Cost(seconds[side][number], seconds[side][number] * 2)

    ours, theirs = alternate(3, lambda number: measure("ours", number), lambda number: measure("theirs", number))
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (ours, theirs) == (Cost(2.0, 4.0), Cost(5.0, 10.0))


def test_tree_seconds_counts_children_of_children_that_have_ended() -> None:
    before = tree_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert tree_seconds(os.getpid()) - before > 0.09  # ticks are hundredths, rounded down
        process.communicate(b"\n")


class _Process:
    """A measuring process that takes `seconds` for each order, and always counts as many rows."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.cpu = seconds, seconds * 2

    def ask(self, do: str, **order: Any) -> Any:
        return self.seconds if do != "rows" else [[7]] if "statement" in order else 7

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("row", "ratios"),
    [
        (rows.ingest, ["2.00x"]),
        (rows.frame, ["1.00x"]),
        (rows.read, ["1.00x"]),
        (changing.upsert, ["2.00x"]),
        (changing.backfill, ["2.00x"]),
        (changing.btree, ["1.00x"]),
        (peer_rows.lance_spark, ["3.00x"] * 5),
        (peer_rows.lance_ray, ["3.00x"] * 2),
        (peer_rows.delta, ["3.00x"] * 2),
    ],
)
def test_row_compares_both_sides_in_each_round(
    row: Callable[[Environment], list[Result]], ratios: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = _Process(3.0)
    for module in (rows, changing, peer_rows):
        monkeypatch.setattr(module, "rest", lambda: None)
    monkeypatch.setattr(peers.SparkPeer, "start", lambda *_: peer)
    monkeypatch.setattr(peer_rows, "Process", lambda *_: peer)
    monkeypatch.setattr(peer_rows, "WARM_ROWS", 40)
    environment = Environment(tmp_path, 200, 3, 400)
    environment.__dict__.update(spark=_Process(1.0), single=_Process(2.0))
    results = row(environment)
    assert [result.ratio for result in results] == ratios
    assert all("CPU" in result.ours and "CPU" in result.against for result in results)


def test_row_ends_where_a_side_lost_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(_Process):
        def ask(self, do: str, **order: Any) -> Any:
            return 6 if do == "rows" else super().ask(do, **order)

    monkeypatch.setattr(peer_rows, "rest", lambda: None)
    monkeypatch.setattr(peer_rows, "Process", lambda *_: _Process(3.0))
    environment = Environment(tmp_path, 200, 1, 400)
    environment.__dict__.update(spark=Lossy(1.0))
    monkeypatch.setattr(peer_rows, "WARM_ROWS", 40)
    with pytest.raises(RuntimeError, match="Tiltyard has 6 rows and the other side 7"):
        peer_rows.lance_ray(environment)
