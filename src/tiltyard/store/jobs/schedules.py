"""Schedules: jobs that are queued by themselves, at times or after commits of tables.

Whoever looks at a due one has it alone for a while (`rests_until`), as upkeep has a table. What it comes to is written
only if nobody else has done so since, in one transaction with the job: so a time has one job, whoever is killed where.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from tiltyard.runtime.lease import LEASE_MS
from tiltyard.store.repository import Record, Repository, encode, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tiltyard.store.backend import Connection

MAX_SCHEDULES = 1_000
"""The greatest number of schedules in a catalog."""
HOME = "EXISTS (SELECT 1 FROM namespaces WHERE namespaces.id = schedules.namespace_id)"
HAS_HOME = f"{HOME} AND (table_id IS NULL OR EXISTS (SELECT 1 FROM tables WHERE tables.id = schedules.table_id))"
"""Not of those whose namespace, or whose job's table, is dropped and may be restored."""


class ScheduleRecord(Record, frozen=True):
    """A schedule; see the columns of `schedules` (ms since 1970).

    `rests` says that its namespace, or the table of its job, is dropped. `last_status` and `last_error` are those of
    its last job, None without one, or once that was removed.
    """

    id: str
    namespace_id: int
    name: str
    table_id: int | None
    definition: dict[str, Any]
    definer: dict[str, Any]
    paused: bool
    debounce_ms: int
    due_at: int | None
    rests_until: int
    last_job: str | None
    outcome: dict[str, Any]
    created_at: int
    updated_at: int
    rests: bool = False
    last_status: str | None = None
    last_error: str | None = None

    STORED = (
        "id, namespace_id, name, table_id, definition, definer, paused, debounce_ms, due_at, rests_until, last_job,"
        " outcome, created_at, updated_at"
    )
    COLUMNS = (
        f"{STORED}, CASE WHEN {HAS_HOME} THEN 0 ELSE 1 END,"
        " (SELECT status FROM transactions WHERE transactions.id = schedules.last_job),"
        " (SELECT error FROM transactions WHERE transactions.id = schedules.last_job)"
    )


LOCK_NAMESPACE = "SELECT id FROM namespaces WHERE id = ? /*+ FOR KEY SHARE */"
COUNT = "SELECT count(*) FROM schedules"
ADD = f"""
    INSERT INTO schedules ({ScheduleRecord.STORED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, NULL, '{{}}', ?, ?)
    ON CONFLICT DO NOTHING
"""
ADD_SOURCE = "INSERT INTO schedule_sources (table_id, schedule_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
FIND = f"SELECT {ScheduleRecord.COLUMNS} FROM schedules WHERE namespace_id = ? AND name = ?"
LIST = f"""
    SELECT {ScheduleRecord.COLUMNS} FROM schedules WHERE (namespace_id, name) > (?, ?)
    ORDER BY namespace_id, name LIMIT ?
"""
SOURCES = "SELECT schedule_id, table_id FROM schedule_sources WHERE schedule_id IN ({ids}) ORDER BY table_id"
_IS_DUE = f"due_at IS NOT NULL AND due_at <= ? AND rests_until <= ? AND NOT paused AND {HAS_HOME}"
HAS_DUE = f"SELECT 1 FROM schedules WHERE {_IS_DUE} LIMIT 1"
CLAIM = f"""
    UPDATE schedules SET rests_until = ? WHERE id = (
        SELECT id FROM schedules WHERE {_IS_DUE} ORDER BY due_at, id LIMIT 1 /*+ FOR UPDATE SKIP LOCKED */
    ) RETURNING {ScheduleRecord.COLUMNS}
"""
SETTLE = """
    UPDATE schedules SET due_at = ?, rests_until = ?, last_job = COALESCE(?, last_job), outcome = ?,
        table_id = COALESCE(table_id, ?)
    WHERE id = ? AND due_at = ? AND rests_until = ? AND NOT paused
"""
NOTE_RUN = """
    UPDATE schedules SET last_job = ?, outcome = ?, table_id = COALESCE(table_id, ?) WHERE id = ?
"""
ALTER = """
    UPDATE schedules SET definition = ?, paused = ?, debounce_ms = ?, due_at = CASE WHEN ? THEN due_at ELSE ? END,
        rests_until = 0, updated_at = ?
    WHERE id = ? AND updated_at = ?
"""
DELETE_SOURCES = "DELETE FROM schedule_sources WHERE schedule_id = ?"
DROP = "DELETE FROM schedules WHERE id = ?"
MARK_DUE = """
    UPDATE schedules SET due_at = ? + debounce_ms
    WHERE due_at IS NULL AND id IN (SELECT schedule_id FROM schedule_sources WHERE table_id IN ({ids}))
"""


