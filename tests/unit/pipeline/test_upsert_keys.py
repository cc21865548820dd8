"""Find the rows that have a key of the source, and count the keys that are in the table."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
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


@pytest.mark.parametrize("dtype", [pa.int8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()], ids=str)
@pytest.mark.parametrize("spread", [1, 40, 10**12])
def test_find_positions_of_whole_numbers_are_those_of_arrow(dtype: pa.DataType, spread: int) -> None:
    draw, bits = random.Random(7), dtype.bit_width - 1
    least, most = (0, 2**bits) if pa.types.is_unsigned_integer(dtype) else (-(2**bits), 2**bits - 1)
    for _ in range(20):
        middle = draw.randint(least, most)
        near = range(max(least, middle - 50 * spread), min(most, middle + 50 * spread) + 1)
        keys = pa.array([near[draw.randrange(len(near))] for _ in range(60)], dtype)
        others = [near[draw.randrange(len(near))] for _ in range(100)]
        found = pa.chunked_array([keys.slice(5, 9), pa.array([*others, least, most], dtype)])
        positions = find_positions(pa.table({"a": found}), pa.table({"a": keys}))
        assert positions.tolist() == pc.fill_null(pc.index_in(found, value_set=keys), -1).to_pylist()


def test_count_keys_counts_a_key_of_two_fragments_once() -> None:
    draw = random.Random(5)
    for keys in (1, 7, 8, 9, 1000):
        parts = [draw.choices(range(keys), k=draw.randrange(2 * keys)) for _ in range(5)]
        packed = [pack_positions(part) for part in parts if part]
        assert count_keys(packed, keys) == len({position for part in parts for position in part}), keys
    assert count_keys([], 3) == 0
    assert len(pack_positions(range(0, 1_000_000, 3))) < 50_000
