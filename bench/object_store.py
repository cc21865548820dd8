"""Count the requests of each operation to an object store: `python -m bench.object_store`.

Tiltyard, pylance embedded (in this process) and RestAdapter keep the same tables in one bucket of moto's S3, behind a
proxy that delays each request by 30 ms. For each operation, on tables that were read before, the table has medians of

- round trips: the longest chain of requests of which each began after the one before it had ended, among those that
  ended before the response came: what latency costs;
- requests: all of them, with those that go on behind the response: what the store bills;
- milliseconds until the response.

Counts do not depend on the machine; of an operation by a stock client they are its server's alone. `LANCE_LOG=error`
leaves out pylance's warnings of commits that are staged on purpose.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from tests.services.s3 import s3_server
from tests.services.server import ServerProcess

from bench import servers
from bench.load import Address
from bench.object_store_subjects import Embedded, Managed, Served, Subject, rows
from bench.s3_proxy import Request, S3Proxy, sequential_round_trips

CALLERS = 8
VERSIONS = 7
TAGS = 2
BATCH = 3, 6
"""Tables of a BatchCommitTables: its cost is to be the same."""
SMALL, LARGE = 100, 4_096
SERVER, CLIENT = "server", "client"
"""Access keys, by which the proxy knows who asks."""
SETTLING_SECONDS = 0.7
"""After the last write of a preparation: by then Tiltyard has marked its versions as final in the catalog."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Figure:
    """What one run of an operation cost."""

    round_trips: int
    requests: list[Request]
    milliseconds: float


class Meter:
    """Runs operations and counts what the proxy sees of them."""

    def __init__(self, proxy: S3Proxy, delay: float) -> None:
        self._proxy, self._delay = proxy, delay

    def run(self, work: Callable[[], object], access_key: str) -> Figure:
        """Run once, with the delay; count the requests of one key."""
        time.sleep(SETTLING_SECONDS)
        self._proxy.drain()
        self._proxy.delay = self._delay
        started_at = time.perf_counter()
        work()
        ended_at = time.perf_counter()
        time.sleep(0.1)  # for what begins behind the response
        requests = self._proxy.drain(access_key)
        self._proxy.delay = 0.0
        waited_for = [request for request in requests if request.ended_at <= ended_at]
        return Figure(sequential_round_trips(waited_for), requests, 1000 * (ended_at - started_at))


@dataclass(frozen=True, slots=True)
class Operation:
    """A line of the table: from a subject, a function that prepares a run, without the delay, and returns it."""

    name: str
    prepare: Callable[[Any], Callable[[], object]]
    of_managed_tables: bool = False
    """Whether only Tiltyard has it."""


def _new(subject: Subject, versions: int = 1) -> str:
    """Return a new table of some versions that was read before."""
    table = f"t{next(_numbers)}"
    subject.create(table, rows(SMALL))
    for number in range(1, versions):
        subject.insert(table, rows(1, SMALL + number))
    subject.equal(table, 1)
    return table


def _insert_by_many(subject: Subject) -> Callable[[], object]:
    table = _new(subject, 2)

    def work() -> object:
        with ThreadPoolExecutor(CALLERS) as pool:
            return list(pool.map(lambda number: subject.insert(table, rows(1, 1_000 + number)), range(CALLERS)))

    return work


def _tag(subject: Subject) -> Callable[[], object]:
    table = _new(subject, 2)
    for number in range(TAGS):
        subject.create_tag(table, f"tag-{number}")
    subject.equal(table, 1)
    return lambda: subject.create_tag(table, "new")


def _batch(tables: int) -> Callable[[Managed], Callable[[], object]]:
    def prepare(subject: Managed) -> Callable[[], object]:
        requests = [subject.stage(_new(subject, 2), rows(1, 1_000)) for _ in range(tables)]
        return lambda: subject.commit_batch(requests)

    return prepare


def _client_append(subject: Managed) -> Callable[[], object]:
    table = _new(subject, 2)
    subject.append_as_client(table, rows(1, 500))
    return lambda: subject.append_as_client(table, rows(1, 501))


def _on_new(versions: int, work: Callable[[Any, str], object]) -> Callable[[Any], Callable[[], object]]:
    """Prepare an operation on a new table of some versions."""

    def prepare(subject: Subject) -> Callable[[], object]:
        table = _new(subject, versions)
        return lambda: work(subject, table)

    return prepare


def _on_indexed(work: Callable[[Any], object]) -> Callable[[Any], Callable[[], object]]:
    """Prepare a query of the table with indexes, by another one just like it."""

    def prepare(subject: Subject) -> Callable[[], object]:
        work(subject)
        return lambda: work(subject)

    return prepare


INDEXED = "indexed"

