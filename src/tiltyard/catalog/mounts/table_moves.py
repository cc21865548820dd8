"""The operation MoveTable: move a table from a mounted catalog into this one, or back; its files stay where they are.

A table is in one of the two catalogs at every moment, or in both for a moment, whatever is killed in between:

- Into this catalog: its record becomes one of this catalog, under the new name; then its entry there is removed. In
  between this catalog has the table, and the entry is refused below the mount, since its location is taken.
- Into the other one: an entry is added there, which is refused likewise; then the record becomes one of the mount's.

Called again, it goes on where it was killed. One call moves a table at a time, whichever way, so that none removes the
entry on which another relies: each has the table's turn, a lease in this catalog (`models/table_move.pml`). The record
keeps its id, and so its grants, policies, versions, jobs and lineage. A copy gets the grants and policies in the
transaction that adds it, and the table copied as its lineage.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.catalog.garbage import stage_folder
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id, table_id
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.principals import privilege_names, with_implied
from tiltyard.model.spec import models
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.lease import MAX_LEASE_MS
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.turns import hold_turn
from tiltyard.tables.versions.clone import add_clone, add_copy_lineage, copy_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from tiltyard.context import Context
    from tiltyard.mounts import MountedTable
    from tiltyard.mounts.registry.mount import Mount
    from tiltyard.store import TableRecord, UnitOfWork

COPIED_FROM = "tiltyard.copied_from"
"""The property of a copy: the location of the table that it is a copy of."""
MOVES = "#moves"
"""The name of the turn of moves of a table."""


def import_table(ctx: Context, request: models.MoveTableRequest, mount: Mount, below: Id) -> models.MoveTableResponse:
    """Move a table from a mounted catalog into this one, or copy its latest version.

    Raises what `move_table` raises.
    """
    path, new_path = table_id(request.id), table_id(request.new_id)
    if ctx.services.mounts.find(new_path) is not None:
        raise UnsupportedOperationError("A table does not move from one mounted catalog to another: import it first.")
    ctx.store.describe_namespace(new_path.parent)
    if request.copy:
        return _copy(ctx, request, ctx.find_table(path), new_path)
    _, location = mount.read_entry(below)
    record = _find_at(ctx, new_path, location) or ctx.find_table(path)
    with _hold_moves(ctx, record):
        moved = _find_at(ctx, new_path, record.location)
        was_moved_before = moved is not None
        if moved is None:
            moved = _take(ctx, request, record, new_path)
        if not request.keep_entry:
            reach(Point.BETWEEN_CATALOGS)
            _remove_entry_of(mount, below, moved.location)
    return _respond(ctx, new_path, moved, was_moved_before=was_moved_before)


@operation(needs=ADMINISTRATORS, pool=PoolName.WRITES, below_mount=import_table)
def move_table(ctx: Context, request: models.MoveTableRequest) -> models.MoveTableResponse:
    """Move a table of this catalog into a mounted one.

    With `allow_wider_access` also where grants on the new namespace give somebody more than before. Raises
    NamespaceNotFoundError, TableNotFoundError, TableAlreadyExistsError, InvalidInputError (wider access, an enforced
    primary key, a location that the other catalog or this one does not take, no mount), UnsupportedOperationError (a
    catalog that chooses locations itself), PermissionDeniedError (a location outside the server's roots, or the
    mount's), ConcurrentModificationError (written, dropped or moved meanwhile), what the other catalog raises.
    """
    path, new_path = table_id(request.id), table_id(request.new_id)
    target = ctx.services.mounts.find(new_path)
    if target is None or not target[1]:
        raise InvalidInputError("new_id is not below a mount: RenameTable moves a table within this catalog.")
    if request.copy or request.keep_entry:
        raise InvalidInputError("A table is copied, or its entry kept, only on the way into this catalog.")
    mount, below = target
    record = ctx.find_table(path)
    if record.primary_key is not None:
        raise InvalidInputError(f"{path} has a primary key, which holds in this catalog only: drop the key first.")
    if record.contract is not None:
        raise InvalidInputError(f"{path} has a contract, which holds in this catalog only: drop the contract first.")
    mount.check_allowed(record.location)
    ctx.store.check_removable(record.namespace_id, record.id, f"the table {path}")
    allow_wider = bool(request.allow_wider_access)
    namespace = ctx.find_namespace(new_path.parent).id
    _check_access(ctx.store, record.id, record.namespace_id, namespace, allow_wider=allow_wider)
    if not mount.record.managed:  # a job records its commits to a table that is not managed, too
        finalize_pending(ctx, record.id)
        ctx.services.commit_log.flush()
    with _hold_moves(ctx, record):
        response = _give(ctx, mount, below, record, new_path, allow_wider=allow_wider)
    ctx.rights_cache.refresh_next()
    return response


def _give(
    ctx: Context, mount: Mount, below: Id, record: TableRecord, new_path: Id, *, allow_wider: bool
) -> models.MoveTableResponse:
    """Add an entry to the other catalog, and make the record of this one the mount's. Raises as `move_table` does."""
    managed = mount.record.managed
    reach(Point.BEFORE_RECORD)
    entry, is_new = _find_or_add_entry(mount, below, record)
    reach(Point.BETWEEN_CATALOGS)

    def work(catalog: UnitOfWork) -> models.MoveTableResponse:
        if not managed and catalog.has_pending_versions(record.id):
            raise ConcurrentModificationError(f"{record.name} is being written: try again.")
        catalog.give_to_mount(record, mount.id, entry.stable_id, managed=managed)
        catalog.move_mounted_table(mount.id, below, record.location, record.id)
        namespace = catalog.table_by_id(record.id).namespace_id
        _keep_access(ctx, catalog, record.id, record.namespace_id, namespace, allow_wider=allow_wider)
        return models.MoveTableResponse(
            id=list(new_path), location=record.location, properties=record.properties, was_moved_before=False
        )

    try:
        return ctx.transact(work)
    except (ConcurrentModificationError, InvalidInputError):  # nothing was written, for certain
        if is_new:
            _remove_entry_of(mount, below, record.location)
        raise


def _hold_moves(ctx: Context, record: TableRecord) -> AbstractContextManager[None]:
    """Hold the turn of a table's moves during a block. Raises TooBusyError, TableNotFoundError."""
    return hold_turn(ctx, record, MOVES, f"move {uuid4().hex}", "the move")


def _remove_entry_of(mount: Mount, below: Id, location: str) -> None:
    """Remove an entry of the other catalog, unless it has been made another table's meanwhile, or is gone."""
    with suppress(TableNotFoundError):
        if mount.read_entry(below)[1] == location:
            mount.remove_entry(below)


def _find_or_add_entry(mount: Mount, below: Id, record: TableRecord) -> tuple[MountedTable, bool]:
    """Return the entry of a table in the other catalog, and whether it was added just now."""
    try:
        entry, location = mount.add_entry(below, record.location, record.properties)
    except TableAlreadyExistsError:
        entry, location = mount.read_entry(below)
        if location != record.location:
            raise
        return entry, False
    if location != record.location:
        mount.remove_entry(below)
        raise UnsupportedOperationError(
            f"A {mount.kind} catalog chooses the location of a table itself: it cannot take one that is there already."
        )
    return entry, True


def _find_at(ctx: Context, path: Id, location: str) -> TableRecord | None:
    """Return the table of this catalog with a name, if it has this location."""
    with suppress(TableNotFoundError, NamespaceNotFoundError):
        record = ctx.store.describe_table(path)
        return record if record.location == location else None
    return None


def _take(ctx: Context, request: models.MoveTableRequest, record: TableRecord, new_path: Id) -> TableRecord:
    """Make a record of a mount one of this catalog."""
    location = ctx.storage.check_location(record.location)
    has_data = ctx.storage.has_table(location)
    bases = ctx.storage.list_foreign_bases(location) if has_data else ()
    reach(Point.BEFORE_RECORD)

    def work(catalog: UnitOfWork) -> TableRecord:
        catalog.check_removable(record.namespace_id, record.id, f"the table {new_path}")
        moved = catalog.take_from_mount(record, new_path, record.properties, declared=not has_data)
        allow_wider = bool(request.allow_wider_access)
        _keep_access(ctx, catalog, moved.id, record.namespace_id, moved.namespace_id, allow_wider=allow_wider)
        for base in bases:
            catalog.add_clone(moved.id, base)
        return moved

    moved = ctx.store.transact(work)
    ctx.rights_cache.refresh_next()
    return moved


def _copy(
    ctx: Context, request: models.MoveTableRequest, record: TableRecord, new_path: Id
) -> models.MoveTableResponse:
    """Copy the latest version of a table below a mount into this catalog, with its grants and policies.

    With `stage` only a folder is chosen, into which the client copies the version that the response names; it calls
    again with that folder as `staged_location`, and then the table is there.
    """
    if (copy := _find_copy(ctx, record, new_path)) is not None:
        return _respond(ctx, new_path, copy, was_moved_before=True)
    allow_wider = bool(request.allow_wider_access)
    namespace = ctx.store.describe_namespace(new_path.parent).id
    _check_access(ctx.store, record.id, record.namespace_id, namespace, allow_wider=allow_wider)

    if request.stage:
        source = ctx.storage.datasets.open_for_reading(record.location)
        return models.MoveTableResponse(
            id=list(new_path),
            location=record.location,
            was_moved_before=False,
            version=source.version,
            staged_location=stage_folder(ctx, new_path, MAX_LEASE_MS),
        )

    def complete(catalog: UnitOfWork, copy: TableRecord, version: int) -> None:
        add_copy_lineage(ctx, catalog, "copy", record.location, copy, version)
        catalog.copy_access(copy.id, record.id)
        _keep_access(ctx, catalog, copy.id, record.namespace_id, copy.namespace_id, allow_wider=allow_wider)

    properties = {**record.properties, COPIED_FROM: record.location}
    try:
        if request.staged_location:
            copy = _add_staged(ctx, new_path, request.staged_location, properties, complete)
        else:
            copy = copy_table(ctx, record.location, new_path, properties, complete)
    except TableAlreadyExistsError:
        copy = _find_copy(ctx, record, new_path)  # another request has made it meanwhile
        if copy is None:
            raise
    ctx.rights_cache.refresh_next()
    return _respond(ctx, new_path, copy, was_moved_before=False)


def _add_staged(
    ctx: Context,
    path: Id,
    staged_location: str,
    properties: Mapping[str, str],
    complete: Callable[[UnitOfWork, TableRecord, int], None],
) -> TableRecord:
    """Add a table that a client has copied into a folder which was chosen for it. Raises InvalidInputError."""
    location = ctx.storage.check_location(staged_location)
    if not ctx.storage.has_table(location):
        raise InvalidInputError(f"There is no copy in {location} yet: copy the table there first.")
    ctx.storage.list_foreign_bases(location)
    version = int(ctx.storage.datasets.open_for_reading(location).version)
    ctx.storage.make_durable([*ctx.storage.manifests.version_files(location, MAIN, version), f"{location}/"])
    return add_clone(ctx, path, location, version, properties, complete)


def _find_copy(ctx: Context, record: TableRecord, path: Id) -> TableRecord | None:
    """Return the copy of a table that has a name. Raises TableAlreadyExistsError if another table has it."""
    try:
        existing = ctx.store.describe_table(path)
    except TableNotFoundError:
        return None
    if existing.properties.get(COPIED_FROM) != record.location:
        raise TableAlreadyExistsError(f"Table already exists: {path}")
    return existing


def _respond(ctx: Context, path: Id, record: TableRecord, *, was_moved_before: bool) -> models.MoveTableResponse:
    response = models.MoveTableResponse(
        id=list(path), location=record.location, properties=record.properties, was_moved_before=was_moved_before
    )
    return ctx.store_response(response)


def _check_access(catalog: UnitOfWork, table: int, namespace: int, new_namespace: int, *, allow_wider: bool) -> None:
    """Raise InvalidInputError if grants on the new namespace, or above it, give anybody more than before."""
    own, before = catalog.grants_of_table(table), catalog.grants_above(namespace)
    after = catalog.grants_above(new_namespace)
    for grantee, bits in sorted(after.items()):
        wider = with_implied(bits) & ~with_implied(own.get(grantee, 0) | before.get(grantee, 0))
        if wider and not allow_wider:
            raise InvalidInputError(
                f"{grantee} would get {', '.join(privilege_names(wider))} by grants on the new namespace, or above it: "
                "revoke them, grant the same on the table first, or allow_wider_access."
            )


def _keep_access(
    ctx: Context, catalog: UnitOfWork, table: int, namespace: int, new_namespace: int, *, allow_wider: bool
) -> None:
    """Grant on the table itself what its old namespace, and those above it, gave and the new ones do not.

    Raises as `_check_access` does.
    """
    _check_access(catalog, table, namespace, new_namespace, allow_wider=allow_wider)
    own, after = catalog.grants_of_table(table), catalog.grants_above(new_namespace)
    for grantee, bits in catalog.grants_above(namespace).items():
        if missing := bits & ~(own.get(grantee, 0) | after.get(grantee, 0)):
            catalog.grant(grantee, TABLE, table, missing, ctx.principal.name)
