"""Operations on tables, called as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.tables.served import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with a catalog and a storage of its own."""
    running = Server(tmp_path / "root", conflict_timeout=60.0)
    yield running
    running.services.close()
