"""The pages of the pipeline, and docs/deduplicate.md: their examples run, one after the other, as they stand."""

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
EXAMPLE = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)
SHOWN_URL = "http://127.0.0.1:2333"


PIPELINE_PAGES = ("pipeline.md", "spark.md", "changes.md", "ingest.md", "table-jobs.md", "views.md")
"""In the order in which the examples of one go on from those of another."""


def run_examples(url: str, *pages: str) -> None:
    """Run the examples of pages against a server."""
    names: dict[str, object] = {"__name__": "__main__"}  # as if they were typed
    found = [(page, *each) for page in pages for each in EXAMPLE.findall((DOCS / page).read_text())]
    for page, kind, example in found:
        text = example.replace(SHOWN_URL, url)
        if kind == "python":
            exec(compile(text, f"docs/{page}", "exec"), names)
            continue
        for line in re.findall(r"^\$ tiltyard (.+)$", text, re.MULTILINE):
            done = CliRunner().invoke(main, shlex.split(line), catch_exceptions=False)
            assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.extended
def test_examples_of_pipeline_pages_run_one_after_the_other_against_a_new_server(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = ServerProcess(tmp_path / "served", environ={"TILTYARD_UDFS": "true"})
    try:
        run_examples(server.url, *PIPELINE_PAGES)
    finally:
        server.stop()


@pytest.mark.extended
def test_deduplicate_page_examples_run_one_after_the_other(spark: SparkSession, shared_server: ServerProcess) -> None:
    run_examples(shared_server.url, "deduplicate.md")
