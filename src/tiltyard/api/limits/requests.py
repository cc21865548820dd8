"""Limit the requests of each caller and of all callers together, and the size of each request.

`docs/limits.md` has the limits with their responses. A limit that is not set costs the check of a flag.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, get_args, get_origin

import msgspec
from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.errors import HttpError
from tiltyard.api.limits.rates import RateLimit, open_buckets
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.principals import EVERYBODY
from tiltyard.model.spec import models
from tiltyard.runtime.cache import cached

_NARROWER_LIMITS: Mapping[tuple[type, str], str] = {
    (models.QueryTableVector, "multi_vector"): "max_vectors",
    (models.QueryTableRequest, "order_by"): "",
}
"""Lists whose entries cost more than others: the setting that limits them, "" for `MAX_ORDER_BY`."""
MAX_ORDER_BY = 64
"""Columns that one response is ordered by."""

SMALL_QUERY_BYTES = 64 << 10
"""Bytes of a query's body up to which it is not counted."""
LARGE_QUERIES = 2
"""How many of the largest bodies (`max_json_bytes`) all running queries may have together, without small ones: a number
of a vector takes 32 bytes for as few as 2 that are sent, for as long as its query waits and runs."""

ALL_CALLERS = ""
"""The name of the bucket of all callers together; no caller's name is empty."""
_CONTAINERS_PER_ENTRY = 20
"""Lists and objects that an entry of a request may have."""
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.?)*+"?', re.DOTALL)
"""String literals. Their end is optional, so that an unclosed one is scanned only once."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


class QuerySlot:
    """The slot of a running query, free once its last thread has ended, whenever its client was answered.

    Its methods run on the event loop.
    """

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._on_free = on_free
        self._holders = 1

    def hold_until(self, work: Future[Any] | Any) -> None:
        """Hold the slot until this future is done, too."""
        self._holders += 1
        work.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """Free the slot, unless other work holds it."""
        self._holders -= 1
        if not self._holders:
            self._on_free()


class Limits:
    """The limits of one process. Its methods run on the event loop."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        buckets = open_buckets()
        self._per_caller = RateLimit(settings.rate_limits, settings.rate_limit, settings.rate_burst, clock, buckets)
        self._total = RateLimit({}, settings.rate_limit_total, settings.rate_burst, clock, buckets)
        self._has_rate_limit = bool(settings.rate_limit or settings.rate_limits or settings.rate_limit_total)
        self._has_query_limit = bool(settings.max_queries or settings.max_queries_total)
        self._queries: Counter[str] = Counter()
        self._large_bytes = 0
        """Bytes of the large bodies of running queries."""
        self.running_queries = 0

    def admit(self, ctx: Context, address: str) -> None:
        """Count what is no operation, a page or a statement, as `check_rate` does, and for its caller's quotas.

        Raises HttpError 429, and as `QuotaChecks.check_requests` does.
        """
        self.check_rate(ctx, address)
        ctx.services.quotas.check_requests(ctx.principal.name)
        ctx.services.quotas.count_request(ctx.principal.name)

    def check_rate(self, ctx: Context, address: str) -> None:
        """Count a request. Raises HttpError 429 if its caller, or all callers together, send too many."""
        if not self._has_rate_limit:
            return
        wait = self._per_caller.take(caller_name(ctx, address))
        if wait:
            raise _throttled("You send too many requests", wait)
        wait = self._total.take(ALL_CALLERS)
        if wait:
            raise _throttled("The server gets too many requests", wait)

    def acquire_slot(self, ctx: Context, address: str, size: int = 0) -> QuerySlot | None:
        """Acquire the slot of a query whose body has `size` bytes; None where no limit is set. Raises HttpError 429."""
        large_bytes = size if size > SMALL_QUERY_BYTES else 0
        if not self._has_query_limit and not large_bytes:
            return None
        name = caller_name(ctx, address)
        most, most_total = self._settings.max_queries, self._settings.max_queries_total
        if most and self._queries[name] >= most:
            raise _throttled(f"{most} queries of yours run already", 1)
        if most_total and self.running_queries >= most_total:
            raise _throttled(f"{most_total} queries run already", 1)
        most_bytes = LARGE_QUERIES * self._settings.max_json_bytes
        if large_bytes and self._large_bytes and self._large_bytes + large_bytes > most_bytes:
            raise _throttled(f"Queries run already whose bodies have {self._large_bytes} bytes together", 1)
        self._queries[name] += 1
        self.running_queries += 1
        self._large_bytes += large_bytes

        def on_free() -> None:
            self.running_queries -= 1
            self._large_bytes -= large_bytes
            self._queries[name] -= 1
            if not self._queries[name]:
                del self._queries[name]

        return QuerySlot(on_free)

    def check_depth(self, body: bytes) -> None:
        """Raise InvalidInputError for JSON that is nested deeper, or of more lists and objects, than allowed.

        Each of them takes some 100 bytes once it is parsed, for as few as 2 in the body.
        """
        most = self._settings.max_json_depth
        # A body that is too deep has more brackets than that, and most bodies have fewer: two scans at memory speed.
        brackets = body.count(b"[") + body.count(b"{")
        if brackets > most and depth(body) > most:
            raise InvalidInputError(f"The body is nested deeper than {most} levels.")
        most = self._settings.max_operations * _CONTAINERS_PER_ENTRY
        if brackets > most and sum(map(_STRINGS.sub(b"", body).count, (b"[", b"{"))) > most:
            raise InvalidInputError(f"The body has more than {most} lists and objects: send it in parts.")

    def check_entries(self, field: str | None, request: Any) -> None:
        """Raise InvalidInputError for a request with too many entries in its `field`, or in any list or map."""
        most = self._settings.max_operations
        if field is not None and (number := len(getattr(request, field) or ())) > most:
            raise InvalidInputError(f"The request has {number} {field}: at most {most}, so send it in parts.")
        self._check_counts(request)

    def _check_counts(self, value: msgspec.Struct) -> None:
        """Check the lists and maps of a request, and those inside them."""
        for name, setting in _repeating(type(value)):
            inside = getattr(value, name)
            if not inside:
                continue
            if isinstance(inside, (list, dict)):
                most = getattr(self._settings, setting) if setting else MAX_ORDER_BY
                if len(inside) > most:
                    raise InvalidInputError(f"The request has {len(inside)} entries in '{name}': at most {most}.")
                for entry in inside.values() if isinstance(inside, dict) else inside:
                    if not isinstance(entry, msgspec.Struct):
                        break  # strings or numbers: the entries of one list are alike
                    self._check_counts(entry)
            elif isinstance(inside, msgspec.Struct):
                self._check_counts(inside)


