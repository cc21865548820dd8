"""Uploads: writes that arrive in several parts and are committed at once."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import Any
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TransactionNotFoundError

from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.records import UploadPart, UploadRecord, encode

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


class Uploads(Scope):
    """The methods for uploads in parts."""

    __slots__ = ()

    @writes
    def create_upload(self, table_id: int, branch: str, mode: str) -> UploadRecord:
        """Begin an upload. Raises TableNotFoundError."""
        record = UploadRecord(str(uuid4()), table_id, branch, mode, self._clock())
        try:
            self.connection.change(INSERT, record.id, table_id, branch, mode, record.created_at)
        except ForeignKeyError:
            raise TableNotFoundError(f"Table not found: it was dropped (id {table_id})") from None
        return record

    @reads
    def describe_upload(self, upload_id: str) -> UploadRecord:
        """Return an upload. Raises TransactionNotFoundError (of the specification's errors the nearest)."""
        if row := self.connection.row(DESCRIBE, upload_id):
            return UploadRecord(*row)
        raise _missing(upload_id)

    @writes
    def add_upload_part(self, upload_id: str, part_id: str, fragments: Any, num_rows: int) -> tuple[UploadPart, bool]:
        """Add a part and return it with True; or, if it came before, return what came first with False.

        Raises TransactionNotFoundError when the upload is over.
        """
        try:
            row = self.connection.row(ADD_PART, upload_id, part_id, encode(fragments), num_rows, self._clock())
        except ForeignKeyError:
            raise _missing(upload_id) from None
        if row:
            return UploadPart.of(row), True
        row = self.connection.row(PART, upload_id, part_id)
        if row is None:
            raise ConcurrentModificationError(f"Upload is being ended by another: {upload_id}")
        return UploadPart.of(row), False

    @reads
    def upload_parts(self, upload_id: str) -> list[UploadPart]:
        """Return the parts that have arrived, in the order of their ids. Raises TransactionNotFoundError."""
        rows = self.connection.rows(PARTS, upload_id)
        if not rows:
            self.describe_upload(upload_id)
        return [UploadPart.of(row) for row in rows]

    @reads
    def stale_uploads(self, created_before: int, limit: int) -> list[UploadRecord]:
        """Return uploads begun before a time, oldest first."""
        return [UploadRecord(*row) for row in self.connection.rows(STALE, created_before, limit)]

    @writes
    def delete_upload(self, upload_id: str) -> None:
        """End an upload and forget its parts; of two who try, one succeeds. Raises TransactionNotFoundError."""
        if not self.connection.change(DELETE, upload_id):
            raise _missing(upload_id)


def _missing(upload_id: str) -> TransactionNotFoundError:
    return TransactionNotFoundError(f"Upload not found: {upload_id}")