OPERATIONS = [
    Operation("describe", _on_new(2, lambda subject, table: subject.describe(table))),
    Operation("list_tables", _on_indexed(lambda subject: subject.list_tables())),
    Operation(f"create {SMALL} rows", lambda subject: lambda: subject.create(f"t{next(_numbers)}", rows(SMALL))),
    Operation("insert 1 row", _on_new(2, lambda subject, table: subject.insert(table, rows(1, 1_000)))),
    Operation(f"{CALLERS} callers insert 1 row each", _insert_by_many),
    Operation("nearest 10, flat", _on_indexed(lambda subject: subject.nearest(INDEXED, "plain"))),
    Operation("nearest 10, IVF_PQ", _on_indexed(lambda subject: subject.nearest(INDEXED, "vector"))),
    Operation("id = n, BTREE", _on_indexed(lambda subject: subject.equal(INDEXED, 7))),
    Operation("update 1 row", _on_new(2, lambda subject, table: subject.update(table, 7))),
    Operation("delete 1 row", _on_new(2, lambda subject, table: subject.delete(table, 7))),
    Operation("merge 2 rows, 1 new", _on_new(2, lambda subject, table: subject.merge(table, rows(2, SMALL)))),
    Operation(f"create a tag, {TAGS} there", _tag),
    Operation(f"list {VERSIONS} versions", _on_new(VERSIONS, lambda subject, table: subject.list_versions(table))),
    Operation("append by pylance's managed client", _client_append, of_managed_tables=True),
    *(Operation(f"BatchCommitTables, {tables} tables", _batch(tables), of_managed_tables=True) for tables in BATCH),
]


def _cell(figures: list[Figure]) -> str:
    trips = median(figure.round_trips for figure in figures)
    requests = median(len(figure.requests) for figure in figures)
    return f"{trips:g} · {requests:g} · {median(figure.milliseconds for figure in figures):.0f}"


def _detail(figure: Figure) -> str:
    """Return the requests of a run in the order in which they ended."""
    start = min((request.started_at for request in figure.requests), default=0.0)
    requests = sorted(figure.requests, key=lambda request: request.ended_at)
    return ", ".join(
        f"{request.method} {request.kind} {1000 * (request.started_at - start):.0f}-"
        f"{1000 * (request.ended_at - start):.0f}"
        for request in requests
    )


def measure(subjects: dict[str, Subject], meter: Meter, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| operation | {' | '.join(subjects)} |"
    yield f"|---|{'---|' * len(subjects)}"
    for operation in OPERATIONS:
        if arguments.operations and not any(name in operation.name for name in arguments.operations):
            continue
        cells = []
        for name, subject in subjects.items():
            if operation.of_managed_tables and not isinstance(subject, Managed):
                cells.append("")
                continue
            key = CLIENT if isinstance(subject, Embedded) else SERVER
            figures = [meter.run(operation.prepare(subject), key) for _ in range(arguments.rounds)]
            cells.append(_cell(figures))
            if arguments.detail:
                kinds = Counter(f"{request.method} {request.kind}" for request in figures[-1].requests)
                yield f"<!-- {name}: {dict(kinds)}: {_detail(figures[-1])} -->"
        yield f"| {operation.name} | {' | '.join(cells)} |"


def _start(stack: ExitStack, proxy: S3Proxy, bucket: str, names: Sequence[str]) -> dict[str, Subject]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-object-store-")))
    fixed = {"aws_secret_access_key": "testing", "aws_region": "us-east-1", "allow_http": "true"}
    options = {**fixed, "aws_access_key_id": SERVER, "aws_endpoint": proxy.url}
    own_options = {**options, "aws_access_key_id": CLIENT}
    os.environ.update({name.upper(): value for name, value in own_options.items()})  # for what stock clients open
    subjects: dict[str, Subject] = {}
    if "tiltyard" in names:
        environ = {"TILTYARD_STORAGE_OPTIONS": json.dumps(options)}
        database = f"sqlite:///{folder / 'catalog.db'}"
        server = ServerProcess(f"{bucket}/tiltyard", "--db", database, environ=environ, forked=False)
        stack.callback(server.stop)
        host, _, port = server.url.removeprefix("http://").partition(":")
        subjects["Tiltyard"] = Managed(Address(host, int(port)), own_options)
    if "embedded" in names:
        subjects["pylance embedded"] = Embedded(f"{bucket}/embedded", own_options)
    if "restadapter" in names:
        peer = servers.peer(f"{bucket}/peer", folder / "peer.log", session=True, options=options)
        stack.callback(peer.stop)
        subjects["RestAdapter"] = Served(peer.address)
    return subjects


def main() -> None:
    """Measure all subjects and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.object_store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operations", nargs="*", help="parts of names of operations [default: all]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds that each request takes longer")
    parser.add_argument("--subjects", nargs="+", default=["tiltyard", "embedded", "restadapter"])
    parser.add_argument("--detail", action="store_true", help="print the requests of each last run")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        store = stack.enter_context(s3_server())
        bucket = store.new_bucket("bench")
        proxy = stack.enter_context(S3Proxy(store.endpoint))
        subjects = _start(stack, proxy, bucket, arguments.subjects)
        for subject in subjects.values():
            subject.create(INDEXED, rows(LARGE))
            subject.index(INDEXED)
        for line in measure(subjects, Meter(proxy, arguments.delay), arguments):
            print(line, flush=True)


if __name__ == "__main__":
    main()
