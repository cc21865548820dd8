"""Multipart uploads: writes that arrive in several parts and are committed together."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import Any
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TransactionNotFoundError

from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.repository import Record, Repository, encode, reads, writes


class UploadRecord(Record, frozen=True):
    """A multipart upload that is not committed yet."""

    id: str
    table_id: int
    branch: str
    mode: str
    created_at: int


class UploadPart(Record, frozen=True):
    """A part of a multipart upload: `fragments` describes the data files written for it."""

    upload_id: str
    part_id: str
    fragments: dict[str, Any]
    num_rows: int
    created_at: int


INSERT = f"INSERT INTO uploads ({UploadRecord.COLUMNS}) VALUES (?, ?, ?, ?, ?)"
DESCRIBE = f"SELECT {UploadRecord.COLUMNS} FROM uploads WHERE id = ?"
STALE = f"SELECT {UploadRecord.COLUMNS} FROM uploads WHERE created_at < ? ORDER BY created_at, id LIMIT ?"
DELETE = "DELETE FROM uploads WHERE id = ?"
ADD_PART = f"""
    INSERT INTO upload_parts ({UploadPart.COLUMNS}) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (upload_id, part_id) DO NOTHING RETURNING {UploadPart.COLUMNS}
"""
PART = f"SELECT {UploadPart.COLUMNS} FROM upload_parts WHERE upload_id = ? AND part_id = ?"
PARTS = f"SELECT {UploadPart.COLUMNS} FROM upload_parts WHERE upload_id = ? ORDER BY part_id"


class Uploads(Repository):
    """The methods for multipart uploads."""

    __slots__ = ()

    @writes
    def create_upload(self, table_id: int, branch: str, mode: str) -> UploadRecord:
        """Create an upload. Raises TableNotFoundError."""
        record = UploadRecord(str(uuid4()), table_id, branch, mode, self._clock())
        try:
            self.connection.change(INSERT, record.id, table_id, branch, mode, record.created_at)
        except ForeignKeyError:
            raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})") from None
        return record

    @reads
    def describe_upload(self, upload_id: str) -> UploadRecord:
        """Return an upload. Raises TransactionNotFoundError (the nearest of the specification's errors)."""
        if row := self.connection.row(DESCRIBE, upload_id):
            return UploadRecord.of(row)
        raise _upload_not_found(upload_id)

    @writes
    def add_upload_part(self, upload_id: str, part_id: str, fragments: Any, num_rows: int) -> tuple[UploadPart, bool]:
        """Add a part and return it with True; if there is one of this id, return that with False.

        Raises TransactionNotFoundError when the upload has ended.
        """
        try:
            row = self.connection.row(ADD_PART, upload_id, part_id, encode(fragments), num_rows, self._clock())
        except ForeignKeyError:
            raise _upload_not_found(upload_id) from None
        if row:
            return UploadPart.of(row), True
        row = self.connection.row(PART, upload_id, part_id)
        if row is None:
            raise ConcurrentModificationError(f"Upload is being ended by another: {upload_id}")
        return UploadPart.of(row), False

    @reads
    def upload_parts(self, upload_id: str) -> list[UploadPart]:
        """Return the parts of an upload by id. Raises TransactionNotFoundError."""
        rows = self.connection.rows(PARTS, upload_id)
        if not rows:
            self.describe_upload(upload_id)
        return [UploadPart.of(row) for row in rows]

    @reads
    def stale_uploads(self, created_before: int, limit: int) -> list[UploadRecord]:
        """Return up to `limit` uploads created before a time, oldest first."""
        return [UploadRecord.of(row) for row in self.connection.rows(STALE, created_before, limit)]

    @writes
    def delete_upload(self, upload_id: str) -> None:
        """Delete an upload with its parts; of concurrent calls, one succeeds. Raises TransactionNotFoundError."""
        if not self.connection.change(DELETE, upload_id):
            raise _upload_not_found(upload_id)


def _upload_not_found(upload_id: str) -> TransactionNotFoundError:
    return TransactionNotFoundError(f"Upload not found: {upload_id}")
