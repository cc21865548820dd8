"""Lists of the objects that the caller can see; pages are full, since the catalog filters before it pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.access.authorization import caller_rights
from tiltyard.model.privileges import ALL, Privilege
from tiltyard.store.repository import ROOT

if TYPE_CHECKING:
    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import JobFilter, ListedTable, RemovedNamespace, RemovedTable, TransactionRecord


def inline_unless_many_grants(ctx: Context, request: object) -> Context | None:
    """Return the context, as `inline` of a list: it is a short read, unless it is filtered by very many grants."""
    return ctx if ctx.principal.administrator or caller_rights(ctx).has_few_grants else None


def inline_unless_many_namespaces(ctx: Context, request: object) -> Context | None:
    """Return the context, as `inline` of a list of all tables: a short read, unless very many namespaces inherit.

    However many grants there are on tables, a page reads those on it alone.
    """
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT) or rights.has_few_namespaces:
        return ctx
    return None


def list_namespaces(ctx: Context, path: Id, after: str | None, count: int) -> list[str]:
    """Return the names of the namespaces directly in one. Raises NamespaceNotFoundError."""
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_namespaces(path, after, count)
    parent_id, rights = store.describe_namespace(path).id, caller_rights(ctx)
    if rights.on_namespace(parent_id):
        return store.list_namespaces(path, after, count)
    return store.visible_namespaces(parent_id, rights.grantees, after, count)


def list_tables(ctx: Context, path: Id, after: str | None, count: int, declared: bool) -> list[str]:
    """Return the names of the tables directly in a namespace. Raises NamespaceNotFoundError."""
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_tables(path, after, count, include_declared=declared)
    parent_id, rights = store.describe_namespace(path).id, caller_rights(ctx)
    if rights.on_namespace(parent_id):
        return store.list_tables(path, after, count, include_declared=declared)
    return store.visible_tables(parent_id, rights.grantees, after, count, include_declared=declared)


def list_all_tables(ctx: Context, after: tuple[int, str] | None, count: int, declared: bool) -> list[ListedTable]:
    """Return the tables of all namespaces."""
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT):
        return ctx.store.list_all_tables(after, count, include_declared=declared)
    return ctx.store.all_visible_tables(rights.grantees, after, count, include_declared=declared)


_MAY_UNDROP = int(Privilege.DROP | Privilege.ADMINISTER)


def list_removed_tables(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedTable]:
    """Return the dropped tables that the caller can restore."""
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT) & Privilege.DROP:
        return ctx.store.list_removed_tables(before, count)
    return ctx.store.visible_removed_tables(rights.grantees, _MAY_UNDROP, before, count)


def list_removed_namespaces(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedNamespace]:
    """Return the dropped namespaces that the caller can restore."""
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT) & Privilege.DROP:
        return ctx.store.list_removed_namespaces(before, count)
    return ctx.store.visible_removed_namespaces(rights.grantees, _MAY_UNDROP, before, count)


def list_jobs(ctx: Context, matching: JobFilter, before: tuple[int, str] | None, count: int) -> list[TransactionRecord]:
    """Return the jobs that the caller submitted, or whose table it can submit jobs on: those that DescribeJob shows."""
    return _visible_jobs(ctx, Privilege.RUN_UDFS, matching, before, count)


def list_all_jobs(
    ctx: Context, matching: JobFilter, before: tuple[int, str] | None, count: int
) -> list[TransactionRecord]:
    """Return the jobs that the caller submitted, or whose table it can use: those that DescribeJobState shows."""
    return _visible_jobs(ctx, Privilege.USE, matching, before, count)


def _visible_jobs(
    ctx: Context, required: Privilege, matching: JobFilter, before: tuple[int, str] | None, count: int
) -> list[TransactionRecord]:
    """Return the jobs of the caller, and those on whose table it has a privilege, without policies."""
    store, name = ctx.store, ctx.principal.name
    if ctx.principal.administrator:
        return store.list_jobs(matching, before, count)
    rights = caller_rights(ctx)
    granted = int(ALL if required is Privilege.USE else required | Privilege.ADMINISTER)  # each of them implies `use`
    records: list[TransactionRecord] = []
    while True:
        if rights.server & required:
            page = store.list_jobs(matching, before, count)
        else:
            page = store.visible_jobs(rights.grantees, granted, name, matching, before, count)
        records += [record for record in page if record.requested_by == name or not _is_policy_bound(rights, record)]
        if len(records) >= count or len(page) < count:
            return records[:count]
        before = page[-1].created_at, page[-1].id


def _is_policy_bound(rights: Rights, record: TransactionRecord) -> bool:
    """Return whether policies of a job's table bind the caller, who must not see the job's arguments then."""
    if record.table_id is None:
        return False
    try:
        return rights.effective_policy(record.table_id) is not None
    except PermissionDeniedError:  # a policy that cannot be parsed binds
        return True
