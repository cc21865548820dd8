"""Operations on namespaces below a mount, which the other catalog has: what it can do, and exact combinations of that.

Each is the `below_mount` of an operation in `namespaces`: `below` is the id of the namespace in the other catalog, the
empty one for the mount itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import allowed_outside, caller_rights
from tiltyard.access.needs import creator_for
from tiltyard.context import Context
from tiltyard.model.ids import Id, is_name, namespace_id
from tiltyard.model.modes import CreateMode, DropBehavior, DropMode, parse_mode
from tiltyard.model.paging import page_size
from tiltyard.model.spec import models
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.store.access.grants import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.mounts import NamePage
    from tiltyard.mounts.registry.mount import Mount

MAX_CALLS = 50
"""To the other catalog for one page, where most of what it lists is not for the caller."""
MAX_VISIBLE = 100_000
"""Names in one namespace that a caller without a grant on it may see."""


def create_namespace(
    ctx: Context, request: models.CreateNamespaceRequest, mount: Mount, below: Id
) -> models.CreateNamespaceResponse:
    """Create a namespace in the other catalog.

    Raises NamespaceAlreadyExistsError, NamespaceNotFoundError (the parent), UnsupportedOperationError (Overwrite: the
    other catalog's content would go with it), what the backend raises.
    """
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    path = namespace_id(request.id)
    if mode is CreateMode.OVERWRITE:
        raise UnsupportedOperationError(
            f"A namespace in a {mount.kind} catalog is not overwritten: drop what is in it, and then itself."
        )
    properties = request.properties or {}
    try:
        if not below:
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {path}")
        mount.create_namespace(below, properties, creator_for(ctx, path.parent))
    except NamespaceAlreadyExistsError:
        if mode is not CreateMode.EXIST_OK:
            raise
        properties = _properties(ctx, path, mount, below)
    response = models.CreateNamespaceResponse(properties=dict(properties))
    return ctx.store_response(response)


def describe_namespace(
    ctx: Context, request: models.DescribeNamespaceRequest, mount: Mount, below: Id
) -> models.DescribeNamespaceResponse:
    """Describe a namespace by the properties that the other catalog has; a mount also by those it was made with."""
    return models.DescribeNamespaceResponse(properties=_properties(ctx, namespace_id(request.id), mount, below))


def namespace_exists(ctx: Context, request: models.NamespaceExistsRequest, mount: Mount, below: Id) -> None:
    """Check that a namespace exists in the other catalog. Raises NamespaceNotFoundError."""
    if below:
        mount.namespace_properties(below)


def drop_namespace(
    ctx: Context, request: models.DropNamespaceRequest, mount: Mount, below: Id
) -> models.DropNamespaceResponse:
    """Drop an empty namespace of the other catalog; tables of other formats count.

    Raises NamespaceNotFoundError (not with Skip), NamespaceNotEmptyError, InvalidInputError (the mount itself),
    UnsupportedOperationError (Cascade, which the other catalog could not do as one step).
    """
    mode = parse_mode(DropMode, request.mode, DropMode.FAIL)
    behavior = parse_mode(DropBehavior, request.behavior, DropBehavior.RESTRICT, "behavior")
    if not below:
        raise InvalidInputError("This namespace is a mount: unmount it (`tiltyard mount remove`), which drops nothing.")
    if behavior is DropBehavior.CASCADE:
        raise UnsupportedOperationError(
            f"A namespace in a {mount.kind} catalog is not dropped with its content: drop that first, one by one."
        )
    try:
        path, is_approved = namespace_id(request.id), ctx.approval is not None
        ctx.store.check_removable(ctx.find_namespace(path).id, 0, f"the namespace {path}", approved=is_approved)
        response = models.DropNamespaceResponse(properties=dict(mount.drop_namespace(below)))
    except NamespaceNotFoundError:
        if mode is not DropMode.SKIP:
            raise
        response = models.DropNamespaceResponse()
    return ctx.store_response(response)


def list_namespaces(
    ctx: Context, request: models.ListNamespacesRequest, mount: Mount, below: Id
) -> models.ListNamespacesResponse:
    """List the namespaces in one of the other catalog; those that the caller can see."""
    path = namespace_id(request.id)

    def visible(namespace: int) -> list[str]:
        return ctx.store.visible_namespaces(namespace, caller_rights(ctx).grantees, None, MAX_VISIBLE)

    names, token = list_page(
        ctx, path, f"namespaces below the mount in {path}", request.page_token, request.limit,
        lambda limit, after: mount.list_namespaces(below, limit, after), visible,
    )  # fmt: skip
    return models.ListNamespacesResponse(namespaces=names, page_token=token)


def list_page(
    ctx: Context,
    path: Id,
    scope: str,
    token: str | None,
    limit: int | None,
    fetch: Callable[[int, str | None], NamePage],
    visible: Callable[[int], list[str]],
    keep: Callable[[str], bool] | None = None,
    kind: str = NAMESPACE,
) -> tuple[list[str], str | None]:
    """Return one page of names in a namespace of another catalog, and our token of the next one; None on the last.

    `fetch` returns a page of the other catalog, with objects of a `kind`, `visible` the names in a namespace that a
    caller may see who has no grant on it, and `keep` says which of those are asked for. A page has fewer names than
    were asked for where most are left out: its token goes on behind them. Names that nothing here can have are left
    out; CheckMount has them. Raises MalformedAnswerError where the other catalog repeats a page.
    """
    is_seen = None
    if not ctx.principal.administrator:
        namespace = ctx.find_namespace(path).id
        if not caller_rights(ctx).on_namespace(namespace):
            is_seen = frozenset(visible(namespace)).__contains__
    size = page_size(limit, ctx.settings.max_page_size)
    after = ctx.paging.read_key(scope, token)
    names: list[str] = []
    for _ in range(MAX_CALLS):
        page = fetch(size - len(names), after)
        possible = [name for name in page.names if _can_be_name(name) and (is_seen is None or is_seen(name))]
        are_allowed = allowed_outside(ctx, kind, [(*path, name) for name in possible])
        possible = [name for name, is_allowed in zip(possible, are_allowed, strict=True) if is_allowed]
        names += possible if keep is None else filter(keep, possible)
        if page.next_token is not None and page.next_token == after:
            raise MalformedAnswerError("The other catalog's list does not end: it repeats a page.")
        after = page.next_token
        if after is None or len(names) >= size:
            break
    return names, None if after is None else ctx.paging.make_token(scope, after)


def _can_be_name(name: str) -> bool:
    return is_name(name) and "/" not in name and "\\" not in name


def _properties(ctx: Context, path: Id, mount: Mount, below: Id) -> dict[str, str]:
    theirs = dict(mount.namespace_properties(below))
    return theirs if below else {**theirs, **ctx.store.describe_namespace(path).properties}
