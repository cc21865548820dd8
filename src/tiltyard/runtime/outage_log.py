"""Log why a storage, the catalog's database or another system fails: each cause once a minute, in the system's words.

Callers get 503 and one sentence without internals. The operator needs to know which disk is full, without searching
for it in thousands of equal responses.
"""

from __future__ import annotations

import errno
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError, ServiceUnavailableError

from tiltyard.runtime.process import wall_clock

SILENCE_MS = 60_000
"""How long a cause is only counted after it was logged."""
MAX_CAUSES = 100
MAX_MESSAGE_LENGTH = 300

_DATABASES = ("sqlite3", "psycopg")
"""Packages that raise the database's errors."""
_SOURCE_LINES = re.compile(r",? (?:location: )?/\S*\.rs:\d+:\d+")
_QUERIES = re.compile(r"\?\S+")
"""Query strings of URLs: some are signed."""
_NUMBER = re.compile(r"\b(?:os error|[Ee]rrno) (\d+)")
"""A system error's number, as Rust and as Python write it."""
_FULL = "database or disk is full"
"""SQLite's message for a full disk."""
_DEBUG = "Debug source:"
"""After this, obstore repeats its message over many lines."""
_VARIABLE_PARTS = re.compile(r"\S*/\S*|[0-9a-f-]{12,}|\d+")
"""URLs, file names and numbers, which vary between errors of one cause."""

log = logging.getLogger("tiltyard")


class StorageUnavailableError(ServiceUnavailableError):
    """A storage does not answer, or is full; `location` is where, if that is known."""

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message)
        self.location = location


class SystemUnavailableError(ServiceUnavailableError):
    """A system that is neither a storage nor the catalog's database does not answer; `system` is its name, if known."""

    def __init__(self, message: str, system: str = "") -> None:
        super().__init__(message)
        self.system = system


@dataclass(slots=True)
class _Cause:
    logged_at: int
    suppressed: int = 0
    """How often it has occurred since then."""


class OutageLog:
    """Log the outages that this process meets, without repetitions. Safe to use from several threads."""

    def __init__(self, roots: Sequence[str], database: str, clock: Callable[[], int] = wall_clock) -> None:
        """`roots` are the locations of the roots, `database` is the catalog's URL; `clock` returns milliseconds."""
        self._roots = sorted(roots, key=len, reverse=True)
        self._database = _without_credentials(database)
        self._sqlite_file = database.removeprefix("sqlite:///") if database.startswith("sqlite:///") else ""
        self._clock = clock
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._lock = threading.Lock()

    def report(self, error: BaseException) -> bool:
        """Log an error that an outage has caused, unless the same cause was logged just now.

        Return whether an outage caused it: a failure outside of the server.
        """
        origin = _origin(error)
        if origin is None:
            return False
        system, message = self._failed_system(error, origin), _message(origin)
        key = (system, _cause_of(message))
        with self._lock:
            now = self._clock()
            cause = self._causes.get(key)
            if cause is not None and now - cause.logged_at < SILENCE_MS:
                cause.suppressed += 1
                return True
            suppressed = cause.suppressed if cause else 0
            repetitions = f" (and {suppressed} times more in the minute before)" if suppressed else ""
            self._causes.pop(key, None)
            while len(self._causes) >= MAX_CAUSES:
                del self._causes[next(iter(self._causes))]
            self._causes[key] = _Cause(now)
        log.error("%s fails: %s%s", system, message, repetitions)
        return True

    def _failed_system(self, error: BaseException, origin: BaseException) -> str:
        """Name the database, the root, or another system that failed."""
        for cause in _chain(error):
            if isinstance(cause, SystemUnavailableError) and cause.system:
                return cause.system
        if type(origin).__module__.partition(".")[0].partition("_")[0] in _DATABASES:
            return f"the catalog's database {self._database}"
        texts = [str(getattr(origin, "filename", None) or ""), str(origin)]
        if self._sqlite_file and any(self._sqlite_file in text for text in texts):
            return f"the catalog's database {self._database}"
        locations = [cause.location for cause in _chain(error) if isinstance(cause, StorageUnavailableError)]
        for root in self._roots:
            if any(_is_below(location, root) for location in locations) or any(root in text for text in texts):
                return f"the root {root}"
        if len(self._roots) == 1:
            return f"the root {self._roots[0]}"
        return "one of the roots " + ", ".join(sorted(self._roots))


def _cause_of(message: str) -> str:
    """Return the part of a message that is equal for all errors of one cause."""
    if _FULL in message:
        return str(errno.ENOSPC)
    number = _NUMBER.search(message)
    return number[1] if number else _VARIABLE_PARTS.sub("", message)


def _is_below(location: str, root: str) -> bool:
    location = location.removeprefix("file://")
    return location == root or location.startswith(f"{root.rstrip('/')}/")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and its causes, the root cause last."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _origin(error: BaseException) -> BaseException | None:
    """Return the root cause of a failure, or of a storage's refusal; None if it is one of the namespace's errors.

    Those are about requests, and no outages.
    """
    if not isinstance(error, ServiceUnavailableError | PermissionDeniedError):
        return None
    *_, last = _chain(error)
    if isinstance(last, LanceNamespaceError):
        return None
    return last if isinstance(error, ServiceUnavailableError) or isinstance(last, OSError) else None


def _message(origin: BaseException) -> str:
    """Return the system's message in one line, without lines of source code and query strings of URLs."""
    text = " ".join([str(origin).partition(_DEBUG)[0] or type(origin).__name__, *getattr(origin, "__notes__", ())])
    return " ".join(_QUERIES.sub("?…", _SOURCE_LINES.sub("", text)).split())[:MAX_MESSAGE_LENGTH]


def _without_credentials(database: str) -> str:
    """Remove user and password from a database's URL."""
    parts = urlsplit(database)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
