"""`tiltyard functions`: the list of ready-made functions, and all about one."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tiltyard.cli import main
from tiltyard.functions import chunk_words, list_functions


def test_functions_are_listed_with_version_and_digest() -> None:
    listed = CliRunner().invoke(main, ["functions", "--format", "json"], catch_exceptions=False)
    rows = {row["name"]: row for row in json.loads(listed.output)}
    assert list(rows) == [function.name for function in list_functions()]
    assert rows["chunk_words"] == {
        "name": "chunk_words",
        "version": 1,
        "digest": chunk_words.digest[:12],
        "takes": "text",
        "arguments": "size=200, overlap=0",
        "result": "list of number, chunk, start, end",
        "needs": "",
    }
    assert rows["embed_text"]["needs"] == "a model and its packages"
    table = CliRunner().invoke(main, ["functions"], catch_exceptions=False).output.splitlines()
    assert len(table) == 1 + len(rows)


def test_a_function_is_shown_with_what_it_does_and_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(main, ["functions", "embed_text", "--format", "json"], catch_exceptions=False)
    details = json.loads(shown.output)
    assert details["about"].startswith("Compute the vectors of texts") and len(details["digest"]) == 64
    assert details["models"].startswith("wordllama, ")
    monkeypatch.setattr("tiltyard.functions.ready_made.find_spec", lambda module: None)
    shown = CliRunner().invoke(main, ["functions", "hash_image"], catch_exceptions=False)
    assert "pillow (missing)" in shown.output


def test_a_missing_function_ends_with_status_4_and_the_names_that_there_are() -> None:
    refused = CliRunner().invoke(main, ["functions", "chunk"])
    assert refused.exit_code == 4
    assert "There is no ready-made function 'chunk': there are chunk_markdown" in refused.stderr
