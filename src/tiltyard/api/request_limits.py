"""What one caller, or all of them together, may ask. What is not limited costs a look at a flag.

`docs/limits.md` has the limits with their answers.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, get_args, get_origin

import msgspec
from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.errors import HttpError
from tiltyard.api.rate_limits import Bucket, open_times
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.model.principals import EVERYBODY
from tiltyard.model.spec import models

QUERIES = frozenset({"QueryTable", "CountTableRows", "ExplainTableQueryPlan", "AnalyzeTableQueryPlan"})
COUNTED = {
    "AlterTableAddColumns": "new_columns",
    "AlterTableAlterColumns": "alterations",
    "AlterTableDropColumns": "columns",
    "AlterTransaction": "actions",
    "BatchCommitTables": "operations",
    "BatchCreateTableVersions": "entries",
    "BatchDeleteTableVersions": "ranges",
}
"""Where a request has entries that are each work of their own."""

_NARROWER: Mapping[tuple[type, str], str] = {
    (models.QueryTableVector, "multi_vector"): "max_vectors",
    (models.QueryTableRequest, "order_by"): "",
}
"""Lists whose entries cost more than others: the setting that bounds them, "" for `MOST_ORDERS`."""
MOST_ORDERS = 64
"""Columns that one answer is ordered by."""

SMALL_QUERY = 64 << 10
"""Bytes of a query's body up to which it is not counted."""
LARGE_QUERIES = 2
"""How many of the largest bodies (`max_json_bytes`) all queries that run may have been asked by, small ones apart: a
number of a vector takes 32 bytes for as few as 2 that are sent, for as long as its query waits and runs."""

EVERY_CALLER = ""
"""Stands for all of them; nobody has no name."""
_EACH = 20
"""Lists and objects that an entry of a request may have."""
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.?)*+"?', re.DOTALL)  # also one that never ends: to look for its end takes once
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


class Slot:
    """A query that runs; left once its last thread is done with it, whenever its caller was answered."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._held = 1

    def hold(self, work: Future[Any] | Any) -> None:
        """Keep the slot until this future is done, too; on the event loop."""
        self._held += 1
        work.add_done_callback(lambda _: self.leave())

    def leave(self) -> None:
        """Done; on the event loop."""
        self._held -= 1
        if not self._held:
            self._leave()


class Limits:
    """The limits of one process. Its methods run on the event loop."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        times = open_times()
        self._each = Bucket(settings.rate_limits, settings.rate_limit, settings.rate_burst, clock, times)
        self._all = Bucket({}, settings.rate_limit_total, settings.rate_burst, clock, times)
        self._rated = bool(settings.rate_limit or settings.rate_limits or settings.rate_limit_total)
        self._slotted = bool(settings.max_queries or settings.max_queries_total)
        self._queries: Counter[str] = Counter()
        self._asked = 0
        """Bytes of the large bodies of queries that run."""
        self.running = 0

    def admit(self, ctx: Context, address: str) -> None:
        """Let a request in. Raises HttpError 429."""
        if not self._rated:
            return
        name = caller(ctx, address)
        wait = self._each.take(name)
        if wait:
            raise _throttled("You send too many requests", wait)
        wait = self._all.take(EVERY_CALLER)
        if wait:
            raise _throttled("The server is sent too many requests", wait)

    def enter(self, ctx: Context, address: str, size: int = 0) -> Slot | None:
        """A place for a query whose body has so many bytes, None where there is no limit. Raises HttpError 429."""
        large = size if size > SMALL_QUERY else 0
        if not self._slotted and not large:
            return None
        name = caller(ctx, address)
        most, most_total = self._settings.max_queries, self._settings.max_queries_total
        if most and self._queries[name] >= most:
            raise _throttled(f"{most} queries of yours run already", 1)
        if most_total and self.running >= most_total:
            raise _throttled(f"{most_total} queries run already", 1)
        if large and self._asked and self._asked + large > LARGE_QUERIES * self._settings.max_json_bytes:
            raise _throttled(f"Queries run already that were asked by {self._asked} bytes together", 1)
        self._queries[name] += 1
        self.running += 1
        self._asked += large

        def leave() -> None:
            self.running -= 1
            self._asked -= large
            self._queries[name] -= 1
            if not self._queries[name]:
                del self._queries[name]

        return Slot(leave)

    def check_depth(self, body: bytes) -> None:
        """Refuse JSON that is nested deeper, or of more lists and objects, than allowed. Raises InvalidInputError.

        Each of them takes some 100 bytes once it is parsed, for as few as 2 in the body.
        """
        most = self._settings.max_json_depth
        # So many brackets are needed for that, and most bodies have fewer: two scans at the speed of memory.
        brackets = body.count(b"[") + body.count(b"{")
        if brackets > most and depth(body) > most:
            raise InvalidInputError(f"The body is nested deeper than {most} levels.")
        most = self._settings.max_operations * _EACH
        if brackets > most and sum(map(_STRINGS.sub(b"", body).count, (b"[", b"{"))) > most:
            raise InvalidInputError(f"The body has more than {most} lists and objects: send it in parts.")

    def check_entries(self, operation: str, request: Any) -> None:
        """Refuse a batch that is too long. Raises InvalidInputError."""
        most = self._settings.max_operations
        field = COUNTED.get(operation)
        if field is not None and (number := len(getattr(request, field) or ())) > most:
            raise InvalidInputError(f"The request has {number} {field}: at most {most}, so send it in parts.")
        self._check_counts(request)

    def _check_counts(self, value: msgspec.Struct) -> None:
        """Check the lists and maps of a request, and of all that is in it."""
        kind = type(value)
        for name in _repeating(kind):
            inside = getattr(value, name)
            if inside is None:
                continue
            if isinstance(inside, msgspec.Struct):
                self._check_counts(inside)
                continue
            if isinstance(inside, list | dict):
                setting = _NARROWER.get((kind, name), "max_operations")
                most = getattr(self._settings, setting) if setting else MOST_ORDERS
                if len(inside) > most:
                    raise InvalidInputError(f"The request has {len(inside)} entries in '{name}': at most {most}.")
                for entry in inside.values() if isinstance(inside, dict) else inside:
                    if not isinstance(entry, msgspec.Struct):
                        break  # texts and numbers: entries of one list are alike
                    self._check_counts(entry)


@cache
def _repeating(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that have entries, or structs that may have; a vector's numbers are no entries."""
    return tuple(one.name for one in msgspec.structs.fields(kind) if _repeats(one.type))


def _repeats(kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (list, dict):
        return parts != (float,)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return any(_repeats(part) for part in parts)


def caller(ctx: Context, address: str) -> str:
    """Whom a limit is counted for: a principal; where nobody is asked who it is, an address."""
    return f"address {address}" if ctx.principal is EVERYBODY else ctx.principal.name


def depth(body: bytes) -> int:
    """How deep JSON is nested; of what is no JSON, any number."""
    brackets = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    deepest = level = 0
    for bracket in brackets:
        if bracket in _OPENING:
            level += 1
            deepest = max(deepest, level)
        else:
            level -= 1
    return deepest


def _throttled(what: str, wait: float) -> HttpError:
    seconds = max(1, math.ceil(wait))
    return HttpError(
        429,
        ErrorCode.THROTTLING,
        f"{what}: try again in {seconds} s.",
        ((b"retry-after", b"%d" % seconds),),
    )
