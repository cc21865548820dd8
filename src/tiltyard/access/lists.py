"""Lists that leave out what one may not see, with full pages still: the catalog pages through what is visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.privileges import Privilege
from tiltyard.access.seeing import rights_of

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.ids import Id
    from tiltyard.store import ListedTable, RemovedNamespace, RemovedTable

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
