"""docs/lineage.md: its examples run, one after the other, as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs/lineage.md").read_text()


def test_examples_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}  # as if they were typed
    for kind, example in re.findall(r"```(python|console)\n(.*?)```", PAGE, re.DOTALL):
        if kind == "python":
            exec(compile(example, "docs/lineage.md", "exec"), names)
            continue
        for line in re.findall(r"^\$ tiltyard (.+)$", example, re.MULTILINE):
            done = CliRunner().invoke(main, shlex.split(line), catch_exceptions=False)
            assert done.exit_code == 0, f"{line}\n{done.output}"
