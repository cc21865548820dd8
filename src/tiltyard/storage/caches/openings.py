"""Open versions that this process has committed on an object store, while their callers go on."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.pool import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    import lance

log = logging.getLogger("tiltyard.storage")


class Opening:
    """A version of main on an object store that this process has committed, and opens while its caller goes on.

    It came right after that of `base`, or after such versions, and has the same columns: rows written with `base` fit.
    None where its columns may be others.
    """

    __slots__ = ("_is_done", "base", "open", "share", "version")

    def __init__(
        self,
        base: lance.LanceDataset | None,
        version: int,
        open_version: Callable[[], lance.LanceDataset],
        share: Callable[[lance.LanceDataset], object],
    ) -> None:
        self.base = base
        self.version = version
        self.open = open_version
        self.share = share
        self._is_done = threading.Event()

    def finish(self) -> None:
        """Wake those that wait: the version is open, or could not be opened."""
        self._is_done.set()

    def wait(self) -> None:
        """Wait until the version is open, or could not be opened."""
        self._is_done.wait()


class Openings:
    """The versions of main that are being opened, one at most of a table: the last that was committed.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._openings: dict[str, Opening] = {}
        """By location."""
        self._lock = threading.Lock()

    def get(self, location: str) -> Opening | None:
        """Return what is being opened of a table."""
        return self._openings.get(location)

    def wait(self) -> None:
        """Wait for all that was started before."""
        for opening in list(self._openings.values()):
            opening.wait()

    def start(self, location: str, opening: Opening) -> None:
        """Open a version in a thread, and share it unless it was forgotten, or another one came after it meanwhile."""
        with self._lock:
            self._openings[location] = opening
        start_thread("opening", partial(self._run, location, opening))  # appends in shared threads wait for it

    def forget(self, location: str) -> None:
        """Have no version shared that is being opened of a table."""
        with self._lock:
            self._openings.pop(location, None)

    def _run(self, location: str, opening: Opening) -> None:
        try:
            if self._openings.get(location) is opening:
                reach(Point.BEFORE_OPENING)
                dataset = opening.open()
                if self._openings.get(location) is opening:
                    opening.share(dataset)
        except LanceNamespaceError as error:
            log.warning("version %s of %s is committed, and could not be opened: %s", opening.version, location, error)
        finally:
            with self._lock:
                if self._openings.get(location) is opening:
                    del self._openings[location]
            opening.finish()
