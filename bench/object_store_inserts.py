"""Inserts of one row a second into one table in an object store: `python -m bench.object_store_inserts`.

The bucket is moto's S3 behind a proxy that delays each request by 30 ms; one server of one process. Callers insert one
row after the other, each over a kept connection of its own. What latency costs is milliseconds a commit: round trips
between two commits of the table, and the processor time of all three processes, which share this machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from tests.services.s3 import s3_server
from tests.services.server import ServerProcess

from bench.constants import markdown_table
from bench.load import Address
from bench.object_store_subjects import Served, rows
from bench.s3_proxy import S3Proxy
from bench.wire import call_json, of_table

CALLERS = 1, 8, 64, 256


def latest_version(subject: Served, table: str) -> int:
    """The number of the table's latest version."""
    listed = call_json(subject.address, of_table(table, "version/list?descending=true&limit=1"))
    return int(listed["versions"][0]["version"])


def insert_for(subject: Served, table: str, callers: int, seconds: float) -> tuple[int, float]:
    """Insert for so long; return how many rows were inserted, and the seconds until the last response."""
    ends_at, counts = time.perf_counter() + seconds, [0] * callers

    def call_again(number: int) -> None:
        while time.perf_counter() < ends_at:
            subject.insert(table, rows(1, 1_000_000 * (number + 1) + counts[number]))
            counts[number] += 1

    threads = [threading.Thread(target=call_again, args=(number,)) for number in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.perf_counter() - began


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.object_store_inserts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds that each request takes longer")
    parser.add_argument("--callers", type=int, nargs="+", default=CALLERS)
    arguments = parser.parse_args()
    table = []
    with ExitStack() as stack:
        store = stack.enter_context(s3_server())
        proxy = stack.enter_context(S3Proxy(store.endpoint))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-object-store-")))
        options = {
            "aws_secret_access_key": "testing", "aws_region": "us-east-1", "allow_http": "true",
            "aws_access_key_id": "server", "aws_endpoint": proxy.url,
        }  # fmt: skip
        environ = {"TILTYARD_STORAGE_OPTIONS": json.dumps(options)}
        database = f"sqlite:///{folder / 'catalog.db'}"
        server = ServerProcess(f"{store.new_bucket('bench')}/t", "--db", database, environ=environ, forked=False)
        stack.callback(server.stop)
        host, _, port = server.url.removeprefix("http://").partition(":")
        subject = Served(Address(host, int(port)))
        for callers in arguments.callers:
            name = f"t{callers}"
            subject.create(name, rows(100))
            insert_for(subject, name, callers, 0.5)
            before = latest_version(subject, name)
            proxy.drain()
            proxy.delay = arguments.delay
            inserted, seconds = insert_for(subject, name, callers, arguments.seconds)
            proxy.delay = 0.0
            requests = len(proxy.drain())
            commits = latest_version(subject, name) - before
            figures = inserted / seconds, commits / seconds, 1000 * seconds / commits, requests / commits
            table.append([str(callers), *(f"{figure:,.1f}" for figure in figures)])
            assert call_json(subject.address, of_table(name, "count_rows")) >= 100 + inserted
    heads = ["callers", "inserts/s", "commits/s", "ms a commit", "requests a commit"]
    print(markdown_table(heads, table))


if __name__ == "__main__":
    main()
