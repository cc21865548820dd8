"""Quotas of principals and namespaces, and what these use: tables and jobs are counted where they are created.

That count is part of the transaction that creates one, and waits for others under the same quota: so such a quota is
kept to the last table. What else is used is added up by servers, each for itself (`access/quotas`), and read from here.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError, ThrottlingError

from tiltyard.model.quotas import DAY_SECONDS, MINUTE_SECONDS, Resource, window_start
from tiltyard.store.access.grants import ANCESTORS, NAMESPACE, find_object_path
from tiltyard.store.protections import CHILD, TREE
from tiltyard.store.repository import ROOT, Record, Repository, display_path, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tiltyard.store.backend import Connection, Row
    from tiltyard.store.repository import Path

MAX_QUOTAS = 1_000
"""Quotas of a catalog: all are looked through when rows are written."""
MAX_USAGE_ENTRIES = 100_000
"""What is told of usage at once."""
KEPT_DAYS = 92
"""For how long is told what was used on a day."""


class Quota(Record, frozen=True):
    """A limit of what a principal (the namespace's id is 0), or a namespace (the principal is ""), may use.

    What is above `soft` is warned of, what is above `hard` refused. It was set by a principal, at ms since 1970.
    """

    principal: str
    namespace_id: int
    resource: str
    soft: int | None
    hard: int | None
    set_by: str
    set_at: int


class QuotaUse(msgspec.Struct, frozen=True):
    """A quota, how much of it is used, and the path of its namespace: () of a principal's."""

    quota: Quota
    used: int
    path: Path

    @property
    def subject(self) -> str:
        """Whose quota it is, for messages."""
        if self.quota.principal:
            return f"the principal {self.quota.principal}"
        return f"the namespace {display_path(self.path)}" if self.path else "the root namespace"


class UsageCount(Record, frozen=True):
    """What a principal has used of a namespace since the beginning of a day (ms since 1970)."""

    started_at: int
    principal: str
    namespace_id: int
    requests: int
    rows_written: int


class StoredUsage(Record, frozen=True):
    """How many tables a principal has in a namespace, "" for those whose creator is not known, and their bytes."""

    principal: str
    namespace_id: int
    tables: int
    bytes: int


class UsedTables(msgspec.Struct, frozen=True):
    """What was written: rows by principal and table, bytes of tables, and for whom jobs have made some."""

    rows: Counter[tuple[str, int]]
    sizes: dict[int, int]
    creators: dict[int, str]


SET = f"""
    INSERT INTO quotas ({Quota.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (principal, namespace_id, resource) DO UPDATE SET soft = excluded.soft, hard = excluded.hard,
        set_by = excluded.set_by, set_at = excluded.set_at
"""
DROP = "DELETE FROM quotas WHERE principal = ? AND namespace_id = ? AND resource = ?"
COUNT_OTHERS = "SELECT count(*) FROM quotas WHERE NOT (principal = ? AND namespace_id = ? AND resource = ?)"
LIST = f"SELECT {Quota.COLUMNS} FROM quotas ORDER BY principal, namespace_id, resource"
EXISTS = "SELECT 1 FROM quotas WHERE resource = ? AND hard IS NOT NULL LIMIT 1"
NAMESPACE_EXISTS = "SELECT 1 FROM namespaces WHERE id = ?"
NAMESPACE_OF_TABLE = "SELECT namespace_id FROM tables WHERE id = ?"
# Whoever creates something else under one of them waits until this transaction has ended.
LOCK_QUOTAS = f"""{ANCESTORS}
    SELECT {Quota.COLUMNS} FROM quotas
    WHERE (namespace_id IN (SELECT id FROM up) OR principal = ? AND namespace_id = 0)
        AND resource = ? AND hard IS NOT NULL
    ORDER BY principal, namespace_id /*+ FOR UPDATE */
"""
_IN_TREE = "IN (SELECT id FROM tree)"
_CREATED = "SELECT table_id FROM table_usage WHERE created_by = ?"
_UNFINISHED = "SELECT count(*) FROM transactions WHERE status IN ('Queued', 'Running') AND asked_by"
_USAGE = "FROM usage_counts WHERE seconds = ? AND started_at = ?"
USED_BY_PRINCIPAL = {
    Resource.TABLES: f"SELECT count(*) FROM tables WHERE id IN ({_CREATED})",
    Resource.BYTES: ("SELECT SUM(bytes) FROM table_usage WHERE created_by = ? AND table_id IN (SELECT id FROM tables)"),
    Resource.JOBS: f"{_UNFINISHED} = ?",
}
USED_IN_NAMESPACE = {
    Resource.TABLES: f"{TREE} SELECT count(*) FROM tables WHERE namespace_id {_IN_TREE}",
    Resource.BYTES: f"""{TREE}
        SELECT SUM(bytes) FROM table_usage WHERE table_id IN (SELECT id FROM tables WHERE namespace_id {_IN_TREE})
    """,
    Resource.JOBS: f"""{TREE} {_UNFINISHED} IS NOT NULL AND COALESCE(
        (SELECT namespace_id FROM tables WHERE tables.id = transactions.table_id), transactions.namespace_id
    ) {_IN_TREE}""",
}
_COUNTED = {
    Resource.ROWS_PER_DAY: ("rows_written", DAY_SECONDS),
    Resource.REQUESTS_PER_DAY: ("requests", DAY_SECONDS),
    Resource.REQUESTS_PER_MINUTE: ("requests", MINUTE_SECONDS),
}
COUNTED_OF_ALL = f"SELECT SUM({{column}}) {_USAGE}"
COUNTED_OF_PRINCIPAL = f"{COUNTED_OF_ALL} AND principal = ?"
COUNTED_IN_NAMESPACE = f"{TREE} {COUNTED_OF_ALL} AND namespace_id {_IN_TREE}"
ADD_USAGE = """
    INSERT INTO usage_counts (seconds, started_at, principal, namespace_id, requests, rows_written)
    VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (seconds, started_at, principal, namespace_id) DO UPDATE SET
        requests = usage_counts.requests + excluded.requests,
        rows_written = usage_counts.rows_written + excluded.rows_written
"""
FORGET_USAGE = "DELETE FROM usage_counts WHERE seconds = ? AND started_at < ?"
NOTE_CREATOR = """
    INSERT INTO table_usage (table_id, created_by, bytes, measured_at) VALUES (?, ?, 0, 0) ON CONFLICT DO NOTHING
"""
CORRECT_CREATOR = "UPDATE table_usage SET created_by = ? WHERE table_id = ?"
CREATORS = """
    SELECT COALESCE(created_by, ''), count(*) FROM removed_tables LEFT JOIN table_usage ON table_id = removed_tables.id
    WHERE {which} GROUP BY COALESCE(created_by, '') ORDER BY 1
"""
NOTE_BYTES = """
    INSERT INTO table_usage (table_id, created_by, bytes, measured_at) VALUES (?, '', ?, ?)
    ON CONFLICT (table_id) DO UPDATE SET bytes = excluded.bytes, measured_at = excluded.measured_at
"""
AT_LOCATIONS = "SELECT location, namespace_id FROM tables WHERE location IN ({locations})"
MAX_LOCATIONS = 500
LIST_USAGE = """
    SELECT started_at, principal, namespace_id, requests, rows_written FROM usage_counts
    WHERE seconds = ? AND started_at >= ? AND principal = COALESCE(?, principal)
    ORDER BY started_at DESC, principal, namespace_id LIMIT ?
"""
LIST_STORED = """
    SELECT COALESCE(created_by, '') AS creator, namespace_id, count(*), COALESCE(SUM(bytes), 0)
    FROM tables LEFT JOIN table_usage ON table_id = tables.id
    WHERE COALESCE(created_by, '') = COALESCE(?, created_by, '')
    GROUP BY COALESCE(created_by, ''), namespace_id ORDER BY 1, 2 LIMIT ?
"""


def note_creator(connection: Connection, table_id: int, created_by: str) -> None:
    """Note who has created a table, in the transaction that creates it."""
    if created_by:
        connection.change(NOTE_CREATOR, table_id, created_by)


def refuse_restored(connection: Connection, namespace_id: int, which: str, value: object, now: int) -> None:
    """Raise PermissionDeniedError if restored tables are too many for the namespace, or for who has created them.

    `which` selects them in the trash by a value: they are in both while they are restored.
    """
    for principal, number in connection.rows(CREATORS.format(which=which), value):
        refuse_further(connection, Resource.TABLES, namespace_id, principal, now, number)


def refuse_further(
    connection: Connection, resource: Resource, namespace_id: int, principal: str, now: int, number: int = 1
) -> None:
    """Raise if tables or a job that were just created in a namespace by a principal are too many; 0 and "" are none.

    They are counted already, and undone by the error: PermissionDeniedError, for a job ThrottlingError.
    """
    if connection.row(EXISTS, resource.value) is None:
        return
    for row in connection.rows(LOCK_QUOTAS, namespace_id, principal, resource.value):
        quota = Quota.of(row)
        used = _used(connection, quota, now)
        if quota.hard is not None and used > quota.hard:
            raise quota_error(QuotaUse(quota, used - number, _path(connection, quota)), now)


class RequestsUsedUpError(ThrottlingError):
    """All requests of this minute are used up: `seconds` is when the next one begins."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


def quota_error(use: QuotaUse, now: int) -> PermissionDeniedError | ThrottlingError:
    """Return the error for what a hard limit refuses at a time: who has used how much of what, and what to do."""
    resource = Resource(use.quota.resource)
    has = f"{_upper(use.subject)} has {use.used} of {use.quota.hard}"
    raised = "or ask an administrator for more (`tiltyard quota set`)"
    match resource:
        case Resource.TABLES:
            return PermissionDeniedError(f"{has} tables: drop some, {raised}.")
        case Resource.BYTES:
            return PermissionDeniedError(f"{has} bytes: delete rows or drop tables, {raised}.")
        case Resource.SQL_MEMORY:
            return PermissionDeniedError(f"{has} bytes of memory for SQL queries: narrow the query, {raised}.")
        case Resource.ROWS_PER_DAY:
            return PermissionDeniedError(f"{has} rows of today written: go on after midnight UTC, {raised}.")
        case Resource.JOBS:
            return ThrottlingError(f"{has} jobs queued or running: wait until one ends, cancel one, {raised}.")
        case Resource.REQUESTS_PER_DAY:
            return PermissionDeniedError(f"{has} requests of today sent: go on after midnight UTC, {raised}.")
        case Resource.REQUESTS_PER_MINUTE:
            seconds = MINUTE_SECONDS - (now - window_start(now, MINUTE_SECONDS)) // 1000
            return RequestsUsedUpError(
                f"{has} requests of this minute sent: try again in {seconds} s, {raised}.", seconds
            )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _used(connection: Connection, quota: Quota, now: int) -> int:
    """Return how much of a quota is used, as far as the catalog knows."""
    resource, subject = Resource(quota.resource), quota.principal or quota.namespace_id
    if resource is Resource.SQL_MEMORY:
        return 0  # each server sees its own
    if resource in _COUNTED:
        column, seconds = _COUNTED[resource]
        window = seconds, window_start(now, seconds)
        if quota.principal:
            row = connection.row(COUNTED_OF_PRINCIPAL.format(column=column), *window, quota.principal)
        elif quota.namespace_id == ROOT:
            row = connection.row(COUNTED_OF_ALL.format(column=column), *window)
        else:
            row = connection.row(COUNTED_IN_NAMESPACE.format(column=column), quota.namespace_id, *window)
    else:
        row = connection.row((USED_BY_PRINCIPAL if quota.principal else USED_IN_NAMESPACE)[resource], subject)
    return 0 if row is None or row[0] is None else int(row[0])


def _path(connection: Connection, quota: Quota) -> Path:
    if not quota.namespace_id:
        return ()
    path = find_object_path(connection, NAMESPACE, quota.namespace_id)
    return (f"id {quota.namespace_id}",) if path is None else path


def _complete(rows: Sequence[Row]) -> Sequence[Row]:
    """Return what is told of usage, if it is all. Raises InvalidInputError."""
    if len(rows) > MAX_USAGE_ENTRIES:
        raise InvalidInputError(
            f"More than {MAX_USAGE_ENTRIES} entries: ask for fewer days, or for one principal at a time."
        )
    return rows


class Quotas(Repository):
    """The methods for quotas and usage."""

    __slots__ = ()

    @writes
    def set_quota(self, quota: Quota) -> None:
        """Set a quota, or change its limits. Raises NamespaceNotFoundError, InvalidInputError (there are too many)."""
        if quota.namespace_id and self.connection.row(NAMESPACE_EXISTS, quota.namespace_id) is None:
            raise NamespaceNotFoundError("The namespace was dropped meanwhile.")
        key = quota.principal, quota.namespace_id, quota.resource
        if int(self.connection.rows(COUNT_OTHERS, *key)[0][0]) >= MAX_QUOTAS:
            raise InvalidInputError(f"There are {MAX_QUOTAS} quotas, the most of a catalog: drop some first.")
        self.connection.change(SET, *key, quota.soft, quota.hard, quota.set_by, self._clock())

    @writes
    def drop_quota(self, principal: str, namespace_id: int, resource: str) -> bool:
        """Drop a quota; return whether there was one."""
        return self.connection.change(DROP, principal, namespace_id, resource) == 1

    @reads
    def list_quotas(self) -> list[QuotaUse]:
        """Return all quotas with what is used of them. Those of namespaces that can be restored are left out."""
        now = self._clock()
        uses = []
        for row in self.connection.rows(LIST):
            quota = Quota.of(row)
            if quota.namespace_id and find_object_path(self.connection, NAMESPACE, quota.namespace_id) is None:
                continue
            uses.append(QuotaUse(quota, _used(self.connection, quota, now), _path(self.connection, quota)))
        return uses

    @writes
    def add_usage(
        self,
        requests: Mapping[tuple[str, Path | None], int],
        used: UsedTables,
        *,
        by_minute: bool,
    ) -> None:
        """Add what was used: requests by principal and path of a namespace, or None, and what was written.

        `by_minute` counts requests of this minute, too.
        """
        now = self._clock()
        counts: dict[tuple[str, int], list[int]] = {}
        places: dict[Path | None, int] = {}
        for (principal, path), number in requests.items():
            if path not in places:
                places[path] = self._nearest_namespace(path)
            counts.setdefault((principal, places[path]), [0, 0])[0] += number
        for (principal, table_id), number in used.rows.items():
            row = self.connection.row(NAMESPACE_OF_TABLE, table_id)
            counts.setdefault((principal, 0 if row is None else row[0]), [0, 0])[1] += number
        units = (DAY_SECONDS, MINUTE_SECONDS) if by_minute else (DAY_SECONDS,)
        self.connection.change_many(
            ADD_USAGE,
            [(unit, window_start(now, unit), *key, *numbers) for unit in units for key, numbers in counts.items()],
        )
        self.connection.change_many(NOTE_BYTES, [(table_id, size, now) for table_id, size in used.sizes.items()])
        self.connection.change_many(CORRECT_CREATOR, [(name, number) for number, name in used.creators.items()])
        self.connection.change(FORGET_USAGE, MINUTE_SECONDS, now - 5 * MINUTE_SECONDS * 1000)
        self.connection.change(FORGET_USAGE, DAY_SECONDS, now - KEPT_DAYS * DAY_SECONDS * 1000)

    def _nearest_namespace(self, path: Path | None) -> int:
        """Return the id of the namespace of a path, or of the last one above it that exists; 0 for no path."""
        if path is None:
            return 0
        found = ROOT
        for name in path:
            row = self.connection.row(CHILD, found, name)
            if row is None:
                break
            found = row[0]
        return int(found)

    @reads
    def find_tenants(self, locations: Collection[str]) -> dict[str, str]:
        """Return the outermost namespace of the table at each location that is known, "" for one in the root."""
        found, names = dict[str, str](), dict[int, str]()
        known = sorted(locations)
        for first in range(0, len(known), MAX_LOCATIONS):
            part = known[first : first + MAX_LOCATIONS]
            for location, number in self.connection.rows(AT_LOCATIONS.format(locations=placeholders(part)), *part):
                if number not in names:
                    path = find_object_path(self.connection, NAMESPACE, number)
                    names[number] = path[0] if path else ""
                found[location] = names[number]
        return found

    @reads
    def list_usage(self, since: int, principal: str | None = None) -> list[UsageCount]:
        """Return what was used on each day since a time (ms since 1970), by all or one principal.

        Raises InvalidInputError where there are more than MAX_USAGE_ENTRIES.
        """
        rows = self.connection.rows(LIST_USAGE, DAY_SECONDS, since, principal, MAX_USAGE_ENTRIES + 1)
        return [UsageCount.of(row) for row in _complete(rows)]

    @reads
    def list_stored_usage(self, principal: str | None = None) -> list[StoredUsage]:
        """Return what all principals, or one, have stored in each namespace.

        Raises InvalidInputError where there are more than MAX_USAGE_ENTRIES.
        """
        rows = self.connection.rows(LIST_STORED, principal, MAX_USAGE_ENTRIES + 1)
        return [StoredUsage(row[0], row[1], int(row[2]), int(row[3])) for row in _complete(rows)]
