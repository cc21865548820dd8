"""Run a request with an idempotency key once; replay the stored response to its repeats.

The record in the catalog decides who runs a request. Whether the body is the same is checked second, since the
fingerprint of a large body is known only once all of it has been read.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError, ErrorCode, LanceNamespaceError
from msgspec import structs

from tiltyard.api.bodies.uploads import MemoryBody, StreamedBody, fingerprint_of
from tiltyard.api.errors import STATUS, HttpError
from tiltyard.api.idempotency.keys import RequestKey, read_key
from tiltyard.context import Context, Services
from tiltyard.runtime.lease import Lease
from tiltyard.store import NewRequest, RequestClaim, RequestRecord
from tiltyard.tables.commits.recovery import recover_response

if TYPE_CHECKING:
    from tiltyard.api.binding import Headers
    from tiltyard.model.operations import Handler
    from tiltyard.model.principals import Principal
    from tiltyard.model.spec import Operation


log = logging.getLogger("tiltyard.api")

REPLAYED = ((b"idempotent-replayed", b"true"),)
"""The headers of a replayed response."""
PATIENCE_SECONDS = 50.0
"""How long a repeat waits for the first request: less than the minute after which many a proxy gives up."""
RETRY_WINDOW_MS = 60_000
"""How long after its start a write may be taken for the first try of another: lancedb retries within seconds."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 0.5

