"""Operations on tables as entries of another catalog, below a mount: what it can do, and exact combinations of that.

Each is the `below_mount` of an operation in `tables`: `below` is the id of the table, or of its namespace, in the other
catalog. Files of a table are deleted only here, only in its own folder, and only as `retention_days` says.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.access.authorization import caller_rights
from tiltyard.access.needs import creator_for, target_namespace
from tiltyard.catalog.garbage import delete_dropped_table
from tiltyard.catalog.mounts.namespaces import MAX_VISIBLE, list_page
from tiltyard.context import Context
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.modes import RegisterMode, TransactionStatus, parse_mode
from tiltyard.model.spec import models
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.store import DROP_MOUNTED_TABLE, DROPPED, TableRecord, UnitOfWork
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.credentials import storage_options
from tiltyard.tables.name_conflicts import prefer_name_conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.mounts.registry.mount import Mount

_RESERVATION = frozenset((".lance-reserved",))
"""What Lance's directory namespace puts into the folder of a declared table."""


_UNUSABLE = (
    TableNotFoundError, NamespaceNotFoundError, InvalidTableStateError, InvalidInputError, PermissionDeniedError,
    MalformedAnswerError,
)  # fmt: skip
"""By what the look-up of a single entry fails, and nothing else."""
_TABLE_FOLDERS = frozenset(("data", "tree", "metadata"))
"""What a table's folder has besides names that begin with `_` or `.`; the last one is Iceberg's."""


def declare_table(
    ctx: Context, request: models.DeclareTableRequest, mount: Mount, below: Id
) -> models.DeclareTableResponse:
    """Add an entry without data to the other catalog, which chooses the location where none is named.

    Raises TableAlreadyExistsError, NamespaceNotFoundError, InvalidInputError, PermissionDeniedError (a location outside
    the server's roots, or the mount's).
    """
    path = table_id(request.id)
    with prefer_name_conflict(ctx, path):
        location = ctx.storage.check_location(request.location) if request.location else None
    record = declare(ctx, mount, below, path, location, request.properties or {})
    response = models.DeclareTableResponse(
        location=record.location,
        storage_options=storage_options(ctx, record, request.vend_credentials),
        properties=record.properties,
        managed_versioning=record.managed,
    )
    return ctx.store_response(response)


def create_empty_table(
    ctx: Context, request: models.CreateEmptyTableRequest, mount: Mount, below: Id
) -> models.CreateEmptyTableResponse:
    """Declare a table: the older name of DeclareTable."""
    response = declare_table(
        ctx, msgspec.convert(request, models.DeclareTableRequest, from_attributes=True), mount, below
    )
    return models.CreateEmptyTableResponse(
        location=response.location, storage_options=response.storage_options, properties=response.properties
    )


def declare(
    ctx: Context, mount: Mount, below: Id, path: Id, location: str | None, properties: dict[str, str]
) -> TableRecord:
    """Add an entry to the other catalog; return the table's record. An entry that cannot be opened is taken back."""
    creator = creator_for(ctx, path.parent)
    record = mount.declare_table(below, location, properties, creator, ctx.storage.has_table)
    try:
        ctx.storage.roots.root_of(record.location)
    except LanceNamespaceError:
        mount.deregister_table(below, record.id)
        raise
    return record


@contextmanager
def withdrawing(ctx: Context, mount: Mount, below: Id, record: TableRecord) -> Iterator[None]:
    """Take back the declaration of a table if the block, which writes its first version, fails to.

    Its folder is deleted if it held nothing but what the declaration put there.
    """
    names = set(ctx.storage.files(record.location).list_names(record.location))
    try:
        yield
    except BaseException:
        if (
            not ctx.storage.has_table(record.location)
            and mount.withdraw_table(below, record)
            and names <= _RESERVATION
            and not ctx.storage.has_table(record.location)
        ):
            ctx.storage.delete_folder(record.location)
        raise


def register_table(
    ctx: Context, request: models.RegisterTableRequest, mount: Mount, below: Id
) -> models.RegisterTableResponse:
    """Add an entry for a table that exists at a location.

    Raises TableAlreadyExistsError, NamespaceNotFoundError, InvalidInputError (no table there, outside the roots),
    UnsupportedOperationError (Overwrite, which the other catalog could not do as one step).
    """
    path = table_id(request.id)
    if parse_mode(RegisterMode, request.mode, RegisterMode.CREATE) is RegisterMode.OVERWRITE:
        raise UnsupportedOperationError(
            f"An entry in a {mount.kind} catalog is not replaced in one step: deregister the old one first."
        )
    with prefer_name_conflict(ctx, path):
        location, _ = ctx.storage.check_table(request.location)
    record = declare(ctx, mount, below, path, location, request.properties or {})
    ctx.store.mark_written(record.id)
    response = models.RegisterTableResponse(location=record.location, properties=record.properties)
    return ctx.store_response(response)


