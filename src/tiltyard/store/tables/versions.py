"""Versions: the commits that went through the server. The primary key decides which of two commits wins."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TableVersionNotFoundError

from tiltyard.store.backend import ForeignKeyError, NullError, Row
from tiltyard.store.connection_scope import Scope, reads, writes, writes_alone
from tiltyard.store.paths import among
from tiltyard.store.records import NewVersion, VersionRecord, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INSERT = f"""
    INSERT INTO table_versions ({VersionRecord.COLUMNS}, manifest) VALUES {{rows}}
    ON CONFLICT (table_id, branch, version) DO NOTHING RETURNING table_id, branch, version
"""
ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PLACED_ROW = ROW.replace("?", "(SELECT id FROM tables WHERE namespace_id = ? AND name = ? AND id = ?)", 1)
"""Of a table that must be in its place: the id is none, and the statement is refused, if it is not."""
ROWS = 32
"""Most rows of one statement: databases keep statements prepared, one for each number of rows."""
MANIFEST = """
    SELECT manifest FROM table_versions WHERE table_id = ? AND branch = ? AND version = ? AND staged_path = ?
"""
DESCRIBE = f"SELECT {VersionRecord.COLUMNS} FROM table_versions WHERE table_id = ? AND branch = ? AND version = ?"
LIST = f"""
    SELECT {VersionRecord.COLUMNS} FROM table_versions WHERE table_id = ? AND branch = ? AND version > ?
    ORDER BY version LIMIT ?
"""
LIST_DOWN = f"""
    SELECT {VersionRecord.COLUMNS} FROM table_versions WHERE table_id = ? AND branch = ? AND version < ?
    ORDER BY version DESC LIMIT ?
"""
DELETE = "DELETE FROM table_versions WHERE table_id = ? AND branch = ? AND version >= ? AND version < ?"
FORGET = "DELETE FROM table_versions WHERE table_id = ? AND branch = ? AND version = ? AND staged_path = ?"
UNFULFILL = """
    UPDATE requests SET table_id = NULL, branch = NULL, version = NULL
    WHERE table_id = ? AND branch = ? AND version = ? AND status IS NULL
"""
PENDING = f"""
    SELECT {VersionRecord.COLUMNS} FROM table_versions WHERE NOT finalized{{which}}
    ORDER BY created_at, table_id, version LIMIT ?
"""
HAS_PENDING = "SELECT 1 FROM table_versions WHERE NOT finalized AND table_id = ? LIMIT 1"
PENDING_OF_ALL = PENDING.format(which="")
PENDING_OF_ONE = f"""
    SELECT {VersionRecord.COLUMNS} FROM table_versions
    WHERE NOT finalized AND table_id = ? AND (created_at, branch, version) > (?, ?, ?)
    ORDER BY created_at, branch, version LIMIT ?
"""
PENDING_TABLES = """
    SELECT DISTINCT table_id FROM table_versions WHERE NOT finalized AND table_id > ? ORDER BY table_id LIMIT ?
"""
FINALIZE_SAME = """
    UPDATE table_versions
    SET finalized = TRUE, manifest = NULL, manifest_size = COALESCE(?, manifest_size), e_tag = COALESCE(?, e_tag)
    WHERE table_id = ? AND branch = ? AND version = ? AND staged_path = ?
"""
# Versions of one branch, of which all but that is recorded. They follow each other, so a range of them is looked for in
# the index, however little a database knows of the table; no two have the same staged path.
FINALIZE_TOLD = """
    UPDATE table_versions SET finalized = TRUE, manifest = NULL
    WHERE table_id = ? AND branch = ? AND version BETWEEN ? AND ? AND staged_path IN ({paths})
"""
Recorded: TypeAlias = tuple[VersionRecord, bool]
"""A version's record, and whether it was made."""
BEYOND = (1 << 63) - 1
"""Above any version."""


class FinalManifest(msgspec.Struct, frozen=True):
    """A recorded version whose manifest is in its final place, with its size in bytes and its tag there."""

    record: VersionRecord
    size: int
    e_tag: str | None


