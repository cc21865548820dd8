"""Commits of every kind that bring one key at the same moment: one of them wins, the others are refused with the key.

`meet` holds the operations of this process right before they record their versions, when all of them are validated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import lance
import lance.fragment
import pyarrow as pa
import pytest
from lance_namespace import InsertIntoTableRequest, MergeInsertIntoTableRequest
from lance_namespace.errors import InvalidTableStateError

import tiltyard
from tests.conformance.conftest import Raw
from tests.services.lossy import wait_for
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.runtime.failpoints import Point
from tiltyard.tables.commits import recording

Meet = Callable[[], None]
SECONDS = 60


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


def has_succeeded(wire: Wire, transaction: str) -> bool:
    return wire.good(wire.call("transaction", [transaction], "describe"))["status"] == "Succeeded"


@pytest.fixture(scope="module")
def tables(server: ServerProcess) -> list[str]:
    """Two tables with the key `id`, its indexes, and the rows 1 to 3; each test brings keys of its own."""
    wire, names = Wire(server.url), ["first_of_races", "second_of_races"]
    transactions = []
    for name in names:
        wire.good(wire.table([name], "create", stream(rows(1, 2, 3))))
        response = wire.http.post(f"/tiltyard/v1/table/{name}/primary_key/set", json={"columns": ["id"]})
        transactions += wire.good(response)["transaction_ids"]
    for transaction in transactions:  # building an index is a commit, too
        wait_for(partial(has_succeeded, wire, transaction), SECONDS)
    wire.http.close()
    return names


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meet]:
    """From its call on, two operations of this process wait for each other before they record; later ones do not."""
    barrier, has_met = threading.Barrier(2), threading.Event()

    def reached(point: Point) -> None:
        if point is Point.BEFORE_RECORD and not has_met.is_set():
            barrier.wait(SECONDS)
            has_met.set()

    def begin() -> None:
        monkeypatch.setattr(recording, "reach", reached)

    yield begin
    assert has_met.is_set(), "the operations did not meet"


def append(client: Any, name: str, *ids: int) -> None:
    lance.write_dataset(rows(*ids), namespace_client=client, table_id=[name], mode="append")


def publish(client: Any, names: Sequence[str], *ids: int, before_end: Callable[[], object] = lambda: None) -> None:
    """Append rows to each table, and publish them together."""
    with tiltyard.publish(client) as held:
        for name in names:
            append(held, name, *ids)
        before_end()


def outcomes(*calls: Callable[[], object]) -> list[Exception | None]:
    """Run calls at once; return the error of each, None for one that succeeded."""
    errors: list[Exception | None] = [None] * len(calls)

    def run(position: int, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # each client has errors of its own
            errors[position] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return errors


def counts(remote: Any, names: Sequence[str], key: int) -> list[int]:
    """Return how many rows of each table have a key."""
    return [remote.open_table(name).count_rows(f"id = {key}") for name in names]


def the_loser(errors: Sequence[Exception | None]) -> Exception:
    """Return the one error."""
    [error] = [error for error in errors if error is not None]
    return error


def test_publications_of_one_key_to_two_tables_have_one_winner(
    raw: Raw, rest: Any, twin: tiltyard.Namespace, remote: Any, tables: list[str], meet: Meet
) -> None:
    """Both are validated before either is recorded; a reader meanwhile sees both tables changed, or none."""
    ended, torn = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            seen = [int(raw.post(f"/v1/table/{name}/count_rows", {"predicate": "id = 5"}).text) for name in tables]
            if seen == [1, 0]:  # the first table is read first
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    meet()
    errors = outcomes(lambda: publish(twin, tables, 5), lambda: publish(twin, [*reversed(tables)], 5))
    ended.set()
    reader.join(SECONDS)
    loser = the_loser(errors)
    assert isinstance(loser, tiltyard.PublishConflictError)
    assert "id = 5" in str(loser)
    assert {*loser.tables} == {(name,) for name in tables}
    assert torn == []
    with pytest.raises(InvalidTableStateError, match="id = 5 exists"):  # done again, as the error says
        publish(rest, tables, 5)
    assert counts(remote, tables, 5) == [1, 1]


def test_publication_and_insert_of_one_key_have_one_winner(
    twin: tiltyard.Namespace, remote: Any, tables: list[str], meet: Meet
) -> None:
    def insert() -> None:
        twin.insert_into_table(InsertIntoTableRequest(id=[tables[1]]), stream(rows(6)))

    meet()
    errors = outcomes(lambda: publish(twin, tables, 6), insert)
    assert "id = 6" in str(the_loser(errors))
    assert counts(remote, tables, 6) == [int(errors[0] is None), 1]


def test_merge_and_commit_of_a_client_with_one_key_have_one_winner(
    twin: tiltyard.Namespace, remote: Any, tables: list[str], meet: Meet
) -> None:
    request = MergeInsertIntoTableRequest(id=[tables[0]], on=["id"], when_not_matched_insert_all=True)
    meet()
    errors = outcomes(
        lambda: twin.merge_insert_into_table(request, stream(rows(7))), lambda: append(twin, tables[0], 7)
    )
    assert errors[0] is None, "a merge that comes late finds the row, and inserts nothing"
    assert counts(remote, tables, 7) == [1, 0]


def test_merge_that_a_commit_with_its_key_overtakes_runs_again(
    twin: tiltyard.Namespace, remote: Any, tables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance adds its new row to what was inserted meanwhile; the catalog refuses that, and the merge finds the row."""
    overtaken = threading.Event()

    def reached(point: Point) -> None:
        if point is Point.BEFORE_RECORD and not overtaken.is_set():
            overtaken.set()
            remote.open_table(tables[0]).add(rows(11))

    monkeypatch.setattr(recording, "reach", reached)
    monkeypatch.setattr(twin._services.storage.locks, "hold", lambda *_: nullcontext())  # as on a machine of its own
    request = MergeInsertIntoTableRequest(
        id=[tables[0]], on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    merged = twin.merge_insert_into_table(request, stream(rows(11).set_column(1, "name", [["merged"]])))
    assert overtaken.is_set()
    assert (merged.num_updated_rows, merged.num_inserted_rows) == (1, 0)
    assert remote.open_table(tables[0]).search().where("id = 11").to_list() == [{"id": 11, "name": "merged"}]


def test_publication_after_an_insert_of_its_key_is_refused_with_the_key(
    rest: Any, remote: Any, tables: list[str]
) -> None:
    with pytest.raises(tiltyard.PublishConflictError, match="id = 8") as conflict:
        publish(rest, tables, 10, 8, 9, before_end=lambda: remote.open_table(tables[0]).add(rows(8)))
    assert conflict.value.tables == ((tables[0],),)
    assert [counts(remote, tables, key) for key in (8, 9, 10)] == [[1, 0], [0, 0], [0, 0]]


def test_publication_that_another_commit_without_its_keys_preceded_names_none(
    rest: Any, remote: Any, tables: list[str]
) -> None:
    def change() -> None:
        remote.open_table(tables[0]).update(where="id = 1", values={"name": "changed"})

    with pytest.raises(tiltyard.PublishConflictError) as conflict:
        publish(rest, tables, 11, before_end=change)
    assert "meanwhile" not in str(conflict.value)


def test_append_of_a_client_that_was_staged_before_a_merge_is_refused(
    rest: Any, remote: Any, tables: list[str]
) -> None:
    """Lance puts the append on top of the merge by itself, and commits that."""
    name = tables[0]
    dataset = lance.dataset(namespace_client=rest, table_id=[name])
    fragments = lance.fragment.write_fragments(rows(30), dataset, mode="append")
    remote.open_table(name).merge_insert("id").when_not_matched_insert_all().execute(rows(30))
    with pytest.raises(OSError, match="unknown"):  # pylance's word for every commit that a catalog refuses
        lance.LanceDataset.commit(dataset, lance.LanceOperation.Append(fragments), read_version=dataset.version)
    assert counts(remote, tables, 30) == [1, 0]


@pytest.mark.extended
def test_publications_inserts_merges_and_clients_at_once_let_no_key_in_twice(
    rest: Any, remote: Any, tables: list[str]
) -> None:
    for key in range(40, 44):
        barrier = threading.Barrier(4)

        def insert(key: int = key, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(SECONDS)
            remote.open_table(tables[1]).add(rows(key))

        def client(key: int = key, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(SECONDS)
            append(rest, tables[0], key)

        def publication(key: int = key, barrier: threading.Barrier = barrier) -> None:
            publish(rest, tables, key, before_end=lambda: barrier.wait(SECONDS))

        errors = outcomes(insert, client, publication, publication)
        if errors[2] is not None and errors[3] is not None:
            assert errors[:2] == [None, None], "those that write one table each have won"
        else:
            assert sum(error is None for error in errors) == 1, "a publication has won both tables"
        for error in (errors[0], *errors[2:]):
            assert error is None or f"id = {key}" in str(error)
        assert counts(remote, tables, key) == [1, 1]
