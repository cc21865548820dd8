"""lance-ray, unmodified, against a server with authentication and tables on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.lance_ray import on_lake


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_every_call_lance_ray_on_s3_with_a_key_works(tmp_path: Path) -> None:
    server = on_lake(tmp_path)
    assert [call for call in server.calls if not call.is_expected] == []
    assert len(server.calls) == 21
