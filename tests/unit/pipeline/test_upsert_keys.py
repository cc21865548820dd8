"""Find the rows that have a key of the source, and count the keys that are in the table."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tiltyard.pipeline.upsert.tasks import count_keys, find_positions, pack_positions


@pytest.mark.parametrize(
    "columns",
    [
        {"a": [3, 1, None, 9, 3]},
        {"a": [3, 1, None, 9, 3], "b": ["x", "y", "x", "y", "x"]},
    ],
)
def test_find_positions_returns_those_of_the_keys_and_nulls_equal_nothing(columns: dict[str, list[object]]) -> None:
    rows = pa.table(columns)
    keys = rows.slice(0, 3).take([2, 1, 0])
    assert find_positions(rows, keys).tolist() == [2, 1, -1, -1, 2]
    assert find_positions(rows.slice(0, 0), keys).tolist() == []


def test_count_keys_counts_a_key_of_two_fragments_once() -> None:
    draw = random.Random(5)
    for keys in (1, 7, 8, 9, 1000):
        parts = [draw.choices(range(keys), k=draw.randrange(2 * keys)) for _ in range(5)]
        packed = [pack_positions(part) for part in parts if part]
        assert count_keys(packed, keys) == len({position for part in parts for position in part}), keys
    assert count_keys([], 3) == 0
    assert len(pack_positions(range(0, 1_000_000, 3))) < 50_000
