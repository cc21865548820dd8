"""Turns of a table: leases in the catalog, which all servers see, on work that one of them does at a time.

A turn has a name that no branch has: those of branches are of commits (`store/tables/queued_appends`). The removal of
old versions has one (`tables/versions/removal_turns`), changes of tags and branches in object stores have one
(`tables/versions/reference_changes`), and moves between catalogs (`catalog/mounts/table_moves`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tiltyard.runtime.lease import LEASE_MS, Lease
from tiltyard.storage.locks import TooBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

_PAUSE_SECONDS = 0.05


@contextmanager
def hold_turn(ctx: Context, table: TableRecord, turn: str, holder: str, what: str) -> Iterator[None]:
    """Hold a turn of a table during the block; `holder` is a name of this block alone, `what` is said in the log.

    Where the process of another holder has died, its lease has to end first (LEASE_MS). Raises TooBusyError if the turn
    is not free within the setting `conflict_timeout`, TableNotFoundError.
    """

    def claim() -> bool:
        return ctx.store.claim_turn(table.id, turn, holder, LEASE_MS, survives_crash=True) is not None

    wait_until(ctx, claim)
    try:
        with Lease(f"{what} of {table.name}", claim, report=ctx.services.outage_log.report):
            yield
    finally:
        ctx.store.end_turn(table.id, turn, holder)


def wait_until(ctx: Context, is_so: Callable[[], bool]) -> None:
    """Wait until something is so. Raises TooBusyError after the setting `conflict_timeout`."""
    deadline = time.monotonic() + ctx.settings.conflict_timeout
    while not is_so():
        if time.monotonic() > deadline:
            raise TooBusyError
        time.sleep(_PAUSE_SECONDS)
