"""A process of its own that writes to a catalog; it prints a name only after the store has answered for it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from tiltyard.store import open_store


def main(url: str, prefix: str, number: int, threads: int) -> None:
    """Create `number` namespaces with some threads."""
    store = open_store(url)

    def create(i: int) -> None:
        name = f"{prefix}-{i}"
        store.create_namespace((name,), {})
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(create, range(number)))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
