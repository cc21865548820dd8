"""What the processes of one server share: a file that their parent makes, and tells them of by a variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def shared_file(variable: str, content: bytes) -> Iterator[None]:
    """A file with this content for the processes that are started meanwhile; the variable says where."""
    with TemporaryDirectory(prefix="tiltyard-shared-") as folder:
        file = Path(folder) / "file"
        file.write_bytes(content)
        os.environ[variable] = str(file)
        try:
            yield
        finally:
            del os.environ[variable]
