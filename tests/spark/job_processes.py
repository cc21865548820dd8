"""Start job commands, wait for a condition, and look up jobs and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import lance_namespace_urllib3_client as generated

from tests.services.forked_process import ForkedProcess
from tests.services.server import ServerProcess


def wait_for(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """Return what a condition returns, once that is true."""
    began = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, "it did not come to be"
        time.sleep(min(max(0.02, waited / 20), 0.25))  # what is looked at needs the processors, too
    return result


def transaction(server: ServerProcess, job_id: str) -> generated.DescribeTransactionResponse:
    """Describe a job through upstream's own client."""
    return _transactions(server.url).describe_transaction(job_id, generated.DescribeTransactionRequest())


@cache
def _transactions(url: str) -> generated.TransactionApi:
    return generated.TransactionApi(generated.ApiClient(generated.Configuration(host=url)))


def all_steps(number: int) -> list[str]:
    """Return what a toy job with so many steps logs."""
    return [*(f"step {step}" for step in range(number)), "commit"]


def children(parent: int) -> list[tuple[int, str]]:
    """Return the child processes of a process, with their command lines."""
    started = [int(pid) for file in Path(f"/proc/{parent}/task").glob("*/children") for pid in file.read_text().split()]
    return [(pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")) for pid in started]


@contextmanager
def job_commands(url: str, environ: Mapping[str, str], *options: str) -> Iterator[Callable[..., ForkedProcess]]:
    """Start `tiltyard job …` with these options, on this server unless --uri names another; kill it at the end."""
    started: list[ForkedProcess] = []

    def start(*arguments: str) -> ForkedProcess:
        uri = () if "--uri" in arguments else ("--uri", url)
        line = ["job", *arguments, *uri, *options]
        started.append(ForkedProcess(line, {**os.environ, **environ}, Path.cwd()))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