Body = bytes | MemoryBody | StreamedBody
Work = Callable[[Context], Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """The response that the first request got."""

    id: str
    status: int
    body: bytes


class ReplayError(Exception):
    """The work on a request is to stop: its response exists already."""

    def __init__(self, response: Any) -> None:
        super().__init__("the request is a repeat")
        self.response = response


class _Pending:
    """Stands for a response that another request is still working on."""


_PENDING = _Pending()


class IdempotentRequests:
    """The requests with a key of one process, and their leases; `pool` runs the writes of their records."""

    def __init__(self, services: Services, pool: Executor) -> None:
        self.store = services.store
        self.pool = pool
        self.owner = uuid.uuid4().hex
        self.lease_ms = int(services.settings.repeat_lease * 1000)
        self.retention_ms = services.settings.repeat_memory * 1000
        self._requests: dict[str, IdempotentRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._report = services.outage_log.report
        self._lease: Lease | None = None
        """All of them as one, renewed in one statement."""

    def open(
        self,
        operation: Operation,
        handler: Handler,
        scope: dict[str, Any],
        headers: Headers,
        principal: Principal,
        is_lancedb: bool,
    ) -> IdempotentRequest | None:
        """Return what runs this request once; None for one without a key.

        Raises InvalidInputError for a header Idempotency-Key that is too long.
        """
        if not self.retention_ms:
            return None
        key = read_key(handler, scope, headers, principal, is_lancedb)
        return None if key is None else IdempotentRequest(self, key, operation, handler)

    def attended(self) -> list[str]:
        """Return the ids of requests that run here and whose clients are still there: none of them is retried yet."""
        return [id_ for id_, request in list(self._requests.items()) if not request.has_client_left]

    def add(self, id_: str, request: IdempotentRequest) -> None:
        """Renew the lease of a request from now on."""
        self._requests[id_] = request

    def remove(self, id_: str, request: IdempotentRequest) -> None:
        """Renew a lease no longer, unless a repeat of the request holds it by now."""
        if self._requests.get(id_) is request:
            del self._requests[id_]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background of a response, on the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self) -> None:
        """Renew leases from now on: a request may have to wait for a thread before it has one. For the event loop."""
        if self._lease is None:
            self._lease = Lease("requests", self._renew, self.lease_ms, report=self._report)

    def close(self) -> None:
        """Renew no lease any more."""
        if self._lease is not None:
            self._lease.close()

    def _renew(self) -> None:
        """Renew the leases of these requests alone: a claim without one was lost on its way from the catalog."""
        if ids := list(self._requests):
            self.store.renew_request_leases(self.owner, self.lease_ms, ids)


class IdempotentRequest:
    """Run a request with a key once; replay the stored response to its repeats."""

    has_client_left = False

    def __init__(self, requests: IdempotentRequests, key: RequestKey, operation: Operation, handler: Handler) -> None:
        self._is_settled = False
        self._requests = requests
        self._store = requests.store
        self._key = key
        self._operation = operation
        self._handler = handler
        self._record: RequestRecord | None = None
        self._body: Body = b""
        self._body_fingerprint: str | None = None
        self._request: Any = None

    async def run(self, ctx: Context, request: Any, body: Body, work: Work, pool: Executor) -> Any:
        """Return the result of `work`, which runs in the pool with a context that claims the request; or a Replay.

        Raises what `work` raises, ConcurrentModificationError while another runs the request, HttpError 409 if the
        key was given to another request.
        """
        self._body, self._request = body, request
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        self._requests.keep()
        while (response := await loop.run_in_executor(pool, self._attempt, ctx, work)) is _PENDING:
            if loop.time() > deadline:
                self._give_up()
                raise ConcurrentModificationError("The first request with this key still runs: try again later.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        return response

    async def begin_response(self, begin: Awaitable[None], record: Callable[[bool], None]) -> None:
        """Begin the response, and `record` whether the client gets it: not if it has left, or `begin` fails."""
        try:
            await begin
        except BaseException:
            record(False)
            raise
        record(not self.has_client_left)

    def settle(self, status: int, body: bytes, acknowledged: bool) -> None:
        """Store the response while it is sent: a repeat that comes before that waits."""
        self._is_settled = True
        self._requests.spawn(self._settle(status, body, acknowledged))

    async def _settle(self, status: int, body: bytes, acknowledged: bool) -> None:
        await self._in_pool(self._finish, status, body.decode(), acknowledged)

    def watch_client(self, disconnect: Coroutine[Any, Any, None]) -> None:
        """Record when the client leaves, which `disconnect` waits for."""
        self._requests.spawn(self._watch_client(disconnect))

    async def _watch_client(self, disconnect: Coroutine[Any, Any, None]) -> None:
        await disconnect
        self.has_client_left = True
        if not self._is_settled:
            await self._in_pool(self._record_disconnect)

    def settle_replay(self, replay: Replay, acknowledged: bool) -> None:
        """Record whether the client got the first request's response, which was not acknowledged before."""
        if self._record is not None:
            self.settle(replay.status, replay.body, acknowledged)
        elif not acknowledged:
            self._requests.spawn(self._record_unacknowledged(replay))

    async def _record_unacknowledged(self, replay: Replay) -> None:
        await self._in_pool(self._store.acknowledge_request, replay.id, False)

    async def _in_pool(self, function: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._requests.pool, function, *arguments)

    # What follows runs in threads.

    def _attempt(self, ctx: Context, work: Work) -> Any:
        """Claim the request and run it; return its response, a Replay, or _PENDING while another runs it."""
        if self._record is None:
            record, is_claimed = self._store.begin_request(self._new_request())
            if not is_claimed:
                return self._response_of(record)
            self._hold(record)
        assert self._record is not None
        claiming = structs.replace(ctx, claims=(self._record.claim,))
        ctx = structs.replace(claiming, before_commit=partial(self._confirm, claiming))
        try:
            if (response := self._existing_response(ctx)) is not None:
                return response
            return work(ctx)
        except ReplayError as replay:
            return replay.response
        except BaseException as error:
            self._fail(error)
            raise

    def _new_request(self) -> NewRequest:
        leases = self._requests
        return NewRequest(
            self._key.id, self._key.scope, self._fingerprint(), leases.owner, leases.lease_ms, leases.retention_ms
        )

    def _fingerprint(self) -> str | None:
        """Return the body's fingerprint; None while a streamed body has not been read to its end."""
        if self._body_fingerprint is None:
            body = self._body
            self._body_fingerprint = fingerprint_of(body) if isinstance(body, bytes) else body.fingerprint
        return self._body_fingerprint

    def _fingerprint_to_end(self) -> str | None:
        """Return the body's fingerprint; reads what is left of a streamed body."""
        return self._body.drain() if isinstance(self._body, StreamedBody) else self._fingerprint()

    def _response_of(self, record: RequestRecord) -> Any:
        """Return the response where another request holds the key, _PENDING while it runs. Raises HttpError 409."""
        if record.scope != self._key.scope:
            raise _key_reused()
        if record.status is None:
            self._check_body(self._fingerprint(), record)
            return _PENDING
        self._check_body(self._fingerprint_to_end(), record)
        return Replay(record.id, record.status, (record.body or "").encode())

    def _check_body(self, fingerprint: str | None, record: RequestRecord) -> None:
        """Raise HttpError 409 if the key was given to a request with another body."""
        if fingerprint and record.fingerprint and fingerprint != record.fingerprint:
            raise _key_reused()

    def _existing_response(self, ctx: Context) -> Any:
        """Return the response of an earlier try that has committed; None if the work is still to be done."""
        assert self._record is not None
        if self._record.attempts > 1 and (response := self._recovered(ctx, self._record)) is not None:
            return response
        return self._response_of_twin(ctx, self._record.fingerprint)

    def _recovered(self, ctx: Context, record: RequestRecord) -> Any:
        """Return the response of an interrupted try that has committed. Raises HttpError 409 for another body."""
        response = recover_response(ctx, self._operation, self._handler, self._request, record)
        if response is not None:
            self._check_body(self._fingerprint_to_end(), record)
        return response

    def _response_of_twin(self, ctx: Context, fingerprint: str | None) -> Any:
        """Return the response of the same request under another key whose client did not acknowledge it.

        None if there is no such request; _PENDING while it runs.
        """
        record = self._record
        if not self._key.is_matched_by_body or record is None or fingerprint is None:
            return None
        new = structs.replace(self._new_request(), fingerprint=fingerprint)
        match = self._store.claim_unacknowledged_request(
            new, RETRY_WINDOW_MS, self._requests.attended(), record.created_at
        )
        if match is None:
            return None
        twin, is_claimed = match
        if is_claimed:
            return self._take_over(ctx, record, twin)
        body = twin.body or ""
        if twin.status is None or not self._store.adopt_response(record.claim, twin.id, body):
            return _PENDING
        return Replay(record.id, twin.status, body.encode())

    def _take_over(self, ctx: Context, record: RequestRecord, twin: RequestRecord) -> Any:
        """Return the response of an interrupted twin, and hold its record; None if it has not committed."""
        self._requests.add(twin.id, self)
        try:
            response = self._recovered(ctx, twin)
        except BaseException:
            self._requests.remove(twin.id, self)
            self._store.release_request(twin.claim)
            raise
        if response is None:
            self._requests.remove(twin.id, self)
            self._store.discard_request(twin.claim)
            return None
        self._discard(record.claim)
        self._hold(twin)
        return response

    def _confirm(self, ctx: Context) -> None:
        """Record a streamed body's fingerprint before it is committed, and look for a twin now that it is known.

        Raises ReplayError if the request is a repeat, ConcurrentModificationError while its twin runs, HttpError 409.
        """
        if self._record is None or (fingerprint := self._fingerprint_to_end()) is None:
            return
        self._check_body(fingerprint, self._record)
        self._store.record_fingerprint(self._record.claim, fingerprint)
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        while (response := self._response_of_twin(ctx, fingerprint)) is _PENDING:
            if time.monotonic() > deadline:
                raise ConcurrentModificationError("The same request runs already: try again later.")
            time.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        if response is not None:
            raise ReplayError(response)

    def _hold(self, record: RequestRecord) -> None:
        """Hold a record that this request has claimed."""
        self._record = record
        self._requests.add(record.id, self)
        if self.has_client_left:
            self._record_disconnect()

    def _record_disconnect(self) -> None:
        """Record that the client has left: what it sends again, to whichever process, is a repeat of this."""
        if self._key.is_matched_by_body and (record := self._record) is not None:
            try:
                self._store.mark_client_disconnected(record.claim)
            except LanceNamespaceError as error:
                log.warning("cannot record that the client of request %s has left: %s", record.id, error)

    def _discard(self, claim: RequestClaim) -> None:
        self._record = None
        self._requests.remove(claim.id, self)
        self._store.discard_request(claim)

    def _give_up(self) -> None:
        if self._record is not None:
            self._fail(ConcurrentModificationError("given up"))

    def _finish(self, status: int, body: str, acknowledged: bool) -> None:
        """Store the response. One that cannot be stored is logged: the client gets it in any case."""
        if (record := self._record) is None:
            return
        try:
            if not self._store.finish_request(record.claim, status, body, self._fingerprint(), acknowledged):
                log.warning("a repeat of request %s started before it ended", record.id)
        except LanceNamespaceError as error:
            log.warning("cannot store the response to request %s: %s", record.id, error)
        finally:
            self._requests.remove(record.id, self)

    def _fail(self, error: BaseException) -> None:
        """Let a repeat start afresh; or, where something may have been committed, look for that first."""
        record, self._record = self._record, None
        if record is None:
            return
        self._requests.remove(record.id, self)
        try:
            if _is_refusal(error) and record.attempts == 1:
                self._store.discard_or_release_request(record.claim)
            else:
                self._store.release_request(record.claim)
        except LanceNamespaceError as failure:
            log.warning("cannot release request %s: %s", record.id, failure)


def _is_refusal(error: BaseException) -> bool:
    """Whether an error says that nothing was committed."""
    if isinstance(error, HttpError):
        return True
    return isinstance(error, LanceNamespaceError) and STATUS[error.code] < 500


def _key_reused() -> HttpError:
    return HttpError(
        409, ErrorCode.INVALID_INPUT, "This key was given to another request already: take a new one for each write."
    )
