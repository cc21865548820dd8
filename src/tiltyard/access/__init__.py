"""Who may do what: privileges, what was granted, and the checks that operations declare (docs/security.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.rights import Access, Rights
from tiltyard.model.privileges import ALL, Privilege

if TYPE_CHECKING:
    from tiltyard.access.policies import Narrowing
    from tiltyard.context import Context
    from tiltyard.store import TableRecord

__all__ = ["ALL", "Access", "Privilege", "Rights", "is_administrator", "narrowing_of", "table_privileges"]


_EVERYTHING = Privilege(ALL)


def is_administrator(ctx: Context) -> bool:
    """Whether the one who asks may do everything: by itself, or by a grant on the server."""
    return ctx.principal.administrator or bool(ctx.access.of(ctx.principal).server & Privilege.ADMINISTER)


def narrowing_of(ctx: Context, record: TableRecord) -> Narrowing | None:
    """What policies leave of a table for the one who asks; None where none binds.

    Raises ServiceUnavailableError, PermissionDeniedError (a policy that cannot be applied).
    """
    if ctx.principal.administrator:
        return None
    return ctx.access.of(ctx.principal).narrowing(record.id)


def table_privileges(ctx: Context, record: TableRecord) -> Privilege:
    """What the one who asks may do with a table. Raises ServiceUnavailableError."""
    if ctx.principal.administrator:
        return _EVERYTHING
    return Privilege(ctx.access.of(ctx.principal).on_table(record.id, record.namespace_id))
