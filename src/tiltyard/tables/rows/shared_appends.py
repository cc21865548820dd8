"""Group commit across servers: appends of several servers to one table that wait at the same time become one version.

Where servers commit to a table at the same time, each commit costs as much as one of a single server, brings fewer
rows, and overtakes the others. So each server queues its appends in the catalog, and the one that has the table's turn
commits all of them. A turn is a lease: a server that dies or hangs in it costs the others TURN_LEASE_MS, once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from tiltyard.runtime.client_arrow.reading import to_ipc
from tiltyard.runtime.lease import TURN_LEASE_MS
from tiltyard.store import RETURNED, AppendNotWaitingError, RequestClaim
from tiltyard.tables.commits.finalizing import finalize_pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.store import QueuedAppend

WAIT_SECONDS = 10.0
"""How long an append waits in the queue at most."""
GATHER_SECONDS = 0.01
"""How long at most a turn waits for the appends that it can expect: their clients have just got responses."""
PAUSE_SECONDS = 0.003
"""Between two looks at the queue, while more appends are expected."""
FIRST_PAUSE_SECONDS = 0.008
"""How long an append waits before it is looked at: a commit takes longer."""
PAUSE_SHARE = 0.25
"""Each further pause, as a share of the time that the append has waited."""
MAX_APPENDS = 256
"""Appends of one version."""


@dataclass(frozen=True, slots=True)
class QueuedRows:
    """The rows of one request that wait in the queue, and the requests with a key that they fulfil."""

    rows: pa.Table
    claims: tuple[RequestClaim, ...]


class _EncodedRows(msgspec.Struct, frozen=True, array_like=True):
    """`QueuedRows` as the catalog has them; the rows are an Arrow IPC stream."""

    rows: bytes
    claims: tuple[RequestClaim, ...]


def encode_appends(queued: Iterable[QueuedRows]) -> bytes:
    """Return what the catalog has of the requests whose rows a server queues at the same time."""
    return msgspec.msgpack.encode([_EncodedRows(to_ipc(each.rows).to_pybytes(), each.claims) for each in queued])


def decode_appends(content: bytes) -> list[QueuedRows]:
    """Return the rows of `encode_appends`."""
    encoded = msgspec.msgpack.decode(content, type=list[_EncodedRows])
    return [QueuedRows(pa.ipc.open_stream(each.rows).read_all(), each.claims) for each in encoded]


@dataclass(frozen=True, slots=True)
class SharedCommit:
    """The version that brought an append, and whether other servers had a part in it."""

    version: int
    has_others: bool


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """The queue of one branch of a table.

    `commit(turn, appends)` commits appends, in whose transaction of the catalog the store's `mark_appends_committed` is
    called with the turn, and returns the version.
    """

    ctx: Context
    table_id: int
    branch: str
    commit: Callable[[str, Sequence[QueuedAppend]], int]

    def append(self, content: bytes, seconds: float) -> SharedCommit | None:
        """Queue an append until it is committed, by this server or another one.

        None if it was not, and never will be: no server has its turn in time, or one that had it could not commit it.
        Raises TableNotFoundError, ServiceUnavailableError (it may be committed).
        """
        append = uuid4().hex
        seconds = min(seconds, WAIT_SECONDS)
        deadline = time.monotonic() + seconds
        store = self.ctx.store
        store.queue_append(append, self.table_id, self.branch, content, self.ctx.clock() + int(seconds * 1000))
        try:
            committed = self._wait(append, deadline)
        except LanceNamespaceError:
            committed = None
        except BaseException:
            store.withdraw_append(append, self.table_id)
            raise
        if committed is not None:
            store.delete_append(append)
            return committed
        version = store.withdraw_append(append, self.table_id)
        if version is None:
            return None
        finalize_pending(self.ctx, self.table_id)
        return SharedCommit(version, has_others=True)

    def _wait(self, append: str, deadline: float) -> SharedCommit | None:
        """Commit what waits whenever the turn is free, until the append is committed."""
        is_turn_free, started, pause = True, time.monotonic(), FIRST_PAUSE_SECONDS
        while time.monotonic() < deadline:
            if is_turn_free and (committed := self._take_turn(append)) is not None:
                return committed
            state = self.ctx.store.append_state(append)
            if state is None or state.version == RETURNED:
                return None
            if state.version is not None and (state.is_ended or state.is_turn_free):
                if not state.is_ended:  # its server died, perhaps before the version was final
                    finalize_pending(self.ctx, self.table_id)
                return SharedCommit(state.version, has_others=True)
            is_turn_free = state.is_turn_free
            if not is_turn_free:
                time.sleep(pause)
                pause = (time.monotonic() - started) * PAUSE_SHARE
        return None

    def _take_turn(self, turn: str) -> SharedCommit | None:
        """Commit what waits, if the turn is free; return the version if it has the append that the turn is named by."""
        store = self.ctx.store
        expected = store.claim_turn(self.table_id, self.branch, turn, TURN_LEASE_MS)
        if expected is None:
            return None
        taken: Sequence[QueuedAppend] = ()
        try:
            appends = self._gather(expected)
            ids = [append.id for append in appends]
            if turn not in ids:  # it is about to be withdrawn, or there are too many
                return None
            version = self._commit(turn, appends)
            if version is None:
                return None
            taken = appends
        finally:
            store.end_turn(self.table_id, self.branch, turn, len(taken))
        return SharedCommit(version, has_others=len(ids) > 1)

    def _commit(self, turn: str, appends: Sequence[QueuedAppend]) -> int | None:
        """Commit appends; None if one of them does not wait any more. Those of other servers are returned on errors."""
        try:
            return self.commit(turn, appends)
        except AppendNotWaitingError:
            return None
        except BaseException:
            if others := [append.id for append in appends if append.id != turn]:
                self.ctx.store.return_appends(others)
            raise

    def _gather(self, expected: int) -> list[QueuedAppend]:
        """Return the appends that wait, as soon as they are as many as expected."""
        deadline = time.monotonic() + GATHER_SECONDS
        while True:
            appends = self.ctx.store.waiting_appends(self.table_id, self.branch, MAX_APPENDS)
            if len(appends) >= expected or time.monotonic() >= deadline:
                return appends
            time.sleep(PAUSE_SECONDS)