class Versions(Scope):
    """The methods for versions."""

    __slots__ = ()

    def record_version(self, new: NewVersion, transaction_id: str | None = None) -> Recorded:
        """Record a version and return it with True; or, if there is one of that number, return that with False.

        So a caller can tell a retry (its own staged manifest is there) from a lost race. If the connection to the
        database is lost meanwhile, this may be such a retry itself. Raises TableNotFoundError.
        """
        return self.record_versions([new], transaction_id)[0]

    def record_versions(self, entries: Sequence[NewVersion], transaction_id: str | None = None) -> list[Recorded]:
        """Do that for several at the cost of few: each may be taken without a harm to the others.

        Raises TableNotFoundError, if the table of one is gone, or not in its place: then nothing is recorded.
        """
        return (self._record_few if len(entries) <= ROWS else self._record_many)(entries, transaction_id)

    @writes_alone
    def _record_few(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[Recorded]:
        return self._record(entries, transaction_id)

    @writes
    def _record_many(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[Recorded]:
        return self._record(entries, transaction_id)

    def _record(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[Recorded]:
        now = self._clock()
        records = [_record(new, now, transaction_id) for new in entries]
        try:
            made = {
                key
                for start in range(0, len(entries), ROWS)
                for key in self._insert(records[start : start + ROWS], entries[start : start + ROWS])
            }
        except (ForeignKeyError, NullError):
            gone = ", ".join(sorted({str(new.table_id) for new in entries}))
            raise TableNotFoundError(f"Table not found: it was dropped or renamed (id {gone})") from None
        found = []
        for new, record in zip(entries, records, strict=True):
            if (key := (new.table_id, new.branch, new.version)) in made:
                made.remove(key)  # of two that ask for one version, the first has it
                found.append((record, True))
            else:
                found.append((self._there(new), False))
        return found

    def _insert(self, records: Sequence[VersionRecord], entries: Sequence[NewVersion]) -> list[Row]:
        """The keys (table, branch, version) of those that were not taken."""
        rows: list[str] = []
        values: list[object] = []
        for one, new in zip(records, entries, strict=True):
            rows.append(ROW if new.expected_name is None else PLACED_ROW)
            if new.expected_name is not None:
                values += new.expected_name
            values += (one.table_id, one.branch, one.version, one.staged_path, one.manifest_path, one.manifest_size)
            values += (one.e_tag, encode(one.metadata), one.naming_scheme, one.created_at, one.finalized)
            values += (one.transaction_id, new.manifest)
        return self.connection.rows(INSERT.format(rows=", ".join(rows)), *values)

    def _there(self, new: NewVersion) -> VersionRecord:
        row = self.connection.row(DESCRIBE, new.table_id, new.branch, new.version)
        if row is None:  # deleted since the insert met it
            raise _taken(new)
        return VersionRecord.of(row)

    @reads
    def describe_version(self, table_id: int, version: int, branch: str = "") -> VersionRecord:
        """Return a version. Raises TableVersionNotFoundError."""
        if row := self.connection.row(DESCRIBE, table_id, branch, version):
            return VersionRecord.of(row)
        raise _missing(table_id, branch, version)

    @reads
    def stored_manifest(self, record: VersionRecord) -> bytes | None:
        """Return the manifest that is kept of a version; None once its file is durable, or if it always was."""
        row = self.connection.row(MANIFEST, record.table_id, record.branch, record.version, record.staged_path)
        return None if row is None or row[0] is None else bytes(row[0])

    @reads
    def list_versions(
        self, table_id: int, branch: str = "", after: int | None = None, limit: int = 100, descending: bool = False
    ) -> list[VersionRecord]:
        """Return up to `limit` versions beyond `after`, upwards or downwards."""
        start = after if after is not None else BEYOND if descending else -1
        rows = self.connection.rows(LIST_DOWN if descending else LIST, table_id, branch, start, limit)
        return [VersionRecord.of(row) for row in rows]

    @reads
    def latest_version(self, table_id: int, branch: str = "") -> VersionRecord | None:
        """Return the highest version, or None without any."""
        row = self.connection.row(LIST_DOWN, table_id, branch, BEYOND, 1)
        return VersionRecord.of(row) if row else None

    @writes
    def delete_versions(self, table_id: int, branch: str, ranges: Iterable[tuple[int, int | None]]) -> int:
        """Forget the versions in the ranges [start, end), None standing for no end; return how many there were."""
        deleted = 0
        for start, end in ranges:
            deleted += self.connection.change(DELETE, table_id, branch, start, BEYOND if end is None else end)
        return deleted

    @writes
    def delete_version_record(self, record: VersionRecord) -> bool:
        """Forget one version, unless another commit has its number by now; whether it was still there."""
        key = record.table_id, record.branch, record.version, record.staged_path
        return bool(self.connection.change(FORGET, *key))

    @writes
    def roll_back_version(self, record: VersionRecord) -> bool:
        """Forget one version that did not come to be, and that it fulfilled any request; whether it was there."""
        if not self.delete_version_record(record):
            return False
        self.connection.change(UNFULFILL, record.table_id, record.branch, record.version)
        return True

    @reads
    def pending_versions(
        self, table_id: int | None = None, limit: int = 100, after: VersionRecord | None = None
    ) -> list[VersionRecord]:
        """Return versions that are recorded but not finalized, oldest first: of one table beyond `after`, or of all."""
        if table_id is None:
            rows = self.connection.rows(PENDING_OF_ALL, limit)
        else:
            start = (-1, "", -1) if after is None else (after.created_at, after.branch, after.version)
            rows = self.connection.rows(PENDING_OF_ONE, table_id, *start, limit)
        return [VersionRecord.of(row) for row in rows]

    @reads
    def tables_with_pending_versions(self, after: int, limit: int) -> list[int]:
        """Return the ids beyond `after` of tables with versions that are recorded but not finalized, upwards."""
        return [row[0] for row in self.connection.rows(PENDING_TABLES, after, limit)]

    @reads
    def has_pending_versions(self, table_id: int) -> bool:
        """Return whether a table has versions that are recorded but not finalized."""
        return self.connection.row(HAS_PENDING, table_id) is not None

    @writes
    def mark_finalized(self, found: Iterable[FinalManifest]) -> None:
        """Note that of several; a record that is gone, or of another manifest by now, is left as it is."""
        told: dict[tuple[int, str], list[VersionRecord]] = {}
        others: list[Row] = []
        for one in found:
            record = one.record
            if (one.size, one.e_tag) == (record.manifest_size, record.e_tag):
                told.setdefault((record.table_id, record.branch), []).append(record)
            else:
                key = record.table_id, record.branch, record.version, record.staged_path
                others.append((one.size, one.e_tag, *key))
        for branch, records in told.items():
            for start in range(0, len(records), ROWS):
                some = records[start : start + ROWS]
                ends = min(record.version for record in some), max(record.version for record in some)
                paths = [record.staged_path for record in some]
                self.connection.change(FINALIZE_TOLD.format(paths=among(paths)), *branch, *ends, *paths)
        if others:
            self.connection.change_many(FINALIZE_SAME, others)


def _record(new: NewVersion, now: int, transaction_id: str | None) -> VersionRecord:
    """What a version's row says once it is there."""
    head = new.table_id, new.branch, new.version, new.staged_path, new.manifest_path, new.manifest_size, new.e_tag
    return VersionRecord(*head, dict(new.metadata or {}), new.naming_scheme, now, new.finalized, transaction_id)


def _taken(new: NewVersion) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Version {new.version} exists already{_on(new.branch)}")


def _missing(table_id: int, branch: str, version: int) -> TableVersionNotFoundError:
    return TableVersionNotFoundError(f"Table version not found: {version}{_on(branch)} (table id {table_id})")


def _on(branch: str) -> str:
    return f" on branch {branch}" if branch else ""
