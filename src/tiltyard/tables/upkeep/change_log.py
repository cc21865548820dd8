"""Note commits to tables that are not managed, which leave no record in the catalog, for upkeep."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.runtime.batcher import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = logging.getLogger("tiltyard.upkeep")

FLUSH_SECONDS = 1.0


class ChangeLog(WorkQueue):
    """Tables that this process has committed to; they are written to the catalog once a second, many at once.

    What is lost when the process is killed is noted with the table's next commit.
    """

    def __init__(self, write: Callable[[Iterable[int]], None]) -> None:
        """`write` is the store's `note_changes`."""
        self._write = write
        self._changed: set[int] = set()
        self._lock = threading.Lock()
        super().__init__("changed tables", "Tables with commits in storage alone, to be noted for upkeep")

    @property
    def waiting(self) -> int:
        return len(self._changed)

    def add(self, table_id: int) -> None:
        """Note that a table got a commit."""
        with self._lock:
            is_first = not self._changed
            self._changed.add(table_id)
        if is_first:
            timer = threading.Timer(FLUSH_SECONDS, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Write what is noted; on failure write a warning."""
        with self._lock:
            changed, self._changed = self._changed, set()
        if not changed:
            return
        try:
            self._write(changed)
        except LanceNamespaceError as error:
            log.warning("upkeep of %s tables waits for their next commits: %s", len(changed), error)

    def close(self) -> None:
        self.flush()
