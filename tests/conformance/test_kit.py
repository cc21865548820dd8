"""`tiltyard-conformance`, run against this server and another one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lance.namespace import RestAdapter

from tests.services.forked_process import run_tiltyard
from tiltyard_conformance.report import failures, markdown, run_cases, summary

OPERATIONS = ("CreateNamespace", "CreateTable", "CountTableRows", "TableExists", "RenameTable")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_tiltyard(*arguments, module="tiltyard_conformance")


def test_command_prints_a_table_and_ends_with_status_0_where_all_works(server: Any) -> None:
    only = [argument for name in OPERATIONS for argument in ("--only", name)]
    ended = run(server.url, *only, "--header", "x-api-key=none")
    assert ended.returncode == 0, ended.stderr
    assert "| CountTableRows | works | works | works |" in ended.stdout
    assert "5 of 5 operations work; in the contract fail: none." in ended.stdout
    as_json = run(server.url, "--only", "CreateTable", "--json")
    assert json.loads(as_json.stdout) == {"CreateTable": ["works", "works", "works"]}


def test_failures_of_another_server_are_named(tmp_path: Path) -> None:
    with RestAdapter("dir", {"root": str(tmp_path)}, port=0) as adapter:
        outcomes = run_cases(f"http://127.0.0.1:{adapter.port}", only=OPERATIONS)
    assert failures(outcomes) == ["RenameTable"]
    assert "not implemented" in summary(outcomes["RenameTable"]) and ".rs" not in summary(outcomes["RenameTable"])
    assert "| CreateTable | works |" in markdown({"it": {name: summary(cells) for name, cells in outcomes.items()}})
