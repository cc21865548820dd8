"""Which filters are read as integers of one column, and as which."""

from __future__ import annotations

import pytest

from tiltyard.storage.caches.cached_rows import IntegerRange, Integers
from tiltyard.tables.query.integer_filters import IntegerFilter, parse_integer_filter


@pytest.mark.parametrize(
    ("expression", "integers"),
    [
        ("id = 5", (5,)),
        (" id=-1 ", (-1,)),
        ("id = 9223372036854775807", (9223372036854775807,)),
        ("id IN (1, 2,-3)", (1, 2, -3)),
        ("id in(7)", (7,)),
        ("id BETWEEN -3 AND 5", IntegerRange(-3, 5)),
        ("id >= 5 AND id < 9", IntegerRange(5, 8)),
        ("id < 9 and id > 2", IntegerRange(3, 8)),
        ("id>-5 AND id<=-2", IntegerRange(-4, -2)),
        ("id > 3", IntegerRange(4, None)),
        ("id<=3", IntegerRange(None, 3)),
    ],
)
def test_filter_by_integers_is_read(expression: str, integers: Integers) -> None:
    assert parse_integer_filter(expression) == IntegerFilter("id", integers)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "id",
        "id = x",
        "id <> 5",
        "id = 5 OR id = 6",
        "id IN ()",
        "id IN (1 2)",
        "id IN (1,)",
        "id IN (1.5)",
        "id NOT IN (1)",
        "NOT id IN (1)",
        "id between1and 2",
        "id BETWEEN 1 AND5",
        "id>5AND id<9",
        "id >= 5 AND other < 9",
        "id > 5 AND id > 7",
        "id >= 5 AND id < 9 AND id < 8",
        "id >= 5 AND NOT id < 9",
        "id > 1234567890123456789",
        "id = ٣",
        "null IN (1)",
        "current_date > 5",
        f"id IN ({', '.join(['12345678'] * 2_000)})",
    ],
)
def test_other_filters_are_left_to_lance(expression: str) -> None:
    assert parse_integer_filter(expression) is None
