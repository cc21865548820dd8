"""Report a name conflict before any other error of a request that creates a table."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, LanceNamespaceError, TableAlreadyExistsError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

_LOWER_PRIORITY = frozenset(
    (
        ErrorCode.UNSUPPORTED,
        ErrorCode.INVALID_INPUT,
        ErrorCode.INVALID_TABLE_STATE,
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.TABLE_VERSION_NOT_FOUND,
        ErrorCode.TABLE_TAG_NOT_FOUND,
    )
)
"""Errors of a location, a source, an option or a body: a name conflict is reported instead of them."""


@contextmanager
def prefer_name_conflict(ctx: Context, path: Id) -> Iterator[None]:
    """Raise TableAlreadyExistsError instead of the block's error about location or body, if the table exists.

    So only failing requests pay for the query to the catalog.
    """
    try:
        yield
    except LanceNamespaceError as error:
        if error.code in _LOWER_PRIORITY and _table_exists(ctx, path):
            raise TableAlreadyExistsError(f"Table already exists: {path}") from error
        raise


def _table_exists(ctx: Context, path: Id) -> bool:
    try:
        ctx.look_up_table(path)
    except TableNotFoundError:
        return False
    return True
