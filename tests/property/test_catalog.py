"""Random histories of catalog operations, compared with a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.catalog import CatalogMachine
from tests.services.server import ServerProcess


def test_catalog_under_any_history_is_what_the_model_says(server: ServerProcess, bounds: settings) -> None:
    run_state_machine_as_test(lambda: CatalogMachine(server.url), settings=bounds)
