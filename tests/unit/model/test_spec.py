"""The specification as data: complete, current, and bound to functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.bootstrap import register_operations
from tiltyard.model.operations import UnknownOperationError, bound_operations, operation
from tiltyard.model.spec import Shape, merge_patch, operations

ROOT = Path(__file__).parents[3]


def test_operations_hold_the_48_of_the_contract() -> None:
    assert sum(facts.in_contract for facts in operations().values()) == 48


def test_every_operation_of_the_contract_is_served() -> None:
    register_operations()
    missing = [name for name, (facts, served) in bound_operations().items() if facts.in_contract and served is None]
    assert missing == []


def test_shapes_follow_the_wire() -> None:
    shapes = {name: facts.response_shape for name, facts in operations().items()}
    assert shapes["CountTableRows"] is Shape.INTEGER
    assert shapes["ExplainTableQueryPlan"] is Shape.STRING
    assert shapes["UpdateTableSchemaMetadata"] is Shape.MAP
    assert shapes["QueryTable"] is Shape.ARROW
    assert operations()["InsertIntoTable"].request_shape is Shape.ARROW


def test_operation_of_an_unknown_name_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.model.operations._handlers", {})

    @operation
    def fly_table() -> None: ...

    with pytest.raises(UnknownOperationError, match="fly_table"):
        bound_operations()


def test_merged_follows_rfc_7386() -> None:
    assert merge_patch({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": None, "e": 4}}) == {"a": {"c": 2, "e": 4}, "d": 3}
