"""Digests of rows of any type."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiltyard.change_feed.row_digests import row_digests

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 2, None]),
        (pa.string(), ["1", "None", None, ""]),
        (pa.binary(), [b"1", b"", None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.0, -0.0, NAN, None, 1.5]),
        (pa.float16(), [np.float16(0), np.float16(1), None]),
        (pa.decimal128(5, 2), [Decimal("1.10"), Decimal("1.11"), None]),
        (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), None]),
        (pa.date32(), [1, 2, None]),
        (pa.time64("us"), [1, 2, None]),
        (pa.list_(pa.float32(), 2), [[1, 2], [2, 1], [-0.0, 0], [0, 0], [0, None], None]),
        (pa.list_(pa.float32(), 17), [[0.0] * 16 + [1], [1] + [0.0] * 16, [-0.0] * 17, [0.0] * 17, None]),
        (pa.list_(pa.string()), [["ab"], ["a", "b"], [], [None], None]),
        (pa.large_list(pa.list_(pa.date32())), [[[1], [2]], [[1, 2]], [[], [1, 2]], None]),
        (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.bool_(), 1))]), [(1, [True]), (1, None), (None, [True]), None]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [("a", 2)], [], None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    ],
)
def test_digests_are_the_same_for_the_same_values_alone(kind: pa.DataType, values: list[Any]) -> None:
    values = [dict(zip("ab", value, strict=True)) if isinstance(value, tuple) else value for value in values]
    array = pa.array([*values, *reversed(values)], kind)
    digests = row_digests([array.slice(1)])  # with an offset, as parts of batches have it
    whole = row_digests([array])
    assert digests == whole[1:]
    assert whole == whole[::-1]
    assert len(set(whole)) == len(values)
