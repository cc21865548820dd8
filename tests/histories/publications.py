"""Publications over lists, of many clients at once: what each reads and appends, and what it is told.

    python -m tests.histories.publications --runs 5

prints which anomalies each isolation had, without faults; `test_histories.py` has the faults.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

import tiltyard
from tests.histories.anomalies import Append, Outcome, Read, Transaction, find_anomalies
from tiltyard.publishing import Isolation

ALLOWED: Mapping[str, frozenset[str]] = {
    "serializable": frozenset(),
    "snapshot": frozenset({"G-single", "G2-item", "G-single-realtime", "G2-item-realtime"}),
}
"""Which anomalies each isolation may have."""
FAILED = (LanceNamespaceError, OSError, RuntimeError, ValueError)
"""What a call through pylance raises if its server is killed, say."""


@dataclass(frozen=True, slots=True)
class Lists:
    """Tables as lists, which are published by an isolation; `headers` are what the server requires of clients."""

    names: Sequence[Sequence[str]]
    isolation: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    values: Iterator[int] = field(default_factory=count)

    def make(self, client: Any) -> None:
        """Create all lists, empty."""
        for name in self.names:
            self._write(client, name, "create")

    def read_all(self, client: Any) -> dict[str, list[int]]:
        """Return all lists as they are."""
        return {name[-1]: self._read(client, name).values for name in self.names}  # type: ignore[misc]  # they are lists

    def publish(self, client: Any, source: random.Random) -> Transaction:
        """Publish once: read one or two lists, append to one or two, which may be among them, and read one again."""
        entry = Transaction(begin=time.monotonic_ns(), outcome=Outcome.REFUSED)
        ended = False
        try:
            with tiltyard.publish(client, isolation=self.isolation, headers=self.headers) as tables:
                for name in source.sample(self.names, source.randint(1, 2)):
                    entry.steps.append(self._read(tables, name))
                for name in source.sample(self.names, source.randint(1, 2)):
                    for _ in range(source.choice((1, 1, 2))):
                        entry.steps.append(self._append(tables, name))
                if source.random() < 0.3:
                    entry.steps.append(self._read(tables, source.choice(self.names)))
                ended = True
            entry.outcome = Outcome.PUBLISHED
        except tiltyard.PublishUncertainError:
            entry.outcome = Outcome.UNKNOWN
        except FAILED as error:
            if ended and not isinstance(error, LanceNamespaceError):
                raise  # the end of a block says how it ended
        entry.end = time.monotonic_ns()
        return entry

    def read_in_turn(self, client: Any, source: random.Random) -> list[Transaction]:
        """Read two lists one after the other, without a publication: each read is a transaction of its own."""
        entries = []
        for name in source.sample(self.names, 2):
            begin = time.monotonic_ns()
            try:
                read = self._read(client, name)
            except FAILED:
                break
            entries.append(Transaction([read], begin=begin, end=time.monotonic_ns()))
        return entries

    def _read(self, client: Any, name: Sequence[str]) -> Read:
        dataset = lance.dataset(namespace_client=client, table_id=list(name))
        return Read(name[-1], dataset.to_table()["value"].to_pylist())

    def _append(self, client: Any, name: Sequence[str]) -> Append:
        value = next(self.values)
        self._write(client, name, "append", value)
        return Append(name[-1], value)

    def _write(self, client: Any, name: Sequence[str], mode: str, *values: int) -> None:
        rows = pa.table({"value": pa.array(values, pa.int64())})
        lance.write_dataset(rows, namespace_client=client, table_id=list(name), mode=mode)


def judge_publications(
    lists: Lists, history: Sequence[Transaction], final: Mapping[str, Sequence[int]]
) -> Counter[str]:
    """Return the anomalies that the isolation of these lists has to exclude; none if all is well.

    Whatever publications may read, what they append appears at once, and for good, to who reads in turn.
    """
    found = find_anomalies(history, final)
    blind = find_anomalies([entry.without_reads() if entry.appends else entry for entry in history], final)
    wrong = {name: number for name, number in found.items() if name not in ALLOWED[lists.isolation]}
    return Counter(wrong) + Counter({f"{name} of appends": number for name, number in blind.items()})


def run_history(
    client: Any, lists: Lists, threads: int, transactions: int, seed: int
) -> tuple[list[Transaction], dict[str, list[int]]]:
    """Run random publications at once; return their history, and the lists in the end."""
    lists.make(client)

    def work(thread: int) -> list[Transaction]:
        source, entries = random.Random(f"{seed} {thread}"), list[Transaction]()
        for _ in range(transactions):
            entries.append(lists.publish(client, source))
            entries += lists.read_in_turn(client, source) if source.random() < 0.3 else []
        return entries

    with ThreadPoolExecutor(threads) as pool:
        history = [entry for entries in pool.map(work, range(threads)) for entry in entries]
    return history, lists.read_all(client)


def main() -> None:
    """Run histories by each isolation, in process, and print a table of what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="histories by each isolation [default: 5]")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--transactions", type=int, default=25, help="of each thread [default: 25]")
    arguments = parser.parse_args()
    for isolation in Isolation:
        found, outcomes = Counter[str](), Counter[Outcome]()
        for seed in range(arguments.runs):
            with tempfile.TemporaryDirectory() as root, tiltyard.Namespace(root, jobs=0) as client:
                lists = Lists([[f"list{number}"] for number in range(4)], isolation)
                history, final = run_history(client, lists, arguments.threads, arguments.transactions, seed)
            found += find_anomalies(history, final)
            outcomes.update(entry.outcome for entry in history if entry.appends)
        said = ", ".join(f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome)
        print(f"{isolation}: {said}; {dict(found) or 'no anomaly'}", flush=True)  # noqa: T201  # it is a command


if __name__ == "__main__":
    main()
