"""Keys are looked up by the index, in memory and by scans alike; appends find out little, and only once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from tests.tables.bodies import small as body
from tests.tables.keys.test_enforcement import declare_key, ids, rows
from tests.tables.rows.calls import insert
from tests.tables.served import ask, models

from tiltyard.model.branches import MAIN
from tiltyard.tables.keys import enforcement, lookup
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.keys.key_values import is_dense, key_hashes, lookup_filter
from tiltyard.tables.keys.lookup import Coverage
from tiltyard.tables.opening import open_to_commit
from tiltyard.tables.rows.update_delete import delete_from_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.tables.served import Server


def keys_of(values: Iterable[Any], type_: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array(values, type_)})


@pytest.fixture
def table(server: Server) -> Server:
    """A server with the table `t`: even ids up to 4,000, which are its key, with an index."""
    server.declare("t", managed=True)
    insert(server, body(rows(*range(0, 4000, 2))))
    declare_key(server, "id")
    assert set(server.run_jobs()) == {"Succeeded"}
    return server


def test_appends_of_one_process_read_what_the_indexes_cover_once(
    table: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(table, body(rows(1)))

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("this is known")

    monkeypatch.setattr(Coverage, "read", refuse)
    monkeypatch.setattr(enforcement, "open_staged", refuse)
    monkeypatch.setattr(type(table.services.store), "latest_checked_version", refuse)
    for number in range(3, 23, 2):
        insert(table, body(rows(number)))
        for known in (number, number - 2, 2000):
            with pytest.raises(DuplicateKeyError, match=f"id = {known} exists"):
                insert(table, body(rows(number + 2, known)))
    insert(table, body(rows(*range(10_001, 15_001))))
    with pytest.raises(DuplicateKeyError, match="id = 12345 exists"):
        insert(table, body(rows(12_345)))
    monkeypatch.undo()
    delete_from_table(table.ctx, ask(models.DeleteFromTableRequest, id="t", predicate="id IN (3, 2000)"))
    insert(table, body(rows(3, 2000)))
    assert ids(table) == sorted([*range(0, 4000, 2), *range(1, 23, 2), *range(10_001, 15_001)])


def test_key_whose_column_was_rewritten_in_place_is_found(table: Server) -> None:
    insert(table, body(rows(4001)))
    with pytest.raises(DuplicateKeyError):
        insert(table, body(rows(4001)))
    dataset = open_to_commit(table.ctx, table.services.store.describe_table(("t",)), MAIN, durable=False)
    new = pa.table({"name": ["n4001"], "id": pa.array([5001], pa.int64())})
    fragment, modified = dataset.get_fragments()[-1].update_columns(new, left_on="name", right_on="name")
    change = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=modified)
    lance.LanceDataset.commit(dataset, change, read_version=dataset.version)
    with pytest.raises(DuplicateKeyError, match="id = 5001"):
        insert(table, body(rows(5001)))
    insert(table, body(rows(4001)))
    assert ids(table) == [*range(0, 4000, 2), 4001, 5001]


@pytest.mark.parametrize("small_fragment", [0, 300, 1 << 17])
def test_keys_in_any_pattern_are_judged_as_by_a_model(
    table: Server, monkeypatch: pytest.MonkeyPatch, small_fragment: int
) -> None:
    """Ranges and scattered keys, with and without duplicates, before and after deletes and a new index."""
    monkeypatch.setattr(lookup, "_SMALL_FRAGMENT_ROWS", small_fragment)
    monkeypatch.setattr(lookup, "MAX_KEYS", 4000)
    chance, model = random.Random(small_fragment), set(range(0, 4000, 2))
    for _ in range(40):
        first, count = chance.randrange(-9000, 9000), chance.choice([1, 1, 2, 50, 1500])
        new = chance.sample(range(first, first + count * chance.choice([1, 2, 9])), count)
        if chance.random() < 0.5:
            new = [key for key in new if key not in model]
        if chance.random() < 0.1:
            start = chance.randrange(-9000, 9000)
            delete_from_table(
                table.ctx,
                ask(models.DeleteFromTableRequest, id="t", predicate=f"id BETWEEN {start} AND {start + 500}"),
            )
            model -= set(range(start, start + 501))
        if chance.random() < 0.1:
            table.open("t").optimize.optimize_indices()
        if not new:
            continue
        if model.isdisjoint(new):
            insert(table, body(rows(*new)))
            model.update(new)
        else:
            with pytest.raises(DuplicateKeyError):
                insert(table, body(rows(*new)))
    assert ids(table) == sorted(model)


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([5], pa.int64(), "`id` IN (5)"),
        ([7, 5, 6], pa.int64(), "`id` BETWEEN 5 AND 7"),
        ([5, 50], pa.int64(), "`id` IN (5, 50)"),
        ([-(2**63)], pa.int64(), "`id` IN (arrow_cast('-9223372036854775808', 'Int64'))"),
        ([-(2**63), 1 - 2**63], pa.int64(), "`id` BETWEEN arrow_cast('-9223372036854775808', 'Int64') AND "),
        ([2**64 - 1, 2**64 - 2], pa.uint64(), "`id` BETWEEN 18446744073709551614 AND 18446744073709551615"),
        (["b", "c"], pa.string(), "`id` IN ('b', 'c')"),
    ],
)
def test_condition_has_integers_next_to_each_other_as_a_range(
    values: list[Any], type_: pa.DataType, expected: str
) -> None:
    assert lookup_filter(keys_of(values, type_), ["id"]).startswith(expected)


def test_keys_are_dense_only_where_a_range_has_few_others() -> None:
    assert is_dense(keys_of([3, 5, 4], pa.int8()))
    assert is_dense(keys_of(range(0, 200, 2), pa.int64()))
    assert not is_dense(keys_of(range(0, 200, 3), pa.int64()))
    assert not is_dense(keys_of(["3", "4"], pa.string()))
    assert not is_dense(keys_of([], pa.int64()))
    assert not is_dense(pa.table({"a": [1, 2], "b": [1, 2]}))


def test_hashes_of_equal_keys_are_equal() -> None:
    for values, type_ in (
        ([-1, 5, -(2**63)], pa.int64()),
        ([2**64 - 1, 5], pa.uint64()),
        ([-1, 0], pa.timestamp("us", "UTC")),
        (["a", "b"], pa.string()),
        ([True, False], pa.bool_()),
    ):
        hashes = key_hashes(keys_of(values, type_))
        assert hashes.dtype == np.uint64
        assert len(set(hashes.tolist())) == len(values)
        assert hashes.tolist() == key_hashes(keys_of([*reversed(values)], type_)).tolist()[::-1]
    pairs = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    assert len(set(key_hashes(pairs).tolist())) == 3
    assert key_hashes(pairs.slice(1, 1)).tolist() == key_hashes(pairs).tolist()[1:2]
