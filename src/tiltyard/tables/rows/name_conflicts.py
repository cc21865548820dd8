"""A name that is taken is answered before anything else that a request to create has wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, LanceNamespaceError, TableAlreadyExistsError, TableNotFoundError

from tiltyard.model.ids import display

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

_LATER = frozenset(
    (
        ErrorCode.UNSUPPORTED,
        ErrorCode.INVALID_INPUT,
        ErrorCode.INVALID_TABLE_STATE,
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.TABLE_VERSION_NOT_FOUND,
        ErrorCode.TABLE_TAG_NOT_FOUND,
    )
)
"""What is wrong with a location, a source, an option or a body."""


@contextmanager
def taken_name_first(ctx: Context, path: Id) -> Iterator[None]:
    """Raise TableAlreadyExistsError for what the block raises of a request's location or body, if the name is taken.

    So a look at the catalog is paid for by requests that fail alone.
    """
    try:
        yield
    except LanceNamespaceError as error:
        if error.code in _LATER and _is_taken(ctx, path):
            raise TableAlreadyExistsError(f"Table already exists: {display(path)}") from error
        raise


def _is_taken(ctx: Context, path: Id) -> bool:
    try:
        ctx.store.describe_table(path)
    except TableNotFoundError:
        return False
    return True
