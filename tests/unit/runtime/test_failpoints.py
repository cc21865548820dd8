"""Faults trigger at the points that the variable names, and at no others."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.runtime import failpoints
from tiltyard.runtime.failpoints import Action, Fault, FaultError, Point


def test_reach_without_variable_passes() -> None:
    for point in Point:
        failpoints.reach(point)


def test_parse_of_entries_gives_faults_by_point() -> None:
    faults = failpoints.parse("before_record, after_record=raise,before_answer=hold@/tmp/x")
    assert faults == {
        Point.BEFORE_RECORD: Fault(Action.KILL, None),
        Point.AFTER_RECORD: Fault(Action.RAISE, None),
        Point.BEFORE_ANSWER: Fault(Action.HOLD, Path("/tmp/x")),
    }


@pytest.mark.parametrize("text", ["nowhere", "before_record=explode"])
def test_parse_of_unknown_words_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        failpoints.parse(text)


def test_trigger_with_file_triggers_once(tmp_path: Path) -> None:
    file = tmp_path / "armed"
    fault = Fault(Action.RAISE, file)
    fault.trigger(Point.BEFORE_RECORD)
    file.touch()
    with pytest.raises(FaultError, match="before_record"):
        fault.trigger(Point.BEFORE_RECORD)
    fault.trigger(Point.BEFORE_RECORD)


def test_trigger_unavailable_raises_the_error_of_a_lost_database() -> None:
    with pytest.raises(ServiceUnavailableError):
        Fault(Action.UNAVAILABLE, None).trigger(Point.AFTER_RECORD)


def test_trigger_hold_waits_until_the_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "held"
    file.touch()
    waiting = threading.Thread(target=Fault(Action.HOLD, file).trigger, args=(Point.BEFORE_ANSWER,))
    waiting.start()
    while not (tmp_path / "held.reached").exists():
        assert waiting.is_alive()
    assert waiting.is_alive()
    file.unlink()
    waiting.join(10)
    assert not waiting.is_alive()


def test_reach_with_kill_ends_the_process() -> None:
    code = "from tiltyard.runtime.failpoints import Point, reach; reach(Point.AFTER_FINALIZE); print('alive')"
    environ = {"TILTYARD_FAULT": "after_finalize", "PYTHONPATH": ":".join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False, timeout=30)
    assert (result.returncode, result.stdout) == (-9, b"")


def test_fault_with_a_number_passes_its_point_so_often_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "armed"
    file.write_text("2")
    monkeypatch.setattr(failpoints, "_faults", failpoints.parse(f"after_record=raise@{file}"))
    for _ in range(2):
        failpoints.reach(Point.AFTER_RECORD)
    with pytest.raises(FaultError):
        failpoints.reach(Point.AFTER_RECORD)
    assert (tmp_path / "armed.reached").exists() and not file.exists()


WRITING = """
import os
from pathlib import Path
import tiltyard.runtime.failpoints
from tiltyard.runtime.durability import write_new
folder = Path({folder!r})
(folder / "read").read_bytes()
(folder / "notes").touch()
write_new(folder / "new", b"")
os.replace(folder / "new", folder / "newer")
(folder / "newer").unlink()
"""


def test_point_of_writes_sees_what_python_does_to_files(tmp_path: Path) -> None:
    """Opening a file for writing, renaming and deleting it are writes; reading is none."""
    (tmp_path / "read").touch()
    environ = {"TILTYARD_FAULT": f"write=note@{tmp_path}/notes", "PYTHONPATH": ":".join(filter(None, sys.path))}
    code = WRITING.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=30)
    assert (tmp_path / "notes").read_text().splitlines() == ["runtime.durability:write_new", "", ""]