def list_tables(ctx: Context, request: models.ListTablesRequest, mount: Mount, below: Id) -> models.ListTablesResponse:
    """List the Lance tables in a namespace of the other catalog; those that the caller can see.

    Without declared ones each table is looked up, since other catalogs do not say which have data.
    """
    path = namespace_id(request.id)

    def visible(namespace: int) -> list[str]:
        return ctx.store.visible_tables(namespace, caller_rights(ctx).grantees, None, MAX_VISIBLE)

    def has_data(name: str) -> bool:
        try:
            record = mount.find_table(Id((*below, name)))
            return not record.declared or ctx.storage.has_table(record.location)
        except _UNUSABLE:
            return False  # CheckMount says what is wrong with it

    names, token = list_page(
        ctx, path, f"tables below the mount in {path}", request.page_token, request.limit,
        lambda limit, after: mount.list_tables(below, limit, after), visible,
        has_data if request.include_declared is False else None, TABLE,
    )  # fmt: skip
    return models.ListTablesResponse(tables=names, page_token=token)


def rename_table(
    ctx: Context, request: models.RenameTableRequest, mount: Mount, below: Id
) -> models.RenameTableResponse:
    """Give an entry another name, and another namespace of the same mount if one is named.

    Raises TableNotFoundError, NamespaceNotFoundError, TableAlreadyExistsError, UnsupportedOperationError (another
    catalog, or a backend without renaming).
    """
    path = table_id(request.id)
    new_path = table_id([*target_namespace(path, request.new_namespace_id), request.new_table_name])
    target = ctx.services.mounts.find(new_path)
    if target is None or target[0].id != mount.id:
        raise _between_catalogs()
    record = ctx.find_table(path)
    ctx.store.check_move(record.id, record.namespace_id, ctx.find_namespace(new_path.parent).id, f"the table {path}")
    mount.rename_table(below, target[1], ctx.find_table(path))
    return ctx.store_response(models.RenameTableResponse())


def _between_catalogs() -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "A table is not moved from one catalog to another: register it there, and deregister it here."
    )


def check_rename(ctx: Context, new_path: Id) -> None:
    """Raise UnsupportedOperationError if a table of this catalog would be moved below a mount."""
    if ctx.services.mounts.find(new_path) is not None:
        raise _between_catalogs()


def deregister_table(
    ctx: Context, request: models.DeregisterTableRequest, mount: Mount, below: Id
) -> models.DeregisterTableResponse:
    """Remove an entry from the other catalog; the table's files stay. It cannot be restored from here.

    An administrator removes one whose location may not be opened, too: CheckMount names such entries.
    """
    path = table_id(request.id)
    try:
        record = ctx.find_table(path)
    except (InvalidTableStateError, PermissionDeniedError):  # of the location: authorization has raised it for others
        parent = ctx.find_namespace(path.parent).id  # the table itself has no record, nor protections
        ctx.store.check_removable(parent, 0, f"the table {path}", approved=ctx.approval is not None)
        removed = mount.remove_entry(below)
        return ctx.store_response(models.DeregisterTableResponse(id=list(path), location=removed.location))
    ctx.store.check_removable(record.namespace_id, record.id, f"the table {path}", approved=ctx.approval is not None)
    if record.managed:  # what was committed here has to be found in the storage from now on
        finalize_pending(ctx, record.id, recent=False)
    mount.deregister_table(below, record.id)
    ctx.storage.datasets.evict(record.location)
    response = models.DeregisterTableResponse(id=list(path), location=record.location, properties=record.properties)
    return ctx.store_response(response)


def drop_table(ctx: Context, request: models.DropTableRequest, mount: Mount, below: Id) -> models.DropTableResponse:
    """Remove an entry from the other catalog, and delete the table's folder: at once, or after `retention_days`.

    A folder that was written to since, or that an entry of the other catalog has again, stays. Raises
    NamespaceNotFoundError, TableNotFoundError, InvalidInputError (the folder holds other tables, or overlaps theirs),
    ServiceUnavailableError (the entry is gone, the folder is deleted later).
    """
    path = table_id(request.id)
    record, keep_ms = ctx.find_table(path), ctx.settings.retention_ms
    location = record.location
    ctx.store.check_removable(record.namespace_id, record.id, f"the table {path}", approved=ctx.approval is not None)
    if ctx.store.overlaps_tables(location):
        raise InvalidInputError("The table's folder holds, or is in, that of another table: deregister it instead.")
    names = ctx.storage.files(location).list_names(location)
    if foreign := sorted(name for name in names if name[0] not in "._" and name not in _TABLE_FOLDERS):
        raise InvalidInputError(
            f"The table's folder holds '{foreign[0]}', which is no part of a Lance table: deregister it instead."
        )
    mount.deregister_table(below, record.id)
    ctx.storage.datasets.evict(location)

    def work(catalog: UnitOfWork) -> models.DropTableResponse:
        dropped = catalog.create_transaction(
            DROP_MOUNTED_TABLE,
            None,
            {"id": list(path)},
            {"table": str(path)},
            TransactionStatus.SUCCEEDED,
            requested_by=ctx.principal.name,
            namespace_id=record.namespace_id,
        )
        catalog.schedule_deletion(location, ctx.clock() + keep_ms, DROPPED, dropped.id)
        return models.DropTableResponse(
            transaction_id=dropped.id, id=list(path), location=location, properties=record.properties
        )

    response = ctx.transact(work)
    if not keep_ms:
        delete_dropped_table(ctx, location)
    return response


def refuse_undrop(ctx: Context, request: object, mount: Mount, below: Id) -> None:
    """Raise UnsupportedOperationError: what was dropped below a mount can only be registered again."""
    raise UnsupportedOperationError(
        f"What was dropped in a {mount.kind} catalog is not kept here: register the table at its location again."
    )
