"""What tests of jobs ask: whether something has come to be, how a job stands, what a toy should have done."""

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


def wait_for(what: Callable[[], Any], seconds: float = 90) -> Any:
    """What a condition gives as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
    return found


def transaction(server: ServerProcess, job_id: str) -> generated.DescribeTransactionResponse:
    """A job through upstream's own client."""
    client = generated.ApiClient(generated.Configuration(host=server.url))
    return generated.TransactionApi(client).describe_transaction(job_id, generated.DescribeTransactionRequest())


def all_steps(number: int) -> list[str]:
    return [*(f"step {step}" for step in range(number)), "commit"]


def children(parent: int) -> list[tuple[int, str]]:
    """The processes that a process has started, with their command lines."""
    started = [int(pid) for told in Path(f"/proc/{parent}/task").glob("*/children") for pid in told.read_text().split()]
    return [(pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")) for pid in started]


@contextmanager
def job_commands(url: str, environ: Mapping[str, str], *options: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `tiltyard job …` with these options, on this server unless another --uri is given; killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        where = () if "--uri" in words else ("--uri", url)
        line = [sys.executable, "-m", "tiltyard", "job", *words, *where, *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()
