"""Every operation of the specification below a mount comes out as docs/adapters.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mounts.served.operations_table import BACKENDS, documented, outcomes
from tiltyard.model.spec import operations


def test_table_has_every_operation_of_the_contract() -> None:
    contract = {name for name, facts in operations().items() if facts.in_contract}
    assert {backend: set(rows) for backend, rows in documented().items()} == dict.fromkeys(BACKENDS, contract)


@pytest.mark.parametrize(
    "name", [name if name == "dir" else pytest.param(name, marks=pytest.mark.extended) for name in BACKENDS]
)
def test_operations_below_a_mount_come_out_as_the_table_says(name: str, tmp_path: Path) -> None:
    with BACKENDS[name](tmp_path) as backend:
        assert outcomes(backend, tmp_path) == documented()[name]
