"""Log why a storage or the catalog's database fails: one line a minute for each cause, in the system's own words.

Callers get 503 and one sentence, which says nothing of the inside. Whoever runs the server needs to know which disk is
full, and would else look for it in thousands of equal answers.
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

from tiltyard.runtime.clocks import wall_clock

SILENCE_MS = 60_000
"""For how long a cause that was logged is only counted."""
MOST_CAUSES = 100
LONGEST_WORDS = 300

_DATABASES = ("sqlite3", "psycopg")
"""Packages whose errors are the database's."""
_PLACES_IN_CODE = re.compile(r",? (?:location: )?/\S*\.rs:\d+:\d+")
_QUERIES = re.compile(r"\?\S+")
"""Of URLs: some are signed."""
_NUMBER = re.compile(r"\b(?:os error|[Ee]rrno) (\d+)")
"""Of a system's error: Rust and Python say it in other words."""
_FULL = "database or disk is full"
"""SQLite's words for it."""
_DEBUG = "Debug source:"
"""Behind it obstore says all of it again, over many lines."""
_CHANGING = re.compile(r"\S*/\S*|[0-9a-f-]{12,}|\d+")
"""URLs, names of files and figures, which tell no cause from another."""

log = logging.getLogger("tiltyard")


class StorageUnavailableError(ServiceUnavailableError):
    """A storage does not answer, or takes no more; `location` is where, as far as that is known."""

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message)
        self.location = location


@dataclass(slots=True)
class _Cause:
    logged_at: int
    silent: int = 0
    """How often it has come since then."""


class OutageLog:
    """What fails in this process. Safe to use from several threads."""

    def __init__(self, roots: Sequence[str], database: str, clock: Callable[[], int] = wall_clock) -> None:
        """`roots` are where tables may lie, `database` is the catalog's URL; `clock` counts milliseconds."""
        self._roots = sorted(roots, key=len, reverse=True)
        self._database = _without_login(database)
        self._file = database.removeprefix("sqlite:///") if database.startswith("sqlite:///") else ""
        self._clock = clock
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._lock = threading.Lock()

    def report(self, error: BaseException) -> bool:
        """Log an error that something outside of the server has caused, unless the same was logged just now.

        Whether it is such an error.
        """
        origin = _origin(error)
        if origin is None:
            return False
        where, words = self._where(error, origin), _words(origin)
        key = (where, _cause(words))
        with self._lock:
            now = self._clock()
            cause = self._causes.get(key)
            if cause is not None and now - cause.logged_at < SILENCE_MS:
                cause.silent += 1
                return True
            further = f" (and {cause.silent} times more in the minute before)" if cause and cause.silent else ""
            self._causes.pop(key, None)
            while len(self._causes) >= MOST_CAUSES:
                del self._causes[next(iter(self._causes))]
            self._causes[key] = _Cause(now)
        log.error("%s fails: %s%s", where, words, further)
        return True

    def _where(self, error: BaseException, origin: BaseException) -> str:
        if type(origin).__module__.partition(".")[0].partition("_")[0] in _DATABASES:
            return f"the catalog's database {self._database}"
        told = [str(getattr(origin, "filename", None) or ""), str(origin)]
        if self._file and any(self._file in text for text in told):
            return f"the catalog's database {self._database}"
        locations = [one.location for one in _chain(error) if isinstance(one, StorageUnavailableError)]
        for root in self._roots:
            if any(_is_below(location, root) for location in locations) or any(root in text for text in told):
                return f"the root {root}"
        if len(self._roots) == 1:
            return f"the root {self._roots[0]}"
        return "one of the roots " + ", ".join(sorted(self._roots))


def _cause(words: str) -> str:
    """What is the same for all errors of one cause."""
    if _FULL in words:
        return str(errno.ENOSPC)
    number = _NUMBER.search(words)
    return number[1] if number else _CHANGING.sub("", words)


def _is_below(location: str, root: str) -> bool:
    location = location.removeprefix("file://")
    return location == root or location.startswith(f"{root.rstrip('/')}/")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, the first cause last."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _origin(error: BaseException) -> BaseException | None:
    """The first cause of a failure, or of a refusal by a storage, if that is none of our own errors.

    Those are about requests.
    """
    if not isinstance(error, ServiceUnavailableError | PermissionDeniedError):
        return None
    *_, last = _chain(error)
    if isinstance(last, LanceNamespaceError):
        return None
    return last if isinstance(error, ServiceUnavailableError) or isinstance(last, OSError) else None


def _words(origin: BaseException) -> str:
    """What the system says, in one line: without places in code, and without what a URL may be signed with."""
    text = " ".join([str(origin).partition(_DEBUG)[0] or type(origin).__name__, *getattr(origin, "__notes__", ())])
    return " ".join(_QUERIES.sub("?…", _PLACES_IN_CODE.sub("", text)).split())[:LONGEST_WORDS]


def _without_login(database: str) -> str:
    """A database's URL without who logs in, and with what."""
    parts = urlsplit(database)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
