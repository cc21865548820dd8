"""Lists that leave out what one may not see, with full pages still: the catalog pages through what is visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.access.visibility import rights_of
from tiltyard.model.privileges import Privilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.model.modes import TransactionStatus
    from tiltyard.store import ListedTable, RemovedNamespace, RemovedTable, TransactionRecord

ROOT = 1


def short(ctx: Context, request: object) -> Context | None:
    """For `inline`: these lists are short reads, unless they begin with very many grants."""
    return ctx if ctx.principal.administrator or rights_of(ctx).few else None


def list_namespaces(ctx: Context, path: Id, after: str | None, count: int) -> list[str]:
    """Names of the namespaces directly in one. Raises NamespaceNotFoundError."""
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_namespaces(path, after, count)
    home, rights = store.describe_namespace(path).id, rights_of(ctx)
    if rights.on_namespace(home):
        return store.list_namespaces(path, after, count)
    return store.visible_namespaces(home, rights.grantees, after, count)


def list_tables(ctx: Context, path: Id, after: str | None, count: int, declared: bool) -> list[str]:
    """Names of the tables directly in a namespace. Raises NamespaceNotFoundError."""
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_tables(path, after, count, include_declared=declared)
    home, rights = store.describe_namespace(path).id, rights_of(ctx)
    if rights.on_namespace(home):
        return store.list_tables(path, after, count, include_declared=declared)
    return store.visible_tables(home, rights.grantees, after, count, include_declared=declared)


def list_all_tables(ctx: Context, after: tuple[int, str] | None, count: int, declared: bool) -> list[ListedTable]:
    """All tables."""
    if ctx.principal.administrator or (rights := rights_of(ctx)).on_namespace(ROOT):
        return ctx.store.list_all_tables(after, count, include_declared=declared)
    return ctx.store.all_visible_tables(rights.grantees, after, count, include_declared=declared)


_MAY_UNDROP = int(Privilege.DROP | Privilege.ADMINISTER)


def list_removed_tables(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedTable]:
    """Tables that one may bring back."""
    if ctx.principal.administrator or (rights := rights_of(ctx)).on_namespace(ROOT) & Privilege.DROP:
        return ctx.store.list_removed_tables(before, count)
    return ctx.store.visible_removed_tables(rights.grantees, _MAY_UNDROP, before, count)


def list_removed_namespaces(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedNamespace]:
    """Namespaces that one may bring back."""
    if ctx.principal.administrator or (rights := rights_of(ctx)).on_namespace(ROOT) & Privilege.DROP:
        return ctx.store.list_removed_namespaces(before, count)
    return ctx.store.visible_removed_namespaces(rights.grantees, _MAY_UNDROP, before, count)


_MAY_DESCRIBE = int(Privilege.RUN_UDFS | Privilege.ADMINISTER)


def list_jobs(
    ctx: Context, kinds: Sequence[str], status: TransactionStatus | None, before: tuple[int, str] | None, count: int
) -> list[TransactionRecord]:
    """Jobs that one asked for, or on whose table one may have some run: those that DescribeJob tells of."""
    store, name = ctx.store, ctx.principal.name
    if ctx.principal.administrator:
        return store.list_jobs(kinds, status, before, count)
    rights = rights_of(ctx)
    found: list[TransactionRecord] = []
    while True:
        if rights.server & Privilege.RUN_UDFS:
            page = store.list_jobs(kinds, status, before, count)
        else:
            page = store.visible_jobs(rights.grantees, _MAY_DESCRIBE, name, kinds, status, before, count)
        found += [record for record in page if record.requested_by == name or not _is_narrowed(rights, record)]
        if len(found) >= count or len(page) < count:
            return found[:count]
        before = page[-1].created_at, page[-1].id


def _is_narrowed(rights: Rights, record: TransactionRecord) -> bool:
    """Whether policies of a job's table bind whoever asks: then its arguments, and its figures, are not theirs."""
    if record.table_id is None:
        return False
    try:
        return rights.narrowing(record.table_id) is not None
    except PermissionDeniedError:  # a policy that cannot be read binds
        return True
