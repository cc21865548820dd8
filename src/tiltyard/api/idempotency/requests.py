"""One request with a key: run here, or answered with what the first one got.

The record in the catalog decides who runs a request; what the body is comes second, since a large one is known only
when all of it has been read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError, ErrorCode, LanceNamespaceError
from msgspec import structs

from tiltyard.api.bodies.uploads import MemoryBody, StreamedBody, fingerprint_of
from tiltyard.api.errors import STATUS, HttpError
from tiltyard.context import Context
from tiltyard.store import Claim, NewRequest, RequestRecord
from tiltyard.tables.commits.recovery import recovered

if TYPE_CHECKING:
    from tiltyard.api.idempotency.keys import Repeats

log = logging.getLogger("tiltyard.api")

PATIENCE_SECONDS = 50.0
"""How long a repeat waits for the first: less than the minute after which many a proxy gives up."""
UNHEARD_MS = 60_000
"""How long after its start a write may be taken for the first try of another: lancedb tries again within seconds."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5

Body = bytes | MemoryBody | StreamedBody
Work = Callable[[Context], Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer that the first request got."""

    id: str
    status: int
    body: bytes


class ReplayError(Exception):
    """The work on a request is to stop: its outcome is known already."""

    def __init__(self, outcome: Any) -> None:
        super().__init__("the request is a repeat")
        self.outcome = outcome


class _Waiting:
    """Stands for an outcome that is not there yet."""


_WAITING = _Waiting()


class Once:
    """One request with a key: run here, or answered with what the first one got."""

    def __init__(self, home: Repeats, id_: str, scope: str, operation: str, renewed: bool) -> None:
        self.gone = False
        self._settled = False
        self._home = home
        self._store = home.services.store
        self._id = id_
        self._scope = scope
        self._operation = operation
        self._renewed = renewed
        self._record: RequestRecord | None = None
        self._body: Body = b""
        self._print: str | None = None
        self._request: Any = None

    async def run(self, ctx: Context, request: Any, body: Body, work: Work, pool: Executor) -> Any:
        """What `work` returns, or a Replay; `work` is given the context of its commits.

        Raises what `work` raises, ConcurrentModificationError while another runs the request, HttpError 409 if the
        key was given to another request.
        """
        self._body, self._request = body, request
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PATIENCE_SECONDS, _FIRST_PAUSE
        with self._home.keeping():
            while (outcome := await loop.run_in_executor(pool, self._attempt, ctx, work)) is _WAITING:
                if loop.time() > deadline:
                    self._give_up()
                    raise ConcurrentModificationError("The first request with this key still runs: try again later.")
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        return outcome

    async def answering(self, begin: Awaitable[None], note: Callable[[bool], None]) -> None:
        """Begin the answer, and `note` whether the client hears of it: not where it has left, or `begin` fails."""
        try:
            await begin
        except BaseException:
            note(False)
            raise
        note(not self.gone)

    def settle(self, status: int, body: bytes, heard: bool) -> None:
        """Keep the answer, beside sending it: a repeat that comes too early for it waits."""
        self._settled = True
        self._home.spawn(self._settle(status, body, heard))

    async def _settle(self, status: int, body: bytes, heard: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._home.pool, self._finish, status, body.decode(), heard)

    def watch(self, gone: Coroutine[Any, Any, None]) -> None:
        """Note when the client leaves, which `gone` waits for."""
        self._home.spawn(self._watch(gone))

    async def _watch(self, gone: Coroutine[Any, Any, None]) -> None:
        await gone
        self.gone = True
        if not self._settled:
            await asyncio.get_running_loop().run_in_executor(self._home.pool, self._leave)

    def repeated(self, replay: Replay, heard: bool) -> None:
        """Note whether the client was sent the answer of the first request, of which it had not heard; or if not."""
        if self._record is not None:
            self.settle(replay.status, replay.body, heard)
        elif not heard:
            self._home.spawn(self._unheard(replay))

    async def _unheard(self, replay: Replay) -> None:
        await asyncio.get_running_loop().run_in_executor(self._home.pool, self._store.hear_request, replay.id, False)

    # What follows runs in threads.

    def _attempt(self, ctx: Context, work: Work) -> Any:
        if self._record is None:
            record, ours = self._store.begin_request(self._new())
            if not ours:
                return self._there(record)
            self._hold(record)
        assert self._record is not None
        claiming = structs.replace(ctx, claims=(self._record.claim,))
        ctx = structs.replace(claiming, before_commit=partial(self._confirm, claiming))
        try:
            if (outcome := self._known(ctx)) is not None:
                return outcome
            return work(ctx)
        except ReplayError as replay:
            return replay.outcome
        except BaseException as error:
            self._fail(error)
            raise

    def _new(self) -> NewRequest:
        home = self._home
        return NewRequest(self._id, self._scope, self._fingerprint(), home.owner, home.lease_ms, home.memory_ms)

    def _fingerprint(self) -> str | None:
        """What the body is, as far as that is known by now."""
        if self._print is None:
            self._print = fingerprint_of(self._body) if isinstance(self._body, bytes) else self._body.fingerprint
        return self._print

    def _there(self, record: RequestRecord) -> Any:
        """What to answer where another has the key. Raises HttpError 409."""
        if record.scope != self._scope:
            raise _other_request()
        if record.status is None:
            self._check_body(self._fingerprint(), record)
            return _WAITING
        self._check_body(self._whole_fingerprint(), record)
        return Replay(record.id, record.status, (record.body or "").encode())

    def _whole_fingerprint(self) -> str | None:
        return self._body.drain() if isinstance(self._body, StreamedBody) else self._fingerprint()

    def _check_body(self, fingerprint: str | None, record: RequestRecord) -> None:
        if fingerprint and record.fingerprint and fingerprint != record.fingerprint:
            raise _other_request()

    def _known(self, ctx: Context) -> Any:
        """The outcome, if an earlier try is known to have had one; None if the work is still to be done."""
        assert self._record is not None
        if self._record.attempts > 1 and (outcome := self._recovered(ctx, self._record)) is not None:
            return outcome
        return self._twin(ctx, self._record.fingerprint)

    def _recovered(self, ctx: Context, record: RequestRecord) -> Any:
        """What an interrupted try has committed. Raises HttpError 409 if its body was another."""
        outcome = recovered(ctx, self._operation, self._request, record)
        if outcome is not None:
            self._check_body(self._whole_fingerprint(), record)
        return outcome

    def _twin(self, ctx: Context, fingerprint: str | None) -> Any:
        """The outcome of the same request under another key whose client did not hear of it."""
        mine = self._record
        if not self._renewed or mine is None or fingerprint is None:
            return None
        new = structs.replace(self._new(), fingerprint=fingerprint)
        found = self._store.claim_unheard(new, UNHEARD_MS, self._home.attended(), mine.created_at)
        if found is None:
            return None
        twin, ours = found
        if ours:
            self._home.enter(twin.id, self)  # so that its lease is kept
            try:
                outcome = self._recovered(ctx, twin)
            except BaseException:
                self._home.leave(twin.id, self)
                self._store.release_request(twin.claim)
                raise
            if outcome is None:
                self._home.leave(twin.id, self)
                self._store.forget_request(twin.claim)
                return None
            self._drop(mine.claim)
            self._hold(twin)
            return outcome
        body = twin.body or ""
        if twin.status is None or not self._store.stand_in(mine.claim, twin.id, body):
            return _WAITING
        return Replay(mine.id, twin.status, body.encode())

    def _confirm(self, ctx: Context) -> None:
        """Before a streamed body is committed: it is noted now that it is known, and so is whether it came before."""
        if self._record is None or (fingerprint := self._whole_fingerprint()) is None:
            return
        self._check_body(fingerprint, self._record)
        self._store.identify_request(self._record.claim, fingerprint)
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE
        while (outcome := self._twin(ctx, fingerprint)) is _WAITING:
            if time.monotonic() > deadline:
                raise ConcurrentModificationError("The same request runs already: try again later.")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if outcome is not None:
            raise ReplayError(outcome)

    def _hold(self, record: RequestRecord) -> None:
        self._record = record
        self._home.enter(record.id, self)
        if self.gone:
            self._leave()

    def _leave(self) -> None:
        """Note that the client has left: what it sends again, to whichever process, is a repeat of this."""
        if self._renewed and (record := self._record) is not None:
            try:
                self._store.leave_request(record.claim)
            except LanceNamespaceError as error:
                log.warning("cannot note that the client of request %s has left: %s", record.id, error)

    def _drop(self, claim: Claim) -> None:
        self._record = None
        self._home.leave(claim.id, self)
        self._store.forget_request(claim)

    def _give_up(self) -> None:
        if self._record is not None:
            self._fail(ConcurrentModificationError("given up"))

    def _finish(self, status: int, body: str, heard: bool) -> None:
        if (record := self._record) is None:
            return
        try:
            if not self._store.finish_request(record.claim, status, body, self._fingerprint(), heard):
                log.warning("the repeat of request %s was begun before it ended", record.id)
        except LanceNamespaceError as error:
            log.warning("cannot keep the answer to request %s: %s", record.id, error)
        finally:
            self._home.leave(record.id, self)

    def _fail(self, error: BaseException) -> None:
        """Let a repeat start afresh; or, where something may have been committed, look for it first."""
        record, self._record = self._record, None
        if record is None:
            return
        self._home.leave(record.id, self)
        try:
            if _is_refusal(error) and record.attempts == 1:
                self._store.refuse_request(record.claim)
            else:
                self._store.release_request(record.claim)
        except LanceNamespaceError as failure:
            log.warning("cannot let go of request %s: %s", record.id, failure)


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, HttpError):
        return True
    return isinstance(error, LanceNamespaceError) and STATUS[error.code] < 500


def _other_request() -> HttpError:
    return HttpError(
        409, ErrorCode.INVALID_INPUT, "This key was given to another request already: take a new one for each write."
    )
