"""lancedb's client for TypeScript, unmodified from npm, against a running server: `typescript/calls.js`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import lancedb_typescript
from tests.services.server import ServerProcess

CALLS = 51


@pytest.mark.extended
def test_every_call_of_the_typescript_client_works(tmp_path: Path, server: ServerProcess) -> None:
    try:
        program = lancedb_typescript.install(tmp_path)
    except lancedb_typescript.NoRegistryError as error:
        pytest.skip(str(error))
    outcomes = lancedb_typescript.run(program, server.url)
    assert {call: error for call, error in outcomes.items() if error is not None} == {}
    assert len(outcomes) == CALLS
