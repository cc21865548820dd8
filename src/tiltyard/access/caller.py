"""The caller of a request: its rights, and the policies that bind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError
from msgspec import structs

from tiltyard.model.privileges import ALL, Privilege

if TYPE_CHECKING:
    from tiltyard.access.policies import EffectivePolicy
    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.principals import Principal
    from tiltyard.store import TableRecord

_ALL_PRIVILEGES = Privilege(ALL)


def caller_rights(ctx: Context) -> Rights:
    """Return the caller's rights; not for administrators, who have all. Raises ServiceUnavailableError."""
    return ctx.rights_cache.get(ctx.principal)


def is_administrator(ctx: Context) -> bool:
    """Return whether the caller has all privileges: as an administrator, or by a grant on the server."""
    return ctx.principal.administrator or bool(caller_rights(ctx).server & Privilege.ADMINISTER)


def effective_policy_of(ctx: Context, record: TableRecord) -> EffectivePolicy | None:
    """Return the row filter and column masks that bind the caller on a table; None where no policy does.

    Raises ServiceUnavailableError, PermissionDeniedError (a policy that cannot be applied).
    """
    if ctx.principal.administrator:
        return None
    return ctx.rights_cache.get(ctx.principal).effective_policy(record.id)


def table_privileges(ctx: Context, record: TableRecord) -> Privilege:
    """Return the caller's privileges on a table. Raises ServiceUnavailableError."""
    if ctx.principal.administrator:
        return _ALL_PRIVILEGES
    return Privilege(caller_rights(ctx).on_table(record.id, record.namespace_id))


def refresh_principal(ctx: Context, principal: Principal) -> Principal:
    """Return the principal of an earlier request as it is now: it may be no administrator any more.

    Its name stays, and so do its groups, which only a token can change. Raises PermissionDeniedError for a principal
    that was disabled.
    """
    record = ctx.store.describe_principal(principal.name)
    if record is None:
        return principal
    if record.disabled:
        raise PermissionDeniedError(f"The principal '{principal.name}' is disabled.")
    return structs.replace(principal, administrator=record.administrator)
