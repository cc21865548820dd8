"""Catalogs in SQLite whose schema is there already: to make it takes six times as long as to copy it.

From nothing, catalogs are made in tests/store/test_schema.py, and by every server that starts in a new folder.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tiltyard.store import open_store


def prepare_catalog(url: str) -> None:
    """Write an empty catalog with the schema of this code where the URL is of a file in SQLite that does not exist."""
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_empty_catalog())


@cache
def _empty_catalog() -> bytes:
    """Return the content of such a file, made once in this process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "catalog.db"
        open_store(f"sqlite:///{file}").close()
        return file.read_bytes()
