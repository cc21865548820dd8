"""Lists of the objects that the caller can see; pages are full, since the catalog filters before it pages."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import PermissionDeniedError, ServiceUnavailableError

from tiltyard.access.authorization import are_objects_allowed, caller_rights
from tiltyard.model.paging import fetch_chosen
from tiltyard.model.principals import ALL, Privilege
from tiltyard.store.access.grants import NAMESPACE, TABLE
from tiltyard.store.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import JobFilter, ListedTable, RemovedNamespace, RemovedTable, TransactionRecord

Item = TypeVar("Item")
Key = TypeVar("Key")

MIN_ASKED_OBJECTS = 64
"""Objects that services outside are asked about at once, at least, however short the page is."""
MAX_FILTER_SECONDS = 30.0
"""Seconds for which a page is filled where services outside leave most objects out."""


def _allowed_page(
    ctx: Context,
    kind: str,
    fetch: Callable[[Key | None, int], list[Item]],
    after: Key | None,
    count: int,
    path_of: Callable[[Item], Sequence[str] | None],
    key_of: Callable[[Item], Key],
    privileges: int = Privilege.USE.value,
) -> list[Item]:
    """Return a full page of objects of one kind, as `fetch_allowed` does; without a path they are not asked about."""

    def object_of(item: Item) -> tuple[str, Sequence[str]] | None:
        path = path_of(item)
        return None if path is None else (kind, path)

    return fetch_allowed(ctx, fetch, after, count, object_of, key_of, privileges)


def fetch_allowed(
    ctx: Context,
    fetch: Callable[[Key | None, int], list[Item]],
    after: Key | None,
    count: int,
    object_of: Callable[[Item], tuple[str, Sequence[str]] | None],
    key_of: Callable[[Item], Key],
    privileges: int = Privilege.USE.value,
) -> list[Item]:
    """Return a full page of what services outside, if there are any, allow, by the kind and path of each object.

    What has no object is not asked about. `fetch(after, count)` reads what the caller's rights allow, from behind a
    key. Raises ServiceUnavailableError.
    """
    if ctx.services.decisions is None:
        return fetch(after, count)
    until = time.monotonic() + MAX_FILTER_SECONDS

    def fetch_many(after: Key | None, count: int) -> list[Item]:
        return fetch(after, max(count, MIN_ASKED_OBJECTS))

    def choose(page: Sequence[Item]) -> list[Item]:
        if time.monotonic() > until:
            raise ServiceUnavailableError("So much of this list may not be seen that it takes too long: narrow it.")
        objects = [object_of(each) for each in page]
        answers = iter(are_objects_allowed(ctx, [named for named in objects if named is not None], privileges))
        return [each for each, named in zip(page, objects, strict=True) if named is None or next(answers)]

    return fetch_chosen(fetch_many, after, count, key_of, choose)


def _itself(name: str) -> str:
    return name


def _path_of(table: ListedTable | RemovedTable) -> Sequence[str]:
    return *table.namespace, table.name


def _removal_key(removed: RemovedTable | RemovedNamespace) -> tuple[int, int]:
    return removed.removed_at, removed.id


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
    """Return the names of the namespaces directly in one. Raises NamespaceNotFoundError, ServiceUnavailableError."""
    fetch = partial(_list_namespaces, ctx, path)
    return _allowed_page(ctx, NAMESPACE, fetch, after, count, lambda name: (*path, name), _itself)


def _list_namespaces(ctx: Context, path: Id, after: str | None, count: int) -> list[str]:
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_namespaces(path, after, count)
    parent_id, rights = store.describe_namespace(path).id, caller_rights(ctx)
    if rights.on_namespace(parent_id):
        return store.list_namespaces(path, after, count)
    return store.visible_namespaces(parent_id, rights.grantees, after, count)


def list_tables(ctx: Context, path: Id, after: str | None, count: int, declared: bool) -> list[str]:
    """Return the names of the tables directly in one. Raises NamespaceNotFoundError, ServiceUnavailableError."""
    fetch = partial(_list_tables, ctx, path, declared=declared)
    return _allowed_page(ctx, TABLE, fetch, after, count, lambda name: (*path, name), _itself)


def _list_tables(ctx: Context, path: Id, after: str | None, count: int, *, declared: bool) -> list[str]:
    store = ctx.store
    if ctx.principal.administrator:
        return store.list_tables(path, after, count, include_declared=declared)
    parent_id, rights = store.describe_namespace(path).id, caller_rights(ctx)
    if rights.on_namespace(parent_id):
        return store.list_tables(path, after, count, include_declared=declared)
    return store.visible_tables(parent_id, rights.grantees, after, count, include_declared=declared)


def list_all_tables(ctx: Context, after: tuple[int, str] | None, count: int, declared: bool) -> list[ListedTable]:
    """Return the tables of all namespaces. Raises ServiceUnavailableError."""

    def fetch(after: tuple[int, str] | None, count: int) -> list[ListedTable]:
        return _list_all_tables(ctx, after, count, declared=declared)

    return _allowed_page(ctx, TABLE, fetch, after, count, _path_of, lambda each: (each.namespace_id, each.name))


def _list_all_tables(ctx: Context, after: tuple[int, str] | None, count: int, *, declared: bool) -> list[ListedTable]:
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT):
        return ctx.store.list_all_tables(after, count, include_declared=declared)
    return ctx.store.all_visible_tables(rights.grantees, after, count, include_declared=declared)


_MAY_UNDROP = int(Privilege.DROP | Privilege.ADMINISTER)


def list_removed_tables(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedTable]:
    """Return the dropped tables that the caller can restore. Raises ServiceUnavailableError."""
    fetch = partial(_list_removed_tables, ctx)
    return _allowed_page(ctx, TABLE, fetch, before, count, _path_of, _removal_key)


def _list_removed_tables(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedTable]:
    if ctx.principal.administrator or (rights := caller_rights(ctx)).on_namespace(ROOT) & Privilege.DROP:
        return ctx.store.list_removed_tables(before, count)
    return ctx.store.visible_removed_tables(rights.grantees, _MAY_UNDROP, before, count)


def list_removed_namespaces(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedNamespace]:
    """Return the dropped namespaces that the caller can restore. Raises ServiceUnavailableError."""
    fetch = partial(_list_removed_namespaces, ctx)
    return _allowed_page(ctx, NAMESPACE, fetch, before, count, lambda each: each.path, _removal_key)


def _list_removed_namespaces(ctx: Context, before: tuple[int, int] | None, count: int) -> list[RemovedNamespace]:
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

    def fetch(before: tuple[int, str] | None, count: int) -> list[TransactionRecord]:
        return _granted_jobs(ctx, required, matching, before, count)

    def path_of(record: TransactionRecord) -> Sequence[str] | None:
        return None if record.table_id is None else ctx.store.object_path(TABLE, record.table_id)

    return _allowed_page(
        ctx, TABLE, fetch, before, count, path_of, lambda each: (each.created_at, each.id), required.value
    )


def _granted_jobs(
    ctx: Context, required: Privilege, matching: JobFilter, before: tuple[int, str] | None, count: int
) -> list[TransactionRecord]:
    store, name = ctx.store, ctx.principal.name
    if ctx.principal.administrator:
        return store.list_jobs(matching, before, count)
    rights = caller_rights(ctx)
    granted = int(ALL if required is Privilege.USE else required | Privilege.ADMINISTER)  # each of them implies `use`

    def fetch(before: tuple[int, str] | None, count: int) -> list[TransactionRecord]:
        if rights.server & required:
            return store.list_jobs(matching, before, count)
        return store.visible_jobs(rights.grantees, granted, name, matching, before, count)

    return fetch_chosen(
        fetch,
        before,
        count,
        lambda record: (record.created_at, record.id),
        lambda page: (each for each in page if each.requested_by == name or not _is_policy_bound(rights, each)),
    )


def _is_policy_bound(rights: Rights, record: TransactionRecord) -> bool:
    """Return whether policies of a job's table bind the caller, who must not see the job's arguments then."""
    if record.table_id is None:
        return False
    try:
        return rights.effective_policy(record.table_id) is not None
    except PermissionDeniedError:  # a policy that cannot be parsed binds
        return True
