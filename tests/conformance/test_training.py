"""lancedb's permutations and StreamingDataset over `db://`: what a training run reads, and that nobody disturbs it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.permutation import Permutation, PermutationBuilder, Permutations, permutation_builder

from tests.conformance.observations import Driver
from tests.services.server import ServerProcess

ROWS = 240
HERE = Path(__file__).parent
SPLITS = 4


def rows(start: int = 0, count: int = ROWS) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "label": [f"l{number % 3}" for number in ids]})


class Trainer:
    """A process that iterates over StreamingDatasets, with the stand-in for torch."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self.driver = Driver(
            [sys.executable, str(HERE / "drivers/training_calls.py")], {"PYTHONPATH": str(HERE / "stand_in")}, log
        )

    def epochs(self, table: str, *epochs: dict[str, Any], **request: Any) -> list[dict[str, Any]]:
        """Run epochs; of each, the ids of its batches and the state in the end."""
        return epochs_of(self.ask(table, *epochs, **request))

    def ask(self, table: str, *epochs: dict[str, Any], **request: Any) -> dict[str, Any]:
        """Run epochs, to their end or the first pause; return what the trainer says."""
        given = [{"num_splits": SPLITS, "shuffle_seed": 1, "read_batch_size": 16, **epoch} for epoch in epochs]
        return self.driver.ask({"server": self.url, "table": table, "epochs": given, "batch_size": 8, **request})

    def go_on(self) -> dict[str, Any]:
        """End a pause; return what the trainer says next."""
        return self.driver.ask({})


def epochs_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    assert "epochs" in answer, answer
    epochs: list[dict[str, Any]] = answer["epochs"]
    return epochs