class Schedules(Repository):
    """The methods for schedules."""

    __slots__ = ()

    @writes
    def add_schedule(
        self,
        namespace_id: int,
        name: str,
        table_id: int | None,
        definition: Mapping[str, Any],
        definer: Mapping[str, Any],
        *,
        paused: bool,
        debounce_ms: int,
        due_at: int | None,
        sources: Sequence[int],
    ) -> bool:
        """Add a schedule; return False if there is one of this name, which stays.

        Raises NamespaceNotFoundError, InvalidInputError (there are too many).
        """
        if self.connection.row(LOCK_NAMESPACE, namespace_id) is None:
            raise NamespaceNotFoundError("Namespace not found: it was just dropped")
        if int(self.connection.rows(COUNT)[0][0]) >= MAX_SCHEDULES:
            raise InvalidInputError(f"The catalog has {MAX_SCHEDULES} schedules already: drop one first.")
        now, new_id = self._clock(), str(uuid4())
        texts = encode(dict(definition)), encode(dict(definer))
        if not self.connection.change(
            ADD, new_id, namespace_id, name, table_id, *texts, paused, debounce_ms, due_at, now, now
        ):
            return False
        self._add_sources(new_id, sources)
        return True

    @reads
    def find_schedule(self, namespace_id: int, name: str) -> ScheduleRecord | None:
        """Return a schedule, None if there is none of this name."""
        row = self.connection.row(FIND, namespace_id, name)
        return ScheduleRecord.of(row) if row else None

    @reads
    def list_schedules(self, after: tuple[int, str] | None, limit: int) -> list[ScheduleRecord]:
        """Return up to `limit` schedules by namespace and name, those after (namespace_id, name)."""
        return [ScheduleRecord.of(row) for row in self.connection.rows(LIST, *(after or (0, "")), limit)]

    @reads
    def schedule_sources(self, ids: Collection[str]) -> dict[str, list[int]]:
        """Return the ids of the tables whose commits make schedules due, by the schedules' ids."""
        sources: dict[str, list[int]] = defaultdict(list)
        if ids:
            for schedule_id, table_id in self.connection.rows(SOURCES.format(ids=placeholders(ids)), *ids):
                sources[schedule_id].append(table_id)
        return sources

    @reads
    def has_due_schedule(self) -> bool:
        """Return whether `claim_due_schedule` may return one; this is cheaper than to try."""
        now = self._clock()
        return self.connection.row(HAS_DUE, now, now) is not None

    @writes
    def claim_due_schedule(self) -> ScheduleRecord | None:
        """Claim the schedule that is due for longest, for a look at it; return None without any."""
        now = self._clock()
        row = self.connection.row(CLAIM, now + LEASE_MS, now, now)
        return ScheduleRecord.of(row) if row else None

    @writes
    def settle_schedule(
        self,
        seen: ScheduleRecord,
        outcome: Mapping[str, Any],
        *,
        due_at: int | None,
        rests_until: int = 0,
        job: str | None = None,
        table_id: int | None = None,
    ) -> bool:
        """Record what a look at a claimed schedule came to; return False if another look, or its owner, was faster."""
        values = due_at, rests_until, job, encode(dict(outcome)), table_id
        return self.connection.change(SETTLE, *values, seen.id, seen.due_at, seen.rests_until) == 1

    @writes
    def note_schedule_run(self, schedule_id: str, job: str, outcome: Mapping[str, Any], table_id: int | None) -> None:
        """Record a job of a schedule that was queued at a caller's request, whenever it is due."""
        self.connection.change(NOTE_RUN, job, encode(dict(outcome)), table_id, schedule_id)

    @writes
    def alter_schedule(
        self,
        seen: ScheduleRecord,
        definition: Mapping[str, Any],
        *,
        paused: bool,
        debounce_ms: int,
        keeps_due: bool,
        due_at: int | None = None,
        sources: Sequence[int] | None = None,
    ) -> bool:
        """Replace when a schedule is due; without `sources` those stay. Return False if it was altered since `seen`.

        With `keeps_due` its next time stays: a commit may just have made it due.
        """
        now = max(self._clock(), seen.updated_at + 1)
        values = encode(dict(definition)), paused, debounce_ms, keeps_due, due_at, now
        if not self.connection.change(ALTER, *values, seen.id, seen.updated_at):
            return False
        if sources is not None:
            self.connection.change(DELETE_SOURCES, seen.id)
            self._add_sources(seen.id, sources)
        return True

    @writes
    def drop_schedule(self, schedule_id: str) -> bool:
        """Delete a schedule; return whether it was there. Its jobs stay."""
        return self.connection.change(DROP, schedule_id) == 1

    def _add_sources(self, schedule_id: str, sources: Iterable[int]) -> None:
        for table_id in sorted(set(sources)):
            self.connection.change(ADD_SOURCE, table_id, schedule_id)


def mark_due(connection: Connection, table_ids: Collection[int], now: int) -> None:
    """Make the schedules due, within a transaction, that wait for commits of tables."""
    connection.change(MARK_DUE.format(ids=placeholders(table_ids)), now, *table_ids)
