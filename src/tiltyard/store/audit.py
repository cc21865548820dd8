"""The audit log: a record of each request. Records are added and, at the end of their retention, deleted."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tiltyard.model.ids import DEFAULT_DELIMITER
from tiltyard.store.repository import Properties, Record, Repository, reads, writes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class AuditRecord(Record, frozen=True):
    """One object of one request.

    `at` is when the request arrived, in ms since 1970, and `id` tells records of one millisecond apart. `method` is how
    the principal authenticated. `object` is the id that the request named as messages show it, "" for none. `outcome`
    is one of `modes.Outcome`, `code` the specification's error code (None: no error).
    """

    at: int
    id: str
    principal: str
    method: str
    operation: str
    object: str
    outcome: str
    status: int
    code: int | None
    request_id: str
    address: str
    duration_micros: int
    context: Properties = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects records: from `since` on and before `until` (ms since 1970), with these values where they are not None.

    `object` is an id as messages show it; it selects all objects in it, too.
    """

    since: int | None = None
    until: int | None = None
    principal: str | None = None
    operation: str | None = None
    object: str | None = None
    outcome: str | None = None


PAGE = 1000
"""Records that are read at a time."""
COLUMNS = "at, id, principal, method, operation, object, outcome, status, code, request_id, address, micros, context"
ADD = f"INSERT INTO audit ({COLUMNS}) VALUES ({', '.join('?' * 13)}) ON CONFLICT DO NOTHING"
LIST = f"SELECT {COLUMNS} FROM audit {{where}} ORDER BY at DESC, id DESC LIMIT ?"
SWEEP = "DELETE FROM audit WHERE (at, id) IN (SELECT at, id FROM audit WHERE at < ? ORDER BY at, id LIMIT ?)"


class AuditLog(Repository):
    """The methods for the audit log."""

    __slots__ = ()

    @writes
    def add_audit(self, records: Sequence[AuditRecord]) -> None:
        """Add records; one whose id is there already stays as it is."""
        self.connection.change_many(ADD, [record.row for record in records])

    @reads
    def list_audit(self, criteria: AuditFilter, before: tuple[int, str] | None, limit: int) -> list[AuditRecord]:
        """Return up to `limit` records older than `before`, an (at, id); newest first."""
        terms, values = _where_terms(criteria)
        if before is not None:
            terms.append("(at, id) < (?, ?)")
            values.extend(before)
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        return [AuditRecord.of(row) for row in self.connection.rows(LIST.format(where=where), *values, limit)]

    def iterate_audit(self, criteria: AuditFilter) -> Iterator[AuditRecord]:
        """Iterate over all records that meet the criteria, newest first; each page is a read of its own."""
        before: tuple[int, str] | None = None
        while page := self.list_audit(criteria, before, PAGE):
            yield from page
            before = page[-1].at, page[-1].id

    @writes
    def sweep_audit(self, before: int, limit: int) -> int:
        """Delete up to `limit` records from before a time, the oldest first; return how many."""
        return self.connection.change(SWEEP, before, limit)


def _where_terms(criteria: AuditFilter) -> tuple[list[str], list[object]]:
    terms: list[str] = []
    values: list[object] = []
    exact = ("principal", criteria.principal), ("operation", criteria.operation), ("outcome", criteria.outcome)
    for term, value in (("at >= ?", criteria.since), ("at < ?", criteria.until), *((f"{c} = ?", v) for c, v in exact)):
        if value is not None:
            terms.append(term)
            values.append(value)
    if criteria.object is not None and criteria.object != DEFAULT_DELIMITER:
        # Below `a` is what lies between `a$` and the same with the character that follows the delimiter.
        below = f"{criteria.object}{DEFAULT_DELIMITER}"
        terms.append("(object = ? OR (object >= ? AND object < ?))")
        values += [criteria.object, below, f"{criteria.object}{chr(ord(DEFAULT_DELIMITER) + 1)}"]
    return terms, values
