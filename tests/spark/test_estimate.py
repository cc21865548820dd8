"""docs/scale.md has the figures that its programs compute, and fragments fall into groups as tasks need them."""

from __future__ import annotations

import pytest
from bench import scale
from bench.spark import estimate
from bench.spark.estimate import PAGE, parts
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.pipeline.spark_tasks import group_for_tasks

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("name", [*estimate.MARKS, *scale.MARKS])
def test_scale_page_holds_what_the_programs_compute(name: str) -> None:
    begin, end = (estimate.MARKS | scale.MARKS)[name]
    computed = estimate.page(estimate.Plan(), estimate.Constants()) | scale.page(scale.Service(), scale.Constants())
    assert PAGE.read_text().partition(begin)[2].partition(end)[0].strip() == computed[name].strip()


def test_parts_of_a_file_grow_with_it() -> None:
    assert [parts(size) for size in (1, 5 << 20, 500 << 20, 510 << 20)] == [3, 3, 102, 103]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.integers(1, 8))
def test_grouped_keeps_the_order_and_about_the_size(sizes: list[int], most: int, tasks: int) -> None:
    groups = group_for_tasks(enumerate(sizes), most, tasks)
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    assert all(sum(sizes[number] for number in group) <= most + max(sizes) for group in groups)


def test_grouped_fills_the_slots_evenly() -> None:
    rows = dict(enumerate([350, 325, 350, 325, 325, 325]))
    assert group_for_tasks(rows.items(), 1_100, 2) == [(0, 1, 2), (3, 4, 5)]
    assert group_for_tasks(rows.items(), 400, 2) == [(0,), (1,), (2,), (3,), (4,), (5,)]
    assert group_for_tasks([], 400, 2) == []
