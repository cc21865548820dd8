"""Operations on mounts: mount another catalog as a namespace, list, alter and unmount mounts.

Only administrators do that. What lies below a mount is served by the operations on namespaces and tables themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.model.ids import Id, check_composed, namespace_id
from tiltyard.model.modes import CreateMode
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.settings.mounts import DEFAULT_CACHE_AGE_SECONDS, MAX_CACHE_AGE_SECONDS, parse_mount, secret_problem
from tiltyard.model.spec import models
from tiltyard.mounts import check_settings, open_catalog
from tiltyard.storage.locations import canonical_location
from tiltyard.store import MountRecord
from tiltyard.tables.commits.finalizing import finalize_pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.config import Settings
    from tiltyard.context import Context
    from tiltyard.mounts.registry.mount import Mount
    from tiltyard.mounts.registry.mounts import Mounts
    from tiltyard.store import Store

MAX_MOUNTS = 1000


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def mount_catalog(ctx: Context, request: models.MountCatalogRequest) -> models.MountCatalogResponse:
    """Mount another catalog as a new namespace, once it has answered.

    Raises NamespaceAlreadyExistsError, NamespaceNotFoundError (the parent), InvalidInputError (an unknown kind,
    settings that are not valid, a secret that is not meant for mounts, a folder outside the server's roots),
    UnsupportedOperationError (below another mount), what the other catalog's first answer raises.
    """
    path = _mount_id(request.id)
    mounts = ctx.services.mounts
    if len(mounts.all()) >= MAX_MOUNTS:
        raise InvalidInputError(f"There are {MAX_MOUNTS} mounts already.")
    if (around := mounts.find(path)) is not None and around[1]:
        raise UnsupportedOperationError(f"A catalog is not mounted below another: {around[0].path} is a mount.")
    settings = checked_settings(ctx, request.kind, request.settings or {})
    allowed = _checked_locations(ctx, request.allowed_locations or ())
    age, managed = _checked_age(request.max_age_millis), bool(request.managed_versioning)
    vends = bool(request.vends_credentials)
    record = MountRecord(0, path, request.kind, settings, allowed, age, managed, vends, "api", 0, 0)
    ctx.store.add_mount(record, request.properties or {})
    mounts.refresh()
    return models.MountCatalogResponse(mount=_entry(find_mount(ctx, path)))


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES)
def alter_mount(ctx: Context, request: models.AlterMountRequest) -> models.AlterMountResponse:
    """Change a mount's settings, all of which are replaced, its `allowed_locations`, its `max_age` or its versioning.

    Raises NamespaceNotFoundError, InvalidInputError, what the other catalog's first answer raises.
    """
    mount = find_mount(ctx, _mount_id(request.id))
    record = mount.record
    if request.settings is not None:
        record = structs.replace(record, settings=checked_settings(ctx, record.kind, request.settings))
    if request.allowed_locations is not None:
        record = structs.replace(record, allowed_locations=_checked_locations(ctx, request.allowed_locations))
    if request.max_age_millis is not None:
        record = structs.replace(record, max_age_ms=_checked_age(request.max_age_millis))
    if request.managed_versioning is not None:
        record = structs.replace(record, managed=request.managed_versioning)
    if request.vends_credentials is not None:
        record = structs.replace(record, vends_credentials=request.vends_credentials)
    if mount.record.managed and not record.managed:
        _finalize_below(ctx, mount)
    ctx.store.alter_mount(record)
    if record.managed is not mount.record.managed:
        ctx.store.set_managed_below(record)
    ctx.services.mounts.refresh()
    return models.AlterMountResponse(mount=_entry(find_mount(ctx, mount.path)))


@operation(needs=ADMINISTRATORS)
def unmount_catalog(ctx: Context, request: models.UnmountCatalogRequest) -> models.UnmountCatalogResponse:
    """Remove a mount, and the grants, policies and jobs of what is below it; the other catalog stays as it is.

    Raises NamespaceNotFoundError, InvalidInputError.
    """
    mount = find_mount(ctx, _mount_id(request.id))
    _finalize_below(ctx, mount)
    ctx.store.remove_mount(mount.record)
    ctx.services.mounts.refresh()
    ctx.rights_cache.refresh_next()
    return models.UnmountCatalogResponse()


@operation(needs=ADMINISTRATORS, changes=False)
def list_mounts(ctx: Context, request: models.ListMountsRequest) -> models.ListMountsResponse:
    """List the mounts by id, with why this server cannot reach one at the moment. Raises InvalidInputError."""
    ctx.services.mounts.refresh()
    mounts = ctx.services.mounts.all()

    def fetch(after: tuple[str, ...] | None, count: int) -> list[Mount]:
        return [mount for mount in mounts if after is None or mount.path > after][:count]

    page, token = ctx.paging.fetch_page("mounts", request.page_token, request.limit, fetch, lambda mount: mount.path)
    return models.ListMountsResponse(mounts=[_entry(mount) for mount in page], page_token=token)


def make_mounts(mounts: Mounts, store: Store, settings: Settings) -> None:
    """Make the mounts of the settings, or alter them to what the settings say. Their catalogs are not called.

    One that the settings have no more stays, with its grants, until it is unmounted. Raises InvalidInputError,
    NamespaceAlreadyExistsError (a namespace that is no mount), ServiceUnavailableError.
    """
    by_path = {mount.path: mount.record for mount in mounts.all()}
    for name, values in settings.mounts.items():
        mount = parse_mount(values)
        path = mount.id(name)
        check_settings(mount.kind, mount.settings)
        record = by_path.get(path)
        wanted = MountRecord(
            record.id if record else 0,
            path,
            mount.kind,
            dict(mount.settings),
            tuple(map(canonical_location, mount.allowed_locations)),
            int(mount.max_age * 1000),
            mount.managed_versioning,
            mount.vends_credentials,
            "settings",
            record.created_at if record else 0,
            record.updated_at if record else 0,
        )
        if record is None:
            for depth in range(1, len(path)):
                store.create_namespace(path[:depth], {}, CreateMode.EXIST_OK)
            try:
                store.add_mount(wanted, {})
            except NamespaceAlreadyExistsError:
                mounts.refresh()  # by another server, which starts with the same settings
                if mounts.find(path) is None:
                    raise
        elif wanted != record:
            store.alter_mount(wanted)
    mounts.refresh()


def _mount_id(names: Sequence[str] | None) -> Id:
    path = namespace_id(names)
    if not path:
        raise InvalidInputError("The root namespace is this catalog's own: name the namespace of a mount.")
    check_composed(path.name)
    return path


def find_mount(ctx: Context, path: Id) -> Mount:
    """Return the mount that a namespace is. Raises NamespaceNotFoundError."""
    ctx.services.mounts.refresh()
    found = ctx.services.mounts.find(path)
    if found is None or found[1]:
        raise NamespaceNotFoundError(f"There is no mount {path}.")
    return found[0]


def checked_settings(ctx: Context, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with which the other catalog has answered. Raises as `mount_catalog` does."""
    if problem := secret_problem(settings, ctx.settings.mount_secrets):
        raise InvalidInputError(problem)
    root = settings.get("root")
    if kind == "dir" and isinstance(root, str):
        ctx.storage.roots.root_of(canonical_location(root))
    catalog = open_catalog(kind, settings)
    try:
        catalog.list_namespaces(Id(), 1)
    finally:
        catalog.close()
    return dict(settings)


def _finalize_below(ctx: Context, mount: Mount) -> None:
    """Put all commits to tables below a mount into the storage, where others find them without this catalog."""
    for table_id in ctx.store.pending_tables_below(mount.id):
        finalize_pending(ctx, table_id, recent=False)


def _checked_locations(ctx: Context, locations: Sequence[str]) -> tuple[str, ...]:
    """Return locations in their canonical form. Raises PermissionDeniedError for one outside the server's roots."""
    canonical = tuple(canonical_location(location) for location in locations)
    for location in canonical:
        ctx.storage.roots.root_of(location)
    return canonical


def _checked_age(milliseconds: int | None) -> int:
    if milliseconds is None:
        return int(DEFAULT_CACHE_AGE_SECONDS * 1000)
    if milliseconds > MAX_CACHE_AGE_SECONDS * 1000:
        raise InvalidInputError(f"max_age_millis is {milliseconds}: at most {MAX_CACHE_AGE_SECONDS * 1000:.0f}.")
    return milliseconds


def _entry(mount: Mount) -> models.MountEntry:
    record: MountRecord = mount.record
    return models.MountEntry(
        id=list(record.path),
        kind=record.kind,
        settings=record.settings,
        allowed_locations=list(record.allowed_locations),
        max_age_millis=record.max_age_ms,
        managed_versioning=record.managed,
        vends_credentials=record.vends_credentials,
        origin=record.origin,
        created_at_millis=record.created_at,
        outage=mount.outage,
    )
