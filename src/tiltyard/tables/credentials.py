"""Vend storage options to clients: how to reach a table's storage, and credentials if they may access its files.

Each feature that restricts access to a table (grants, row filters, column masks) registers a rule:

    @file_access_rule
    def by_policies(ctx: Context, record: TableRecord) -> FileAccess: ...
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.access.authorization import effective_policy_of, is_allowed_outside, table_privileges
from tiltyard.model.principals import Privilege
from tiltyard.storage.roots import lifetime_options
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableRecord


class FileAccess(IntEnum):
    """What a principal may do with the files of a table, without the server."""

    NOTHING = 0
    READ = 1
    WRITE = 2


Rule = Callable[["Context", "TableRecord"], FileAccess]

_rules: list[Rule] = []


def file_access_rule(rule: Rule) -> Rule:
    """Register a rule, which is evaluated before credentials are vended; the most restrictive rule decides."""
    _rules.append(rule)
    return rule


def file_access(ctx: Context, record: TableRecord) -> FileAccess:
    """Return what the principal may do with the files of a table. Raises ServiceUnavailableError."""
    return min(rule(ctx, record) for rule in _rules)


@file_access_rule
def access_by_grants(ctx: Context, record: TableRecord) -> FileAccess:
    """Return the access that grants give. Raises ServiceUnavailableError."""
    privileges = table_privileges(ctx, record)
    if Privilege.READ not in privileges:
        return FileAccess.NOTHING  # credentials that can write can also read
    return FileAccess.WRITE if Privilege.WRITE in privileges else FileAccess.READ


@file_access_rule
def access_by_policies(ctx: Context, record: TableRecord) -> FileAccess:
    """Return no access for principals whom policies restrict: files have all rows and columns."""
    return FileAccess.WRITE if effective_policy_of(ctx, record) is None else FileAccess.NOTHING


@file_access_rule
def access_by_decisions(ctx: Context, record: TableRecord) -> FileAccess:
    """Return what services outside allow, if there are any. Raises ServiceUnavailableError."""
    if not is_allowed_outside(ctx, TABLE, record.id, Privilege.READ.value):
        return FileAccess.NOTHING
    return FileAccess.WRITE if is_allowed_outside(ctx, TABLE, record.id, Privilege.WRITE.value) else FileAccess.READ


@file_access_rule
def access_by_protections(ctx: Context, record: TableRecord) -> FileAccess:
    """Return no more than to read where a table is read-only, or held: what can write can delete."""
    return FileAccess.READ if ctx.services.protections.keeps_files(record.id) else FileAccess.WRITE


def may_call_provider(ctx: Context, vend: bool | None) -> bool:
    """Return whether the storage options may need a call to the storage's provider, and so a thread."""
    return vend is not False and (ctx.storage.roots.vends_credentials or ctx.services.mounts.vends_credentials)


def creator_storage_options(ctx: Context, record: TableRecord, vend: bool | None) -> dict[str, str] | None:
    """Return the storage options of a table that this request itself created, and may have removed again.

    They have credentials if the request wants them and no rule except the grants' is against it: the creator may access
    the files. Raises ServiceUnavailableError.
    """
    public = ctx.storage.roots.public_options(record.location) or None
    if not vend or ctx.claims:
        return public
    access = min(rule(ctx, record) for rule in _rules if rule is not access_by_grants)
    if access is FileAccess.NOTHING:
        return public
    return _vend(ctx, record, access, is_requested=True) or public


def storage_options(ctx: Context, record: TableRecord, vend: bool | None) -> dict[str, str] | None:
    """Return the storage options of a response; `vend` is the request's `vend_credentials`, None if it has none.

    They have credentials unless the request declines them, the storage vends none, or the principal may not have them.
    A request with an idempotency key gets none, since its response is stored. Raises PermissionDeniedError (credentials
    requested but not allowed; or the table is outside the roots), ServiceUnavailableError (the provider fails).
    """
    public = ctx.storage.roots.public_options(record.location) or None
    if not may_call_provider(ctx, vend) and not vend:
        return public
    access = file_access(ctx, record)
    if access is FileAccess.NOTHING:
        if vend:
            raise PermissionDeniedError("You may not read the files of this table: query it through the server.")
        return public
    if ctx.claims:
        return public
    return _vend(ctx, record, access, is_requested=bool(vend)) or public


def _vend(ctx: Context, record: TableRecord, access: FileAccess, *, is_requested: bool) -> dict[str, str] | None:
    """Return storage options with credentials: of the catalog that has the table, else of the server's storage.

    Raises PermissionDeniedError where they are requested, and that catalog cannot narrow them to the caller's access,
    InvalidTableStateError where the folder of a table of another catalog is not its own.
    """
    writable = access is FileAccess.WRITE
    mount = None if record.mount_id is None else ctx.services.mounts.by_id(record.mount_id)
    if mount is not None:
        mount.check_own_location(record.location)  # again: credentials open all that lies there, for longer than this
    if mount is None or not mount.record.vends_credentials:
        return ctx.storage.roots.vend_credentials(record.location, writable=writable)
    try:
        vended = mount.vend_credentials(record.location, writable=writable)
    except PermissionDeniedError:
        if is_requested:
            raise
        return None
    if vended is None:
        return None
    public = ctx.storage.roots.public_options(record.location)
    return {**public, **vended.options, **lifetime_options(vended)}
