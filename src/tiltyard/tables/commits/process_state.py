"""State of commits that one process keeps in memory, each class safe to use from several threads.

`CommitLog` collects versions that this process has finalized, and tables that it has committed to in storage alone, to
note both in the catalog in the background.
`FinalizingBackoff` spaces out attempts to finalize versions that failed. `KnownTables` caches records of tables for
commits. None of it has to survive the process.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import LanceNamespaceError

from tiltyard.runtime.batcher import WorkQueue
from tiltyard.runtime.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tiltyard.model.ids import Id
    from tiltyard.store import FinalManifest, TableRecord, VersionRecord

    PendingTables: TypeAlias = Callable[[int, int], list[int]]
    """Return the ids of tables with pending versions: those above an id, and at most so many."""

log = logging.getLogger("tiltyard.versions")

Key: TypeAlias = tuple[int, str, int, str]

FLUSH_SECONDS = 0.5
"""How long a finalized version waits for others to be marked with it. Syncing manifests keeps the disk from commits,
and many at once take it hardly longer than few. Until then other processes check whether a manifest has its final name,
or finalize it once more.
"""

_NONE = -1, ""


class CommitLog(WorkQueue):
    """What this process has committed, and has yet to note in the catalog: final versions, and tables for upkeep.

    Tables that are not managed have no record of a commit in the catalog: upkeep hears of theirs here. What is lost of
    that when the process is killed is noted with the table's next commit.

    No request waits for the mark of a version: one that is recorded and durable but not marked is finalized again by
    the next reader of its table, which changes nothing. It is marked only once the manifest is settled
    (`Storage.settle_manifests`): on a disk it and its folder's entry for it are durable, so that a record never calls a
    manifest final which a loss of power took back; on an object store its staged object is gone.

    Not a `runtime.batcher.Batcher`, which runs at once for callers that wait: here no caller waits, and versions are
    delayed on purpose, and looked up meanwhile.
    """

    def __init__(
        self,
        settle: Callable[[Iterable[tuple[str, str, str]]], None],
        write: Callable[[Iterable[FinalManifest]], None],
        note_changes: Callable[[Iterable[int]], None],
    ) -> None:
        """`settle` is the storage's `settle_manifests`; `write` and `note_changes` are the store's, the former
        `mark_finalized`.
        """
        self._settle = settle
        self._write = write
        self._note_changes = note_changes
        self._changed: set[int] = set()
        self._unmarked: dict[Key, FinalManifest] = {}
        self._latest: dict[tuple[int, str], tuple[int, str]] = {}
        self._is_scheduled = False
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        super().__init__("commits", "Final versions and changed tables, to be noted in the catalog after their commits")

    @property
    def waiting(self) -> int:
        return len(self._unmarked) + len(self._changed)

    def add(self, manifests: Iterable[FinalManifest]) -> None:
        """Add manifests that have their final names, to be marked within FLUSH_SECONDS."""
        with self._lock:
            for manifest in manifests:
                record = manifest.record
                self._unmarked[_key(record)] = manifest
                self._latest[record.table_id, record.branch] = record.version, record.naming_scheme
            is_first = bool(self._unmarked) and not self._is_scheduled
            self._is_scheduled = self._is_scheduled or is_first
        if is_first:
            self._flush_later()

    def add_change(self, table_id: int) -> None:
        """Note for upkeep that a table got a commit in storage alone, within FLUSH_SECONDS."""
        with self._lock:
            self._changed.add(table_id)
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self._flush_later()

    def _flush_later(self) -> None:
        self._timer = threading.Timer(FLUSH_SECONDS, self._flush_noted)
        self._timer.daemon = True
        self._timer.start()

    def has(self, record: VersionRecord) -> bool:
        """Return whether this process has finalized a version, a moment ago."""
        return _key(record) in self._unmarked

    def is_latest(self, table_id: int, branch: str, version: int, scheme: str) -> bool:
        """Return whether a version, named by a scheme, is the last one of its branch that this process has finalized, a
        moment ago.
        """
        return self._latest.get((table_id, branch)) == (version, scheme)

    def flush(self) -> None:
        """Note all of it now. Raises what storage and store raise for versions; the log is emptied even then."""
        with self._flushing:
            with self._lock:
                batch = dict(self._unmarked)
                changed, self._changed = self._changed, set()
                self._is_scheduled = False
            if changed:
                self._write_changes(changed)
            if not batch:
                return
            try:
                self._settle([_names(manifest.record) for manifest in batch.values()])
                self._write(batch.values())
            finally:
                with self._lock:
                    for key in batch:
                        self._unmarked.pop(key, None)
                        if self._latest.get(key[:2], _NONE)[0] == key[2]:
                            del self._latest[key[:2]]

    def _write_changes(self, changed: set[int]) -> None:
        """Note changed tables; on failure write a warning."""
        try:
            self._note_changes(changed)
        except LanceNamespaceError as error:
            log.warning("upkeep of %s tables waits for their next commits: %s", len(changed), error)

    def close(self) -> None:
        """Note all of it, and end the timer: nothing of it is written to a catalog that is closed next."""
        if (timer := self._timer) is not None:
            timer.cancel()
        self._flush_noted()

    def _flush_noted(self) -> None:
        """Note all of it; on failure write a warning: the next reader of a table finalizes its versions again."""
        try:
            self.flush()
        except LanceNamespaceError as error:
            log.warning("final versions could not be marked as final, and will be checked again: %s", error)


def _key(record: VersionRecord) -> Key:
    return record.table_id, record.branch, record.version, record.staged_path


def _names(record: VersionRecord) -> tuple[str, str, str]:
    """Return a table's location, and the full paths of a manifest, staged and final: both are in one folder."""
    folder, (below, _, name) = record.staged_path.rpartition("/")[0], record.manifest_path.rpartition("/")
    return folder.removesuffix(f"/{below}"), record.staged_path, f"{folder}/{name}"


