"""Start job commands, wait for a condition, and look up jobs and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance_namespace_urllib3_client as generated

from tests.services.server import ServerProcess


def wait_for(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """Return what a condition returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
    return result


def transaction(server: ServerProcess, job_id: str) -> generated.DescribeTransactionResponse:
    """Describe a job through upstream's own client."""
    client = generated.ApiClient(generated.Configuration(host=server.url))
    return generated.TransactionApi(client).describe_transaction(job_id, generated.DescribeTransactionRequest())


def all_steps(number: int) -> list[str]:
    """Return what a toy job with so many steps logs."""
    return [*(f"step {step}" for step in range(number)), "commit"]


def children(parent: int) -> list[tuple[int, str]]:
    """Return the child processes of a process, with their command lines."""
    started = [int(pid) for file in Path(f"/proc/{parent}/task").glob("*/children") for pid in file.read_text().split()]
    return [(pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")) for pid in started]


@contextmanager
def job_commands(url: str, environ: Mapping[str, str], *options: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `tiltyard job …` with these options, on this server unless --uri names another; kill it at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        uri = () if "--uri" in arguments else ("--uri", url)
        line = [sys.executable, "-m", "tiltyard", "job", *arguments, *uri, *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()
