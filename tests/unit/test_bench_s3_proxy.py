"""The bench's count of sequential round trips."""

from __future__ import annotations

import pytest
from bench.s3_proxy import Request, sequential_round_trips


@pytest.mark.parametrize(
    ("times", "trips"),
    [
        ([], 0),
        ([(0, 3), (3, 6), (7, 9)], 3),
        ([(0, 3), (1, 4), (2, 5)], 1),
        ([(0, 9), (1, 3), (4, 6), (8, 10)], 3),
        ([(4, 6), (0, 3), (2, 5)], 2),
    ],
)
def test_sequential_round_trips_are_the_longest_chain(times: list[tuple[float, float]], trips: int) -> None:
    requests = [Request("GET", "data", "key", started_at, ended_at) for started_at, ended_at in times]
    assert sequential_round_trips(requests) == trips