MAX_TABLES = 100
"""Tables of one sweep."""
FIRST_PAUSE_MS = 2_000
MAX_PAUSE_MS = 300_000
_PAGE = 1000
_MAX_PAGES = 10
"""Pages of ids that one sweep reads: a hundred thousand tables that are not due do not make it long."""


@dataclass(frozen=True, slots=True)
class _Failure:
    count: int
    due_at: int


class FinalizingBackoff:
    """Exponential backoff for tables whose pending versions could not be finalized: none keeps others waiting.

    Sweeps take the tables in the order of their ids, each from where the last one ended.
    """

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}
        self._after = 0
        self._lock = threading.Lock()

    def next_tables(self, pending_tables: PendingTables, now: int) -> list[int]:
        """Return the tables of the next sweep, without those whose pause has not passed; `now` is in milliseconds."""
        with self._lock:
            start, after = self._after, self._after
        due: list[int] = []
        for _ in range(_MAX_PAGES):
            page = pending_tables(after, _PAGE)
            for table_id in page:
                after = table_id
                if self._is_due(table_id, now):
                    due.append(table_id)
                    if len(due) == MAX_TABLES:
                        break
            if len(due) == MAX_TABLES:
                break
            if len(page) < _PAGE:  # the last one: begin again, and end where this sweep began
                if not start:
                    after = 0
                    break
                start = after = 0
        with self._lock:
            self._after = after
        return list(dict.fromkeys(due))

    def add_failure(self, table_id: int, now: int) -> int:
        """Record that a table's versions could not be finalized; return the pause until the next try, in ms."""
        with self._lock:
            earlier = self._failures.get(table_id)
            count = earlier.count + 1 if earlier else 1
            pause = min(MAX_PAUSE_MS, FIRST_PAUSE_MS << min(count - 1, 20))
            pause = int(pause * random.uniform(0.8, 1))  # noqa: S311  # out of step with other processes
            self._failures[table_id] = _Failure(count, now + pause)
            if len(self._failures) > _PAGE * _MAX_PAGES:
                self._remove_old(now)
        return pause

    def reset(self, table_id: int) -> None:
        """Remove the failures of a table."""
        with self._lock:
            self._failures.pop(table_id, None)

    def _is_due(self, table_id: int, now: int) -> bool:
        with self._lock:
            failure = self._failures.get(table_id)
        return failure is None or failure.due_at <= now

    def _remove_old(self, now: int) -> None:
        """Remove failures of tables not tried for long: other processes finished them, or they were dropped."""
        self._failures = {
            table_id: failure for table_id, failure in self._failures.items() if failure.due_at + 2 * MAX_PAUSE_MS > now
        }


MAX_KNOWN_TABLES = 10_000


class KnownTables:
    """Records of tables that commits were made to, so that the next commit need not look them up first.

    An entry may be out of date at any moment: it is used only where the very statement that records a commit checks
    that the table still has its name (`NewVersion.expected_name`).
    """

    def __init__(self) -> None:
        self._tables: Cache[tuple[str, ...], TableRecord] = Cache(
            "known tables",
            "Records of tables that were committed to, for the next commit",
            max_entries=MAX_KNOWN_TABLES,
            invalidated_by="nothing: the statement that records a commit checks that the table has its name",
        )

    def get_all(self, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], TableRecord] | None:
        """Return the tables of these paths; None unless all are cached."""
        entries = {path: self._tables.get(path) for path in paths}
        tables = {path: table for path, table in entries.items() if table is not None}
        return tables if len(tables) == len(entries) else None

    def add(self, path: Id, table: TableRecord) -> None:
        """Cache a table's record; not that of a table without data, which is about to change."""
        if table.declared:
            return
        self._tables.put(path, table)
