"""What tests of jobs ask: whether something has come to be, how a job stands, what a toy should have done."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import lance_namespace_urllib3_client as generated

from tests.services.server import ServerProcess


def wait_for(what: Callable[[], Any], seconds: float = 30) -> Any:
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
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    found = [line.split(None, 2) for line in told.splitlines()]
    return [(int(pid), words[0]) for pid, ppid, *words in found if int(ppid) == parent and words]
