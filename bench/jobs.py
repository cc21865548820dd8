"""The description of jobs, which clients poll while they wait."""

from __future__ import annotations

import time
from itertools import cycle

from bench import data
from bench.environment import Environment
from bench.results import Result
from bench.rounds import Side
from bench.wire import call, call_json, of_table, post

JOBS = 100
TARGET = 5_000
"""Descriptions a second."""


def describe_job(environment: Environment) -> list[Result]:
    """DescribeJobState over 100 jobs that have ended."""
    server = environment.catalog[0].server
    bodies = [{"job_id": _dropped(environment, number)} for number in range(JOBS)]
    requests = cycle([post("/v1/jobs/describe", body) for body in bodies])
    side = Side(server)
    for _ in range(environment.rounds):
        side.take(lambda: requests, environment.load())
    what = f"state of a job, {JOBS} jobs, 32 connections"
    ratio = side.rate / TARGET
    return [Result("job", what, f"{TARGET:,}/s", side.words(), "—", f"{ratio:.2f}x", ratio >= 1)]


def _dropped(environment: Environment, number: int) -> str:
    """Return the id of a job that has ended."""
    address, name = environment.catalog[0].server.address, data.in_namespace(f"job-{number}-{time.monotonic_ns()}")
    call(address, "POST", of_table(name, "declare"), b"{}")
    return str(call_json(address, of_table(name, "drop"))["transaction_id"])
