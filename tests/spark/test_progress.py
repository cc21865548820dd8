"""The progress that a run reports, and the bar that shows it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from tiltyard.pipeline.driver.progress import Figures


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_figures_with_a_total_tell_how_far_and_how_long() -> None:
    clock = Clock()
    figures = Figures(clock)
    figures.set({"stage": "write", "rows": 0, "rows_total": 400})
    assert figures.texts() == {"stage": "write", "rows": "0", "rows_total": "400", "progress": "0.0000"}
    clock.now = 10.0
    figures.set({"rows": 100})
    assert (figures.texts()["progress"], figures.texts()["eta_seconds"]) == ("0.2500", "30")
    figures.set({"rows": 400})
    assert (figures.texts()["progress"], figures.texts()["eta_seconds"]) == ("1.0000", "0")


def test_figures_of_a_resumed_run_judge_its_speed_by_its_own_work() -> None:
    clock = Clock()
    figures = Figures(clock)
    figures.set({"rows": 300, "rows_total": 400})
    assert "eta_seconds" not in figures.texts()
    clock.now = 5.0
    figures.set({"rows": 350})
    assert figures.texts()["eta_seconds"] == "5"


def test_figures_of_a_later_stage_tell_how_far_that_is() -> None:
    figures = Figures()
    figures.set({"rows": 10, "tasks": 2, "tasks_total": 2})
    figures.set({"stage": "match", "looked": 0, "looked_total": 400})
    assert figures.texts()["progress"] == "0.0000"
    figures.set({"looked": 100})
    assert figures.texts()["progress"] == "0.2500"
    figures.set({"stage": "commit"})
    assert figures.texts()["progress"] == "1.0000"


def test_figures_of_a_run_that_has_succeeded_tell_that_all_is_done() -> None:
    figures = Figures()
    figures.set({"stage": "write", "rows": 50, "rows_total": 400})
    assert figures.texts()["progress"] == "0.1250"
    figures.finish({"version": 2})
    done = figures.texts()
    assert (done["progress"], done["eta_seconds"], done["version"], figures.share()) == ("1.0000", "0", "2", 1.0)


def test_figures_without_a_total_tell_no_progress() -> None:
    figures = Figures()
    figures.set({"rows": 5})
    assert figures.texts() == {"rows": "5"}
    figures.set({"rows_total": 0})
    assert figures.texts()["progress"] == "1.0000"


def test_job_command_on_a_terminal_shows_a_bar(environ: dict[str, str], tmp_path: Path) -> None:
    terminal, process_side = pty.openpty()
    arguments = ["job", "toy", str(tmp_path), "--steps", "4", "--hold", "2", "--untracked", "--uri", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tiltyard", *arguments],
        env={**os.environ, **environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=process_side,
    )
    os.close(process_side)
    output = b""
    while process.poll() is None or select.select([terminal], [], [], 0)[0]:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                output += os.read(terminal, 4096)
            except OSError:  # the other side has closed it: that is how a terminal ends
                break
        if b"50%" in output and b"rows 2" in output:
            (tmp_path / "go").touch()
    os.close(terminal)
    assert process.communicate(timeout=60)[0] == b"rows: 4\n"
    assert b"toy" in output and b"100%" in output
