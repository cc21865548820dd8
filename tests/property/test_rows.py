"""Histories of one table against a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.rows import RowsMachine
from tests.services.server import ServerProcess


def test_table_under_any_history_has_the_rows_that_the_model_says(server: ServerProcess, bounds: settings) -> None:
    run_state_machine_as_test(lambda: RowsMachine(server.url), settings=bounds)
