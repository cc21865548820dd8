"""Commit records: the versions that were committed through the server, and those that were deleted, as ranges.

The primary key decides which commit wins.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TableVersionNotFoundError

from tiltyard.store.backend import ForeignKeyError, NullError, Row
from tiltyard.store.records import NewVersion, VersionRecord
from tiltyard.store.repository import Record, Repository, placeholders, reads, writes, writes_one_statement
from tiltyard.store.tables.queued_appends import UNDO_COMMIT
from tiltyard.store.tables.upkeep import note_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

INSERT = f"""
    INSERT INTO table_versions ({VersionRecord.COLUMNS}, manifest, checked_key, checks, changed_rows) VALUES {{rows}}
    ON CONFLICT (table_id, branch, version) DO NOTHING RETURNING table_id, branch, version
"""
ROW = """(
    (SELECT id FROM tables WHERE id = ? AND primary_key IS NOT DISTINCT FROM ? AND contract IS NOT DISTINCT FROM ?
        /*+ FOR KEY SHARE */),
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
"""For a table that must have the primary key and the contract that the version was checked by: if it has not, the id is
NULL, and the statement is refused. The lock, which a reference to the table takes anyway, makes a declaration and a
commit wait for each other.
"""
ROW_OF_NAMED_TABLE = ROW.replace("WHERE id = ?", "WHERE namespace_id = ? AND name = ? AND id = ?")
"""For one that must have its expected name as well."""
ROWS_PER_STATEMENT = 32
"""Databases keep statements prepared, one for each number of rows: so it is limited."""
LOCKS_PER_STATEMENT = 500
"""Below what SQLite takes in a statement."""
LATEST_CHECKED = """
    SELECT version FROM table_versions WHERE table_id = ? AND branch = ? AND version <= ? AND checked_key = ?
    ORDER BY version DESC LIMIT 1
"""
LOCK_TABLES = "SELECT id FROM tables WHERE id IN ({ids}) ORDER BY id /*+ FOR UPDATE */"
LATEST_OF_BRANCHES = "SELECT branch, max(version) FROM table_versions WHERE table_id = ? GROUP BY branch"
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
DELETE_RECORD = "DELETE FROM table_versions WHERE table_id = ? AND branch = ? AND version = ? AND staged_path = ?"
CLEAR_COMMIT_OF_REQUESTS = """
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
FINALIZE_WITH_SIZE = """
    UPDATE table_versions
    SET finalized = TRUE, manifest = NULL, manifest_size = COALESCE(?, manifest_size), e_tag = COALESCE(?, e_tag)
    WHERE table_id = ? AND branch = ? AND version = ? AND staged_path = ?
"""
# For versions of one branch whose size and ETag are recorded already. They are consecutive, so a range of them is read
# from the index, even by a database without statistics of the table; no two have the same staged path.
FINALIZE_RANGE = """
    UPDATE table_versions SET finalized = TRUE, manifest = NULL
    WHERE table_id = ? AND branch = ? AND version BETWEEN ? AND ? AND staged_path IN ({paths})
"""
RecordedVersion: TypeAlias = tuple[VersionRecord, bool]
"""The record of a version, and whether this call inserted it."""
ABOVE_ALL = (1 << 63) - 1
"""Above any version."""


class FinalManifest(msgspec.Struct, frozen=True):
    """A recorded version whose manifest is at its final path, with its size in bytes and its ETag there."""

    record: VersionRecord
    size: int
    e_tag: str | None


class Versions(Repository):
    """The methods for versions. The branch '' is main."""

    __slots__ = ()

    def record_version(self, new: NewVersion, transaction_id: str | None = None) -> RecordedVersion:
        """Record a version and return it with True; if there is one of that number, return that with False.

        So a caller can tell a retry (the record has its own staged manifest) from a lost race. If the connection to
        the database is lost meanwhile, this call may be such a retry itself. Raises TableNotFoundError.
        """
        return self.record_versions([new], transaction_id)[0]

    def record_versions(
        self, entries: Sequence[NewVersion], transaction_id: str | None = None
    ) -> list[RecordedVersion]:
        """Record versions in few statements, as `record_version` does each; a conflict of one leaves the others.

        Raises TableNotFoundError if the table of one is gone, or has not its expected name, primary key or contract:
        then none is recorded.
        """
        return (self._record_few if len(entries) <= ROWS_PER_STATEMENT else self._record_many)(entries, transaction_id)

    @writes_one_statement
    def _record_few(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[RecordedVersion]:
        return self._record(entries, transaction_id)

    @writes
    def _record_many(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[RecordedVersion]:
        return self._record(entries, transaction_id)

    def _record(self, entries: Sequence[NewVersion], transaction_id: str | None) -> list[RecordedVersion]:
        now = self._clock()
        records = [_new_record(new, now, transaction_id) for new in entries]
        try:
            inserted = {
                key
                for start in range(0, len(entries), ROWS_PER_STATEMENT)
                for key in self._insert(
                    records[start : start + ROWS_PER_STATEMENT], entries[start : start + ROWS_PER_STATEMENT]
                )
            }
        except (ForeignKeyError, NullError):
            table_ids = ", ".join(sorted({str(new.table_id) for new in entries}))
            raise TableNotFoundError(f"Table not found: it was dropped or renamed (id {table_ids})") from None
        outcomes = []
        for new, record in zip(entries, records, strict=True):
            if (key := (new.table_id, new.branch, new.version)) in inserted:
                inserted.remove(key)  # of two entries for one version, the first wins
                outcomes.append((record, True))
            else:
                outcomes.append((self._existing_record(new), False))
        return outcomes

    def _insert(self, records: Sequence[VersionRecord], entries: Sequence[NewVersion]) -> list[Row]:
        """Insert the records whose versions are free; return their keys (table, branch, version)."""
        rows: list[str] = []
        values: list[object] = []
        for record, new in zip(records, entries, strict=True):
            rows.append(ROW if new.expected_name is None else ROW_OF_NAMED_TABLE)
            if new.expected_name is not None:
                values += new.expected_name
            table_id, *others = record.row
            values += (table_id, new.primary_key, new.contract, *others)
            values += (new.manifest, new.checked_key, new.checks, new.changed_rows)
        return self.connection.rows(INSERT.format(rows=", ".join(rows)), *values)

    def _existing_record(self, new: NewVersion) -> VersionRecord:
        row = self.connection.row(DESCRIBE, new.table_id, new.branch, new.version)
        if row is None:  # deleted since the insert conflicted with it
            raise _version_exists(new)
        return VersionRecord.of(row)

    @reads
    def describe_version(self, table_id: int, version: int, branch: str = "") -> VersionRecord:
        """Return a version. Raises TableVersionNotFoundError."""
        if row := self.connection.row(DESCRIBE, table_id, branch, version):
            return VersionRecord.of(row)
        raise _version_not_found(table_id, branch, version)

    @reads
    def stored_manifest(self, record: VersionRecord) -> bytes | None:
        """Return the stored manifest of a version; None once its file is durable, or if it was from the start."""
        row = self.connection.row(MANIFEST, record.table_id, record.branch, record.version, record.staged_path)
        return None if row is None or row[0] is None else bytes(row[0])

    @reads
    def list_versions(
        self, table_id: int, branch: str = "", after: int | None = None, limit: int = 100, descending: bool = False
    ) -> list[VersionRecord]:
        """Return up to `limit` versions after `after`, ascending or descending."""
        start = after if after is not None else ABOVE_ALL if descending else -1
        rows = self.connection.rows(LIST_DOWN if descending else LIST, table_id, branch, start, limit)
        return [VersionRecord.of(row) for row in rows]

    @reads
    def latest_version(self, table_id: int, branch: str = "") -> VersionRecord | None:
        """Return the latest version, or None without any."""
        row = self.connection.row(LIST_DOWN, table_id, branch, ABOVE_ALL, 1)
        return VersionRecord.of(row) if row else None

    @writes
    def lock_versions(self, table_ids: Iterable[int]) -> None:
        """Let other commits to these tables wait until the transaction ends, and wait for those that are under way.

        What this transaction reads of their versions later is what they are when it ends. Tables are locked in one
        order, so two such transactions do not wait for each other.
        """
        ids = sorted(set(table_ids))
        for start in range(0, len(ids), LOCKS_PER_STATEMENT):
            chunk = ids[start : start + LOCKS_PER_STATEMENT]
            self.connection.rows(LOCK_TABLES.format(ids=placeholders(chunk)), *chunk)

    @reads
    def latest_checked_version(self, table_id: int, branch: str, version: int, checked_key: str) -> int | None:
        """Return the latest version up to `version` that fulfils a declared key; None without one."""
        row = self.connection.row(LATEST_CHECKED, table_id, branch, version, checked_key)
        return None if row is None else int(row[0])

    @writes
    def delete_versions(self, table_id: int, branch: str, ranges: Iterable[tuple[int, int | None]]) -> int:
        """Delete the records of versions in the half-open ranges, with None for no end; return how many there were."""
        deleted = 0
        for start, end in ranges:
            deleted += self.connection.change(DELETE, table_id, branch, start, ABOVE_ALL if end is None else end)
        return deleted

    @writes
    def delete_version_record(self, record: VersionRecord) -> bool:
        """Delete a version's record, unless another commit has its number by now; return whether it was there."""
        key = record.table_id, record.branch, record.version, record.staged_path
        return bool(self.connection.change(DELETE_RECORD, *key))

    @writes
    def roll_back_version(self, record: VersionRecord) -> bool:
        """Delete the record of a failed commit, and the references to it; return whether it was there.

        Queued appends that it brought wait again.
        """
        if not self.delete_version_record(record):
            return False
        self.connection.change(UNDO_COMMIT, record.table_id, record.branch, record.version)
        self.connection.change(CLEAR_COMMIT_OF_REQUESTS, record.table_id, record.branch, record.version)
        return True

    @reads
    def pending_versions(
        self, table_id: int | None = None, limit: int = 100, after: VersionRecord | None = None
    ) -> list[VersionRecord]:
        """Return up to `limit` versions that are not finalized, oldest first: of one table after `after`, or of all."""
        if table_id is None:
            rows = self.connection.rows(PENDING_OF_ALL, limit)
        else:
            start = (-1, "", -1) if after is None else (after.created_at, after.branch, after.version)
            rows = self.connection.rows(PENDING_OF_ONE, table_id, *start, limit)
        return [VersionRecord.of(row) for row in rows]

    @reads
    def tables_with_pending_versions(self, after: int, limit: int) -> list[int]:
        """Return up to `limit` ids of tables with versions that are not finalized, those after `after`."""
        return [row[0] for row in self.connection.rows(PENDING_TABLES, after, limit)]

    @reads
    def has_pending_versions(self, table_id: int) -> bool:
        """Return whether a table has versions that are not finalized."""
        return self.connection.row(HAS_PENDING, table_id) is not None

    @writes
    def mark_finalized(self, manifests: Iterable[FinalManifest]) -> None:
        """Mark versions as finalized; a record that is gone, or has another manifest by now, is left alone.

        In the same transaction the tables whose main branch got a version are noted for upkeep, so none is forgotten.
        """
        manifests = list(manifests)
        with_known_size: dict[tuple[int, str], list[VersionRecord]] = {}
        with_new_size: list[Row] = []
        for manifest in manifests:
            record = manifest.record
            if (manifest.size, manifest.e_tag) == (record.manifest_size, record.e_tag):
                with_known_size.setdefault((record.table_id, record.branch), []).append(record)
            else:
                key = record.table_id, record.branch, record.version, record.staged_path
                with_new_size.append((manifest.size, manifest.e_tag, *key))
        for branch, records in with_known_size.items():
            for start in range(0, len(records), ROWS_PER_STATEMENT):
                chunk = records[start : start + ROWS_PER_STATEMENT]
                versions = [record.version for record in chunk]
                ends = min(versions), max(versions)
                paths = [record.staged_path for record in chunk]
                self.connection.change(FINALIZE_RANGE.format(paths=placeholders(paths)), *branch, *ends, *paths)
        if with_new_size:
            self.connection.change_many(FINALIZE_WITH_SIZE, with_new_size)
        changed = [manifest.record.table_id for manifest in manifests if not manifest.record.branch]
        note_changes(self.connection, changed, self._clock())


def _new_record(new: NewVersion, now: int, transaction_id: str | None) -> VersionRecord:
    """Return the record of a new version."""
    head = new.table_id, new.branch, new.version, new.staged_path, new.manifest_path, new.manifest_size, new.e_tag
    return VersionRecord(*head, dict(new.metadata or {}), new.naming_scheme, now, new.finalized, transaction_id)


def _version_exists(new: NewVersion) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Version {new.version} exists already{_on_branch(new.branch)}")


def _version_not_found(table_id: int, branch: str, version: int) -> TableVersionNotFoundError:
    return TableVersionNotFoundError(f"Table version not found: {version}{_on_branch(branch)} (table id {table_id})")


def _on_branch(branch: str) -> str:
    return f" on branch {branch}" if branch else ""


Range: TypeAlias = tuple[int, int]
"""Half-open: versions from the first number to before the second."""

ADD_DELETED = """
    INSERT INTO deleted_versions (table_id, branch, first, beyond, deleted_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (table_id, branch, first) DO UPDATE SET beyond =
        CASE WHEN deleted_versions.beyond > excluded.beyond THEN deleted_versions.beyond ELSE excluded.beyond END
"""
LIST_DELETED = "SELECT first, beyond, deleted_at FROM deleted_versions WHERE table_id = ? AND branch = ? ORDER BY first"
IS_DELETED = "SELECT 1 FROM deleted_versions WHERE table_id = ? AND branch = ? AND first <= ? AND beyond > ?"
RECORDED = "SELECT version FROM table_versions WHERE table_id = ? AND branch = ? AND version >= ? AND version < ?"
PRUNE_DELETED = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND beyond <= ?"
TRUNCATE_DELETED = "UPDATE deleted_versions SET beyond = ? WHERE table_id = ? AND branch = ? AND beyond > ?"
DELETE_DELETED_FROM = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND first >= ?"


class DeletedRange(Record, frozen=True):
    """Versions from `first` to before `end` that were deleted together, at `deleted_at` (ms since 1970)."""

    first: int
    end: int
    deleted_at: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version < self.end


class DeletedVersions(Repository):
    """The methods for deleted versions. The branch '' is main."""

    __slots__ = ()

    @writes
    def add_deleted_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> list[Range]:
        """Record versions as deleted; return the ranges of those that were not before."""
        deleted_before = [(deleted.first, deleted.end) for deleted in self._list(table_id, branch)]
        added = list(subtract(ranges, deleted_before))
        now = self._clock()
        for first, end in added:
            self.connection.change(ADD_DELETED, table_id, branch, first, end, now)
        return added

    @reads
    def deleted_versions(self, table_id: int, branch: str = "") -> list[DeletedRange]:
        """Return the deleted ranges of a branch in ascending order; they do not overlap."""
        return self._list(table_id, branch)

    @reads
    def is_deleted_version(self, table_id: int, branch: str, version: int) -> bool:
        """Return whether a version is recorded as deleted."""
        return self.connection.row(IS_DELETED, table_id, branch, version, version) is not None

    @reads
    def recorded_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> set[int]:
        """Return the versions in the ranges that have a commit record."""
        rows = (row for start, end in ranges for row in self.connection.rows(RECORDED, table_id, branch, start, end))
        return {row[0] for row in rows}

    @writes
    def prune_deleted_versions(self, table_id: int, branch: str, before: int) -> None:
        """Delete the ranges that end before a version, once nothing is left of their versions."""
        self.connection.change(PRUNE_DELETED, table_id, branch, before)

    @writes
    def truncate_deleted_versions(self, table_id: int, branch: str, first: int) -> None:
        """Remove versions from `first` on from the ranges, so that new commits can take their numbers."""
        self.connection.change(DELETE_DELETED_FROM, table_id, branch, first)
        self.connection.change(TRUNCATE_DELETED, first, table_id, branch, first)

    def _list(self, table_id: int, branch: str) -> list[DeletedRange]:
        return [DeletedRange.of(row) for row in self.connection.rows(LIST_DELETED, table_id, branch)]


def subtract(ranges: Iterable[Range], subtrahend: Iterable[Range]) -> Iterator[Range]:
    """Yield the versions in `ranges` that are not in `subtrahend`, in ascending ranges without overlaps."""
    cuts = iter(_merge_ranges(subtrahend))
    cut = next(cuts, None)
    for first, end in _merge_ranges(ranges):
        start = first
        while cut is not None and cut[0] < end:
            if start < cut[0]:
                yield start, cut[0]
            start = max(start, cut[1])
            if cut[1] > end:
                break
            cut = next(cuts, None)
        if start < end:
            yield start, end


def _merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same versions in ascending ranges that neither overlap nor touch."""
    merged: list[Range] = []
    for first, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return merged
