"""Leases: the right to do some work alone for a while, their lengths, how they are renewed, and what ends them.

A lease is a row of the catalog that names its holder and when it ends. The database's clock alone says whether it has
ended: the store compares both in the statement that claims a lease. No process compares the end of a lease with a clock
of its own; a holder counts the seconds since it has renewed its lease, by a clock that nobody sets.

A lease that has ended is its holder's all the same until another claims it: a renewal then succeeds, so that nothing is
lost where the database is away for long. It is lost once the catalog says so, since another has it or the work was
canceled. Its holder stops at its next `check`; what it writes to the catalog meanwhile is refused there, for each such
statement names the holder.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError, TransactionNotFoundError

from tiltyard.runtime.process import elapsed_ms

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("tiltyard.leases")

LEASE_MS = 10_000
"""Of work that a `Lease` renews: jobs in workers and drivers, and the sync of a mirror. So long after its process has
died, another goes on with it. That of a request with a key is a setting, as long by default (`repeat_lease`).
"""
START_LEASE_MS = 60_000
"""Of a job whose driver starts: until Python and perhaps a JVM run, nobody renews it."""
UNKNOWN_HOLDER_LEASE_MS = 30_000
"""Of a driver of others that does not say how long: how often it renews is not known."""
MAX_LEASE_MS = 3_600_000
"""What a driver of others may ask for; and of a folder into which a client copies a table, which nobody renews."""
FOLDER_LEASE_MS = 600_000
"""Of the folder of a table in creation, and of one that is deleted. Nobody waits for it: what a crash leaves lies there
for so long, and an object store may be away meanwhile.
"""
LOOK_LEASE_MS = 60_000
"""Of a look at whether a table needs upkeep: a few reads, which nobody renews, and which two may do."""
TURN_LEASE_MS = 2_000
"""Of a turn to commit the appends of several servers, which nobody renews: it takes milliseconds, others wait for it,
and after it two servers may commit, of which one loses.
"""
RENEWALS = 3
"""A lease is renewed so often within its length: one renewal may fail, and be late by as much again."""


class Lease:
    """A lease that this process has claimed, and a thread that renews it until `close`.

    `renew()` extends it in the catalog by its length; it returns False where its holder is to stop. It raises
    ConcurrentModificationError or TransactionNotFoundError where the lease is another's, and other errors where nobody
    knows: then it is tried again. `report(error)` returns whether it has logged such an error. A `look` is had more
    often, every `look_seconds`: it returns whether the holder is to go on. One that is not new was claimed by somebody
    else, for a length that is not known here: it is renewed first.

    Each has a thread of its own: a renewal that waits for the database, or a look that waits for a driver, makes no
    other lease late.
    """

    def __init__(
        self,
        name: str,
        renew: Callable[[], object],
        length_ms: int = LEASE_MS,
        *,
        look: Callable[[], bool] | None = None,
        look_seconds: float | None = None,
        report: Callable[[BaseException], bool] = lambda _: False,
        is_new: bool = True,
    ) -> None:
        self._name = name
        self._renew = renew
        self._length_ms = length_ms
        self._look = look or self.renew
        self._pause = look_seconds or length_ms / 1000 / RENEWALS
        self._report = report
        self._renewed_at = elapsed_ms() - (0 if is_new else length_ms + 1)
        self._lost = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._maintain, name=f"lease of {name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_lost(self) -> bool:
        """Return whether the holder is to stop, by all that is known here."""
        return self._lost.is_set()

    def check(self) -> bool:
        """Return whether the holder may go on. Raises what `renew` raises where nobody knows.

        A process that was suspended for longer than the lease renews it first: another may have claimed it.
        """
        if not self.is_lost and elapsed_ms() - self._renewed_at > self._length_ms:
            self.renew()
        return not self.is_lost

    def renew(self) -> bool:
        """Renew the lease now; return whether the holder is to go on."""
        return self.write(self._renew)

    def write(self, write: Callable[[], object]) -> bool:
        """Write something to the catalog by a call that also does what `renew` does, and fails as that does."""
        started_at = elapsed_ms()
        try:
            goes_on = write() is not False
        except (ConcurrentModificationError, TransactionNotFoundError):
            goes_on = False
        if goes_on:
            self._renewed_at = started_at
        else:
            self.lose()
        return goes_on

    def lose(self) -> None:
        """Let the holder stop at its next check. Safe to call in a signal handler."""
        self._lost.set()

    def close(self) -> None:
        """Renew it no longer."""
        self._closed.set()
        self._thread.join()

    def _maintain(self) -> None:
        """Renew the lease, until it is lost or closed; the thread's work."""
        while not self.is_lost and not self._closed.wait(self._pause):
            is_due = elapsed_ms() - self._renewed_at >= self._length_ms / RENEWALS
            try:
                if not (self.renew() if is_due else self._look()):
                    self.lose()
            except LanceNamespaceError as error:
                if not self._report(error):
                    log.warning("cannot renew the lease of %s yet: %s", self._name, error)
            except Exception:  # without it the thread would end, and nothing would notice that
                log.exception("cannot renew the lease of %s yet", self._name)
