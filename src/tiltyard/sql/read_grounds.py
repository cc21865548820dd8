"""Why a query's reader may read its tables, and whether that still holds when rows are handed over later.

A submitted query runs while its client waits, and its rows are read by further calls. A grant may be revoked meanwhile,
a policy be set, or a table give way to another one of its name: then nothing more of the query is handed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import PermissionDeniedError
from msgspec import structs

from tiltyard.access.authorization import authorize_table, effective_policy_of, refresh_principal
from tiltyard.model.ids import Id
from tiltyard.model.principals import Privilege

if TYPE_CHECKING:
    from tiltyard.context import Context

REAUTHORIZE_SECONDS = 1.0
"""How long rows are handed over until it is looked again whether their reader may still read them."""


class ReadGrounds(msgspec.Struct, frozen=True, array_like=True):
    """A table as it was authorized: its path and id, and a digest of the policies that bound its reader, or ""."""

    path: tuple[str, ...]
    table_id: int
    policies: str = ""


def authorize_reading(ctx: Context, path: Id) -> Context:
    """Return a context in which the principal may read a table, within its policies.

    Raises TableNotFoundError, NamespaceNotFoundError, PermissionDeniedError.
    """
    if ctx.is_unchecked:
        return ctx.with_resolved({path: ctx.find_table(path)})
    return ctx.with_resolved({path: authorize_table(ctx, path, Privilege.READ.value, enforces_policies=True)})


def grounds_of(ctx: Context, path: Id) -> ReadGrounds:
    """Return the grounds on which the principal may read a table, for which it was authorized in `ctx`.

    Raises ServiceUnavailableError, PermissionDeniedError (a policy that cannot be applied).
    """
    record = ctx.find_table(path)
    policy = effective_policy_of(ctx, record)
    if policy is None:
        return ReadGrounds(tuple(path), record.id)
    text = repr((policy.filter, sorted((name, repr(mask)) for name, mask in policy.masks.items()), policy.rules))
    return ReadGrounds(tuple(path), record.id, hashlib.sha256(text.encode()).hexdigest())


def check_grounds(ctx: Context, grounds: Iterable[ReadGrounds]) -> None:
    """Check that the principal may read the tables of a query as it might when the query was planned.

    Raises PermissionDeniedError, TableNotFoundError, NamespaceNotFoundError, ServiceUnavailableError.
    """
    ctx.rights_cache.refresh_next()  # another process may have changed a grant
    ctx = structs.replace(ctx, resolved=None, principal=refresh_principal(ctx, ctx.principal))
    for planned in grounds:
        path = Id(planned.path)
        now = grounds_of(authorize_reading(ctx, path), path)
        if now.table_id != planned.table_id:
            raise PermissionDeniedError(
                f"The table {path} is another one than the query was planned for: submit it again."
            )
        if now.policies != planned.policies:
            raise PermissionDeniedError(f"A policy of the table {path} has changed: submit the query again.")