@pytest.fixture(scope="module")
def trainer(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = Trainer(server.url, tmp_path_factory.mktemp("trainer") / "log")
    yield trainer
    trainer.driver.close()


@pytest.fixture
def table(remote: Any, fresh: Callable[[str], str]) -> Any:
    """A table of two fragments."""
    table = remote.create_table(fresh("samples"), rows(count=100))
    table.add(rows(100, ROWS - 100))
    return table


Change = Callable[[Any], None]


def ids_of(epoch: dict[str, Any]) -> list[int]:
    return list(chain.from_iterable(epoch["batches"]))


def read(permutation: Permutation) -> list[int]:
    return [row["id"] for batch in permutation.iter(64, skip_last_batch=False) for row in batch]


@pytest.fixture
def change(local_writes: Any) -> Callable[[Any], None]:
    """Change a table as others do: insert, delete, update and compact."""

    def change(table: Any) -> None:
        table.add(rows(1000, 50))
        table.delete("id % 2 = 0")
        table.update(where="id = 7", values={"label": "new"})
        version = table.version
        local_writes.open_table(table.name).optimize()
        assert table.version > version

    return change


SPLIT_WAYS: dict[str, tuple[Callable[[PermutationBuilder], PermutationBuilder], list[int] | None]] = {
    "random": (lambda builder: builder.split_random(ratios=[0.25, 0.75], seed=3), [60, 180]),
    "sequential": (lambda builder: builder.split_sequential(counts=[40, 200]), [40, 200]),
    "hash": (lambda builder: builder.split_hash(["label", "id"], [1, 3], discard_weight=0), None),
    "calculated": (lambda builder: builder.split_calculated("id % 2"), [120, 120]),
}


@pytest.mark.parametrize("way", SPLIT_WAYS)
def test_splits_are_disjoint_and_whole(table: Any, way: str) -> None:
    split, sizes = SPLIT_WAYS[way]
    permutation_table = split(permutation_builder(table)).execute()
    parts = [read(Permutations(table, permutation_table)[number]) for number in range(2)]
    assert all(parts)
    assert sizes in (None, [len(part) for part in parts])
    assert sorted(chain(*parts)) == list(range(ROWS))
    if way == "sequential":
        assert parts[0] == list(range(40))
    if way == "calculated":
        assert {number % 2 for number in parts[1]} == {1}


def test_permutation_of_a_seed_is_one_order_of_the_rows_that_its_filter_has(table: Any) -> None:
    def order(seed: int, predicate: str) -> list[int]:
        shuffled = permutation_builder(table).shuffle(seed=seed).filter(predicate).execute()
        return read(Permutation.from_tables(table, shuffled))

    first = order(5, "label = 'l1'")
    assert first == order(5, "label = 'l1'") != order(6, "label = 'l1'")
    assert first != sorted(first) == list(range(1, ROWS, 3))


def test_permutation_stays_as_it_was_while_others_write(table: Any, change: Change) -> None:
    permutation = Permutation.from_tables(table, permutation_builder(table).shuffle(seed=5).execute())
    before = permutation.__getitems__(list(range(ROWS)))
    change(table)
    assert permutation.__getitems__(list(range(ROWS))) == before
    assert sorted(read(Permutation.from_tables(table, permutation_builder(table).execute()))) == [
        *range(1, ROWS, 2),
        *range(1001, 1050, 2),
    ]


def test_permutation_reads_the_branch_or_the_tag_that_it_was_made_of(remote: Any, table: Any, change: Change) -> None:
    draft = table.branches.create("draft")
    draft.add(rows(1000, 5))
    draft.delete("id < 200")
    table.tags.create("run", table.version)
    table.add(rows(2000, 5))
    tagged = remote.open_table(table.name)
    tagged.checkout("run")
    expected = {draft: [*range(200, ROWS), *range(1000, 1005)], tagged: list(range(ROWS))}
    shuffled = {source: permutation_builder(source).shuffle(seed=5).execute() for source in expected}
    change(table)
    for source, ids in expected.items():
        order = read(Permutation.from_tables(source, shuffled[source]))
        assert sorted(order) == ids != order


def test_rows_of_a_view_are_taken_by_their_ids(remote: Any, table: Any, fresh: Callable[[str], str]) -> None:
    view = remote.create_materialized_view(fresh("view"), table.name, select=["id"], where="id % 2 = 0").table
    numbers = {row["_rowid"]: row["id"] for row in view.search().with_row_id(True).limit(ROWS).to_list()}
    some = list(numbers)[3:90:7]
    assert [row["id"] for row in view.take_row_ids(some).to_list()] == [numbers[number] for number in some]
    assert sorted(numbers.values()) == list(range(0, ROWS, 2))


def test_epochs_of_a_seed_have_each_row_once_in_one_order(trainer: Trainer, table: Any) -> None:
    again, first, second = trainer.epochs(table.name, {"epoch": 0}, {"epoch": 0}, {"epoch": 1})
    assert again["batches"] == first["batches"]
    assert ids_of(first) != ids_of(second)
    assert sorted(ids_of(first)) == sorted(ids_of(second)) == list(range(ROWS))


def test_ranks_have_the_steps_of_one_rank_between_them(trainer: Trainer, table: Any) -> None:
    filtered = {"filter": "label != 'l2'"}
    ranks = [{**filtered, "rank": rank, "world_size": 2} for rank in range(2)]
    alone, *parts = trainer.epochs(table.name, filtered, *ranks, batch_size=4)
    assert sorted(ids_of(alone)) == [number for number in range(ROWS) if number % 3 != 2]
    assert set(ids_of(parts[0])).isdisjoint(ids_of(parts[1]))
    steps = zip(*(zip(*[iter(ids_of(part))] * 2, strict=True) for part in parts), strict=True)
    assert [set(chain(*step)) for step in steps] == [set(batch) for batch in alone["batches"]]


def test_run_goes_on_where_its_state_was_taken_if_it_opens_the_same_version(
    trainer: Trainer, table: Any, change: Change
) -> None:
    version = table.version
    (whole,) = trainer.epochs(table.name, {})
    (begun,) = trainer.epochs(table.name, {}, batches=11)
    change(table)
    (rest,) = trainer.epochs(table.name, {}, state=begun["state"], version=version)
    assert begun["batches"] + rest["batches"] == whole["batches"]
    ranks = [{"rank": rank, "world_size": 2} for rank in range(2)]
    parts = trainer.epochs(table.name, *ranks, state=begun["state"], version=version)
    assert sorted(chain(*map(ids_of, parts))) == sorted(ids_of(rest))


def steps_of(batches: list[list[int]], count: int) -> list[set[int]]:
    """Return the ids of each step, which has so many batches."""
    return [set(chain(*batches[first : first + count])) for first in range(0, len(batches), count)]


@pytest.mark.parametrize(
    "others", [((0, "forkserver"), (1, "spawn")), pytest.param(((4, "forkserver"),), marks=pytest.mark.extended)]
)
def test_run_of_two_workers_goes_on_with_another_number_of_them(
    trainer: Trainer, table: Any, change: Change, others: tuple[tuple[int, str], ...]
) -> None:
    version = table.version
    begun = trainer.ask(table.name, {}, batch_size=4, workers=2, pause=20)
    (whole,) = epochs_of(trainer.go_on())
    assert sorted(ids_of(whole)) == list(range(ROWS))
    change(table)
    (alone,) = trainer.epochs(table.name, {}, batch_size=4, version=version)
    assert steps_of(whole["batches"], 4) == steps_of(alone["batches"], 4)
    assert begun["batches"] == whole["batches"][:20]
    resumed = {"batch_size": 4, "state": begun["state"], "version": version}
    for workers, start in others:
        (rest,) = trainer.epochs(table.name, {}, workers=workers, start=start, **resumed)
        assert steps_of(rest["batches"], 4) == steps_of(whole["batches"][20:], 4), workers


def test_worker_that_is_killed_ends_a_run_which_goes_on_from_its_state(trainer: Trainer, table: Any) -> None:
    begun = trainer.ask(table.name, {}, workers=2, pause=2)
    os.kill(begun["processes"][1], signal.SIGKILL)
    answer = trainer.go_on()
    assert "RuntimeError" in answer["error"] and "exited unexpectedly" in answer["error"], answer
    (rest,) = trainer.epochs(table.name, {}, workers=2, state=begun["state"])
    assert sorted(ids_of(begun) + ids_of(rest)) == list(range(ROWS))


def kill_with_requests_under_way(server: ServerProcess) -> None:
    """Kill a server, which is halted, as soon as there are bytes of a request that it has not read.

    There may be none where it was halted amid all that its clients ask for.
    """
    port, deadline = f":{int(server.url.rpartition(':')[2]):04X}", time.monotonic() + 10
    is_waited_for = False
    while not is_waited_for and time.monotonic() < deadline:
        time.sleep(0.05)
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        is_waited_for = any(socket[1].endswith(port) and not socket[4].endswith(":00000000") for socket in sockets)
    server.kill()


def test_server_that_restarts_costs_no_row_and_one_that_is_killed_ends_the_run(
    trainer: Trainer, empty_server: ServerProcess
) -> None:
    """lancedb repeats what found no server, and nothing that was under way (docs/clients.md)."""
    connection = lancedb.connect("db://tests", api_key="none", host_override=empty_server.url)
    connection.create_table("samples", rows())
    begin = {"server": empty_server.url, "workers": 2, "pause": 2}
    reads = {"read_batch_size": 4, "io_queue_depth": 1}
    trainer.ask("samples", reads, **begin)
    empty_server.stop()
    restart = Timer(1, empty_server.start)
    restart.start()
    (whole,) = epochs_of(trainer.go_on())
    assert restart.finished.is_set(), "the epoch was read before the server was there again"
    restart.join()
    assert sorted(ids_of(whole)) == list(range(ROWS))

    begun = trainer.ask("samples", reads, **begin)
    time.sleep(0.2)  # for what workers read ahead
    empty_server.process.send_signal(signal.SIGSTOP)
    killer = Thread(target=kill_with_requests_under_way, args=(empty_server,))
    killer.start()
    answer = trainer.go_on()
    killer.join()
    assert "HttpError" in answer["error"] and "error sending request" in answer["error"], answer
    empty_server.start()
    (rest,) = trainer.epochs("samples", reads, server=empty_server.url, workers=2, state=begun["state"])
    assert sorted(ids_of(begun) + ids_of(rest)) == list(range(ROWS))
