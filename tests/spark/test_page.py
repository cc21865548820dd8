"""docs/pipeline.md and docs/deduplicate.md: their examples run, one after the other, as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.services.server import ServerProcess
from tiltyard.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "\n".join((DOCS / page).read_text() for page in ("pipeline.md", "deduplicate.md"))
SHOWN_URL = "http://127.0.0.1:2333"


@pytest.mark.extended
def test_pipeline_page_examples_run_one_after_the_other_against_a_new_server(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = ServerProcess(tmp_path / "served", environ={"TILTYARD_UDFS": "true"})
    names: dict[str, object] = {"__name__": "__main__"}  # as if they were typed
    try:
        for kind, example in re.findall(r"```(python|console)\n(.*?)```", PAGES, re.DOTALL):
            text = example.replace(SHOWN_URL, server.url)
            if kind == "python":
                exec(compile(text, "docs/pipeline.md", "exec"), names)
                continue
            for line in re.findall(r"^\$ tiltyard (.+)$", text, re.MULTILINE):
                done = CliRunner().invoke(main, shlex.split(line), catch_exceptions=False)
                assert done.exit_code == 0, f"{line}\n{done.output}"
    finally:
        server.stop()