@cached("limited fields", "Fields of a request's type whose entries are counted", max_entries=1000)
def _repeating(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a struct that are lists, maps, or structs that may have some, each with its limit's setting.

    Vectors do not count.
    """
    names = (info.name for info in msgspec.structs.fields(kind) if _repeats(info.type))
    return tuple((name, _NARROWER_LIMITS.get((kind, name), "max_operations")) for name in names)


def _repeats(kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (list, dict):
        return parts != (float,)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return any(_repeats(part) for part in parts)


def caller_name(ctx: Context, address: str) -> str:
    """Return the name a limit is counted for: the principal's, or without authentication the address's."""
    return f"address {address}" if ctx.principal is EVERYBODY else ctx.principal.name


def depth(body: bytes) -> int:
    """Return how deep JSON is nested; any number for what is no JSON."""
    brackets = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    deepest = level = 0
    for bracket in brackets:
        if bracket in _OPENING:
            level += 1
            deepest = max(deepest, level)
        else:
            level -= 1
    return deepest


def _throttled(reason: str, wait: float) -> HttpError:
    """Return the error 429 with the seconds to wait."""
    seconds = max(1, math.ceil(wait))
    return HttpError(
        429,
        ErrorCode.THROTTLING,
        f"{reason}: try again in {seconds} s.",
        ((b"retry-after", b"%d" % seconds),),
    )
