"""Random histories of grants, compared with a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.grants import GrantsMachine


def test_grants_under_any_history_let_in_whom_the_model_lets_in(bounds: settings) -> None:
    run_state_machine_as_test(GrantsMachine, settings=bounds)
