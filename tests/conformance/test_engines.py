"""Engines' own clients, unmodified: what they write is what lancedb reads at once, and what their callers may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.engines import ENGINES, on_lake
from tests.conformance.observations import REFUSED, THEIRS, WORKS
from tests.conformance.packages import NoWheelError

CALLS = {
    "lance-ray": (30, 0),
    "Daft": (31, 13),
    "Polars": (25, 4),
    "lance-graph": (13, 1),
    "lancedb-ray": (20, 0),
}
"""How many calls each makes, and how many of them commit by CreateTableVersion."""


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ENGINES)
def test_every_call_on_s3_with_a_key_works_and_lancedb_sees_it(name: str, tmp_path: Path) -> None:
    try:
        calls = on_lake(ENGINES[name], tmp_path).calls
    except NoWheelError as error:
        pytest.skip(str(error))
    assert [call for call in calls if not call.is_expected] == []
    assert (len(calls), sum("CreateTableVersion" in call.operations for call in calls)) == CALLS[name]

    outcomes = {call.what: call.outcome for call in calls}
    assert outcomes["read with `read` alone"] == WORKS
    append = outcomes.get("append with `read` alone")
    if name == "lance-graph":  # has no writes of its own
        assert append is None
    elif name == "lance-ray":
        assert append is not None and append.startswith(THEIRS) and "writes no rows, and says nothing" in append
    else:
        assert append == REFUSED
