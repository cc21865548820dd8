"""A process of its own that counts in a file, under a lock that another one wants, too."""

from __future__ import annotations

import sys
from pathlib import Path

from tiltyard.storage.locks import LockKind, Locks


def main(counter: Path) -> None:
    """Add one, fifty times."""
    for _ in range(50):
        with Locks().hold(LockKind.COMMITS, "a", 20):
            counter.write_text(str(int(counter.read_text()) + 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
