"""Every operation of the specification below a mount comes out as docs/adapters.md says."""

from __future__ import annotations

import pytest

from tests.mounts.backends import Backend
from tests.mounts.served.operations_table import BACKENDS, documented, outcomes
from tiltyard.model.spec import operations


def test_table_has_every_operation_of_the_contract() -> None:
    contract = {name for name, facts in operations().items() if facts.in_contract}
    assert {backend: set(rows) for backend, rows in documented().items()} == dict.fromkeys(BACKENDS, contract)


@pytest.mark.parametrize("backend", ["dir-manifest", *sorted(BACKENDS.keys() - {"dir"})], indirect=True)
def test_operations_below_a_mount_come_out_as_the_table_says(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("served")
    assert outcomes(backend, folder, tmp_path_factory.getbasetemp()) == documented()[backend.kind]
