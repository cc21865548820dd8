"""Finding objects as the one who asks sees them: what one may not see does not exist, in the very same words.

Whoever has any privilege on an object, or on a namespace above it, sees it. A namespace on the way to such an object is
seen too: by its name, and no more. The root namespace is seen by everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tiltyard.access.policies import refusal
from tiltyard.model.ids import display
from tiltyard.model.privileges import Privilege, privilege_names
from tiltyard.store.paths import ROOT, namespace_not_found, table_not_found

if TYPE_CHECKING:
    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord

_USE = Privilege.USE.value


def rights_of(ctx: Context) -> Rights:
    """What the one who asks may do; not for administrators, who may do everything. Raises ServiceUnavailableError."""
    return ctx.access.of(ctx.principal)


def refused(missing: int, what: str) -> PermissionDeniedError:
    """Say which privileges are missing on what."""
    return PermissionDeniedError(
        f"This needs {' and '.join(privilege_names(missing))} on {what}: ask who may grant it."
    )


def seen_table(ctx: Context, path: Id, wanted: int, *, narrowed: bool = False) -> TableRecord:
    """A table on which all privileges of `wanted` were granted; with 0, one that may be seen.

    A table with policies that bind whoever asks is refused, unless what asks says that it shows and changes no more
    than they leave: `narrowed`. Raises TableNotFoundError, NamespaceNotFoundError (none that one may see),
    PermissionDeniedError.
    """
    try:
        record = ctx.store.describe_table(path)
    except (TableNotFoundError, NamespaceNotFoundError):
        raise hidden_table(ctx, path) from None
    check_record(ctx, path, record, wanted, narrowed=narrowed)
    return record


def check_record(ctx: Context, path: Id, record: TableRecord, wanted: int, *, narrowed: bool = False) -> None:
    """Check what `seen_table` does of a table that was found already; raises the same."""
    wanted |= _USE
    rights = rights_of(ctx)
    if rights.allow(record, wanted):
        if not narrowed and rights.narrowing(record.id) is not None:
            raise refusal(f"the table {display(path)}")
        return
    bits = rights.on_table(record.id, record.namespace_id)
    if not bits:
        raise hidden_table(ctx, path)
    raise refused(wanted & ~bits, f"the table {display(path)}")


def hidden_table(ctx: Context, path: Id) -> LanceNamespaceError:
    """What is said of a table that is not there, or that one may not see: it takes the same steps for both."""
    return table_not_found(path) if sees_namespace(ctx, path[:-1]) else namespace_not_found(path[:-1])


def seen_namespace(ctx: Context, path: Id, wanted: int) -> int:
    """The id of a namespace on which all privileges of `wanted` were granted; with 0, of one that may be seen.

    Raises NamespaceNotFoundError (none that one may see), PermissionDeniedError.
    """
    if not path and not wanted:
        return ROOT
    try:
        record = ctx.store.describe_namespace(path)
    except NamespaceNotFoundError:
        _sees(ctx, 0)
        raise
    bits = rights_of(ctx).on_namespace(record.id)
    if wanted and bits & wanted == wanted:
        return record.id
    if not (bits or not path or _sees(ctx, record.id)):
        raise namespace_not_found(path)
    if not wanted:
        return record.id
    raise refused(wanted & ~bits, f"the namespace {display(path)}" if path else "the root namespace")


def sees_namespace(ctx: Context, path: Id) -> bool:
    """Whether there is a namespace that one may see."""
    if not path:
        return True
    try:
        number = ctx.store.describe_namespace(path).id
    except NamespaceNotFoundError:
        number = 0  # which no namespace has: the same questions are asked of it
    return _sees(ctx, number)


def _sees(ctx: Context, namespace_id: int) -> bool:
    rights = rights_of(ctx)
    return bool(rights.on_namespace(namespace_id)) or ctx.store.has_grant_at_or_below(namespace_id, rights.grantees)


def check_server(ctx: Context, wanted: int, why: str = "the server") -> None:
    """Raise PermissionDeniedError unless all privileges of `wanted` were granted on the whole server."""
    bits = rights_of(ctx).server
    if bits & wanted != wanted:
        raise refused(wanted & ~bits, why)
