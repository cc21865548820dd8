"""Pass a file from a server's parent process to its children, by an environment variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def shared_file(variable: str, content: bytes) -> Iterator[None]:
    """Create a file for the processes that are started in the block; the environment variable has its path."""
    with TemporaryDirectory(prefix="tiltyard-shared-") as folder:
        file = Path(folder) / "file"
        file.write_bytes(content)
        os.environ[variable] = str(file)
        try:
            yield
        finally:
            del os.environ[variable]
