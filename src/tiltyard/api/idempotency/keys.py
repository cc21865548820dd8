"""Exactly once: a write that comes again with the same key gets the answer of the first, and changes nothing.

`docs/exactly-once.md` says what is covered. Here is which requests have a key, and what one process runs of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.api.binding import TABLE_LOCATION, TABLE_PROPERTIES, Headers
from tiltyard.api.idempotency.requests import Once
from tiltyard.context import Services
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.spec import Operation

log = logging.getLogger("tiltyard.api")

KEY = b"idempotency-key"
REQUEST_ID = b"x-request-id"
REPLAYED = ((b"idempotent-replayed", b"true"),)
LONGEST_KEY = 255
DATABASE = b"x-lancedb-database"
SHOWN = (b"authorization", b"x-api-key")
"""What tells callers apart where nobody is asked who it is."""

_READS = re.compile(r"WhoAmI|(Analyze|Check|Count|Describe|Explain|Get|List|Prewarm|Query)\w+|\w+Exists")
RENEWED = frozenset({"InsertIntoTable", "MergeInsertIntoTable"})
"""What lancedb tries again under a new request id each time, so that the body has to tell."""
UNKEPT = frozenset({"CreateApiKey", "RotateApiKey"})
"""What is answered with a secret: none is kept, so a repeat makes a new one."""


def changes(operation: Operation) -> bool:
    """Whether an operation changes data or the catalog."""
    return _READS.fullmatch(operation.name) is None


class Repeats:
    """The requests with a key that one process runs; `pool` is where their records are written."""

    def __init__(self, services: Services, pool: Executor) -> None:
        self.services = services
        self.pool = pool
        self.owner = uuid.uuid4().hex
        self.lease_ms = int(services.settings.repeat_lease * 1000)
        self.memory_ms = services.settings.repeat_memory * 1000
        self._running: dict[str, Once] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating = False
        self._waiting = 0

    def find(
        self, operation: Operation, scope: Any, headers: Headers, principal: Principal, speaks_remote: bool
    ) -> Once | None:
        """What runs this request once; None for one without a key, or that only reads. Raises InvalidInputError."""
        key = headers.get(KEY)
        if key is None and not speaks_remote:
            return None
        by_id = key is None
        if by_id:
            key = headers.get(REQUEST_ID)
        if key is None or not self.memory_ms or not changes(operation) or operation.name in UNKEPT:
            return None
        if not 0 < len(key) <= LONGEST_KEY:
            if by_id:
                return None  # whoever put it there asked for nothing
            raise InvalidInputError(f"The header Idempotency-Key has 1 to {LONGEST_KEY} bytes.")
        what = b"%s %s?%s" % (scope["method"].encode(), scope["raw_path"], scope["query_string"])
        if fields := [headers[name] for name in (TABLE_LOCATION, TABLE_PROPERTIES) if name in headers]:
            what += b" %s" % hashlib.blake2b(b"\0".join(fields), digest_size=16).hexdigest().encode()
        # Nobody is told another's answers; a principal is the same one when it comes again with a newer token.
        who = [headers.get(name, b"") for name in SHOWN] if principal is EVERYBODY else [principal.name.encode()]
        who.append(headers.get(DATABASE, b""))
        id_ = _digest([key, *who, what if by_id else b""])
        if renewed := by_id and operation.name in RENEWED:
            what += b" of %s" % _digest(who).encode()  # it is compared with requests under other ids
        return Once(self, id_, what.decode("latin-1"), operation.name, renewed)

    def attended(self) -> list[str]:
        """The requests that run here and whose clients are still there: none of them is tried again yet."""
        return [id_ for id_, once in list(self._running.items()) if not once.gone]

    def enter(self, id_: str, once: Once) -> None:
        """Keep the lease of a request that runs here."""
        self._running[id_] = once

    def leave(self, id_: str, once: Once) -> None:
        """Keep it no longer, unless a repeat of it runs here by now."""
        if self._running.get(id_) is once:
            del self._running[id_]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the answer; runs on the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """See that leases are kept, from before a request has one: it may wait for a thread. For the event loop."""
        self._waiting += 1
        if not self._beating:
            self._beating = True
            self.spawn(self._keep_leases())
        try:
            yield
        finally:
            self._waiting -= 1

    async def _keep_leases(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(self.lease_ms / 3000)
                if not self._running and not self._waiting:
                    return
                try:
                    await loop.run_in_executor(self.pool, self._extend, list(self._running))
                except LanceNamespaceError as error:
                    log.warning("cannot extend the leases of requests: %s", error)
        finally:
            self._beating = False

    def _extend(self, ids: Sequence[str]) -> None:
        """What runs here, and no more: a claim that nobody here knows of was lost on its way from the catalog."""
        self.services.store.keep_requests(self.owner, self.lease_ms, ids)


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"\0".join(b"%d:%s" % (len(part), part) for part in parts), digest_size=16).hexdigest()
