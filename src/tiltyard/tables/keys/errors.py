"""Refuse a commit that would break a primary key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidTableStateError, PermissionDeniedError, TableSchemaValidationError

from tiltyard.access.authorization import effective_policy_of, table_privileges
from tiltyard.model.columns.primary_keys import format_key
from tiltyard.model.principals import Privilege

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.columns.primary_keys import PrimaryKey
    from tiltyard.store import TableRecord
    from tiltyard.tables.keys.key_values import Key


class DuplicateKeyError(InvalidTableStateError):
    """A commit would give a table a key twice: 409, and nothing that a retry helps.

    So it is no ConcurrentModificationError, at which clients of Lance rebase and commit again, and whose status lancedb
    retries.
    """


def duplicate_error(ctx: Context, table: TableRecord, key: PrimaryKey, values: Key, where: str) -> DuplicateKeyError:
    """Return the error for a key that a version would have twice; `where` says where both are."""
    return DuplicateKeyError(f"Duplicate key: {_shown(ctx, table, key, values)} {where}; nothing was committed.")


def taken_sentence(ctx: Context, table: TableRecord, key: PrimaryKey, values: Key) -> str:
    """Return the sentence that a table has got a key by another commit, which a refused one would bring, too."""
    return f"The table '{table.name}' has got a key of these rows meanwhile: {_shown(ctx, table, key, values)}."


def null_error(column: str) -> TableSchemaValidationError:
    """Return the error for a key without a value."""
    return TableSchemaValidationError(
        f"Null key: a row has no value in '{column}', which is part of this table's primary key; nothing was committed."
    )


def _shown(ctx: Context, table: TableRecord, key: PrimaryKey, values: Key) -> str:
    """Return a key as text; 'a key' for a caller who may not read all keys of the table."""
    return format_key(key.columns, values) if may_see_rows(ctx, table) else "a key"


def may_see_rows(ctx: Context, table: TableRecord) -> bool:
    """Return whether a message may quote rows of a table: whether the caller may read all of them, as they are."""
    try:
        return table.id == 0 or (
            bool(table_privileges(ctx, table) & Privilege.READ) and effective_policy_of(ctx, table) is None
        )
    except PermissionDeniedError:  # a policy that cannot be applied
        return False
