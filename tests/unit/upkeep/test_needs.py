"""What upkeep a table needs is decided by its state and its options, whoever has read them."""

from __future__ import annotations

import pytest

from tiltyard.upkeep.decision import UpkeepState, decide_upkeep
from tiltyard.upkeep.thresholds import upkeep_options


@pytest.mark.parametrize(
    ("state", "stuck", "is_idle", "reasons", "has_rest"),
    [
        (UpkeepState(15, False), {}, False, [], False),
        (UpkeepState(16, False), {}, False, ["16 small fragments"], False),
        (UpkeepState(0, True), {}, False, ["fragments with many deleted rows"], False),
        (UpkeepState(0, False, {"x": 999}), {}, False, [], True),
        (UpkeepState(0, False, {"x": 1000}), {}, False, ["the index x lacks 1000 rows"], False),
        (UpkeepState(0, False, {"x": 1}), {}, True, ["the index x lacks 1 rows"], False),
        (UpkeepState(0, False, {"x": 1200}), {"x": 300}, False, [], True),
        (UpkeepState(0, False, {"x": 300}), {"x": 300}, True, [], False),
    ],
)
def test_find_needs_by_state_and_options_gives_the_reasons(
    state: UpkeepState, stuck: dict[str, int], is_idle: bool, reasons: list[str], has_rest: bool
) -> None:
    needs = decide_upkeep(state, upkeep_options({}, 30.0), stuck, is_idle=is_idle)
    assert (needs.reasons, needs.has_rest) == (reasons, has_rest)


def test_find_needs_of_table_with_properties_goes_by_those() -> None:
    options = upkeep_options({"tiltyard.upkeep.small_fragments": "2", "tiltyard.upkeep.unindexed_rows": "1"}, 30.0)
    assert decide_upkeep(UpkeepState(2, False, {"x": 1}), options).reasons == [
        "the index x lacks 1 rows",
        "2 small fragments",
    ]
