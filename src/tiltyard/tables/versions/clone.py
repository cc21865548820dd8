"""CloneTable: create a table from a version of another one."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import CLONE_TABLE, creator_for
from tiltyard.catalog.garbage import hold_folder, stage_folder
from tiltyard.catalog.mounts.tables import declare, withdrawing
from tiltyard.context import Context
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.lineage import WHOLE_COPY
from tiltyard.model.ids import Id, table_id
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.operations import operation
from tiltyard.model.quotas import FILES
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.store import CREATING, TableRecord, UnitOfWork
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.name_conflicts import prefer_name_conflict
from tiltyard.tables.versions.deleted_versions import check_not_deleted
from tiltyard.tables.versions.records import new_is_managed
from tiltyard.tables.versions.removal_turns import hold_removal_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import lance

    from tiltyard.mounts.registry.mount import Mount


@operation(needs=CLONE_TABLE, stores=FILES)
def clone_table(ctx: Context, request: models.CloneTableRequest) -> models.CloneTableResponse:
    """Create a table from a version or tag of the table at a location.

    A shallow clone (the default) shares the data files of its source: dropping the source takes them away. A deep one
    copies them. Raises TableAlreadyExistsError, NamespaceNotFoundError, TableVersionNotFoundError,
    TableTagNotFoundError, InvalidInputError (a source outside the roots, or a version and a tag at once),
    ConcurrentModificationError (old versions of the source are being removed).
    """
    path = table_id(request.id)
    with prefer_name_conflict(ctx, path):
        if request.source_version is not None and request.source_tag is not None:
            raise InvalidInputError("Name a source_version or a source_tag, not both.")
        source_uri = ctx.storage.check_location(request.source_location)
    with hold_removal_turn(ctx, source_uri):
        return _clone(ctx, request, path, source_uri)


def _clone(ctx: Context, request: models.CloneTableRequest, path: Id, source_uri: str) -> models.CloneTableResponse:
    """Write the files, then insert the table: from then on gc knows that versions of its source are in use."""
    storage = ctx.storage
    if request.source_version is not None and (table := ctx.store.table_at(source_uri)) is not None:
        check_not_deleted(ctx, table, MAIN, request.source_version)
    source = storage.datasets.open_for_reading(source_uri, version=request.source_version, tag=request.source_tag)
    if (mounted := ctx.services.mounts.find(path)) is not None:
        return _clone_to_mount(ctx, request, path, source, source_uri, *mounted)
    is_deep = request.is_shallow is False

    def complete(catalog: UnitOfWork, record: TableRecord, version: int) -> None:
        if not is_deep:
            catalog.add_clone(record.id, source_uri)
        add_copy_lineage(ctx, catalog, "clone", source_uri, record, version)

    record, version = _write(ctx, path, source, {}, is_deep=is_deep, complete=complete)
    return models.CloneTableResponse(location=record.location, version=version, properties=record.properties)


def add_copy_lineage(
    ctx: Context, catalog: UnitOfWork, kind: str, source_uri: str, record: TableRecord, version: int
) -> None:
    """Record that the rows of a new table are those of a version of the table at a location; both have its number."""
    origin = catalog.table_at(source_uri)
    path = None if origin is None or origin.location != source_uri else catalog.object_path(TABLE, origin.id)
    source = LineageSource(source_uri if path is None else str(Id(path)), source_uri, version)
    catalog.add_lineage(
        LineageRecord.of(
            CommitLineage(kind, "", (source,), columns=WHOLE_COPY), record.id, MAIN.key, version, replaces=True,
            source_ids=(None if origin is None or path is None else origin.id,), principal=ctx.principal.name,
        )
    )  # fmt: skip


def copy_table(
    ctx: Context,
    source_uri: str,
    path: Id,
    properties: Mapping[str, str],
    complete: Callable[[UnitOfWork, TableRecord, int], None],
) -> TableRecord:
    """Create a table as a deep copy of the latest version at a location; return it.

    `complete` runs in the transaction that adds the table to the catalog, with the version that it has. Raises as
    `clone_table` does.
    """
    with hold_removal_turn(ctx, source_uri):
        source = ctx.storage.datasets.open_for_reading(source_uri)
        return _write(ctx, path, source, properties, is_deep=True, complete=complete)[0]


def _write(
    ctx: Context,
    path: Id,
    source: lance.LanceDataset,
    properties: Mapping[str, str],
    *,
    is_deep: bool,
    complete: Callable[[UnitOfWork, TableRecord, int], None],
) -> tuple[TableRecord, int]:
    """Write a clone's files, and add its table; return that and its version."""
    location = stage_folder(ctx, path)
    try:
        with hold_folder(ctx, location):
            version = _write_files(ctx, source, location, is_deep=is_deep)
        return add_clone(ctx, path, location, version, properties, complete), version
    except BaseException:
        ctx.store.schedule_deletion(location, ctx.clock(), CREATING)
        raise


def _write_files(ctx: Context, source: lance.LanceDataset, location: str, *, is_deep: bool) -> int:
    """Write a clone of a version to a location; return the clone's version.

    pylance borrows the source mutably as long as that takes, and a shared dataset is read by others: it gets a handle
    of its own.
    """
    own = copy.copy(source)
    with lance_errors(source):
        clone = own.deep_clone if is_deep else own.shallow_clone
        version = int(clone(location, source.version, ctx.storage.options(location)).version)
    ctx.storage.make_durable([*ctx.storage.manifests.version_files(location, MAIN, version), f"{location}/"])
    return version


def add_clone(
    ctx: Context,
    path: Id,
    location: str,
    version: int,
    properties: Mapping[str, str],
    complete: Callable[[UnitOfWork, TableRecord, int], None],
) -> TableRecord:
    """Add a table whose files are in a folder of `stage_folder`, at a version. Raises what `insert_table` raises."""
    managed, creator = new_is_managed(ctx, path, properties), creator_for(ctx, path.parent)
    parent_id = ctx.resolved_namespace_id(path.parent)

    def insert(catalog: UnitOfWork) -> TableRecord:
        record = catalog.insert_table(
            path,
            location,
            properties,
            managed=managed,
            in_creation=True,
            creator=creator,
            expected_parent_id=parent_id,
        )
        complete(catalog, record, version)
        return record

    return ctx.store.transact(insert)


def _clone_to_mount(
    ctx: Context,
    request: models.CloneTableRequest,
    path: Id,
    source: lance.LanceDataset,
    source_uri: str,
    mount: Mount,
    below: Id,
) -> models.CloneTableResponse:
    """Declare the table in the other catalog, then write its files; an entry that gets none is taken back."""
    record = declare(ctx, mount, below, path, None, {})
    with withdrawing(ctx, mount, below, record):
        version = _write_files(ctx, source, record.location, is_deep=request.is_shallow is False)

    def complete(catalog: UnitOfWork) -> None:
        if request.is_shallow is not False:
            catalog.add_clone(record.id, source_uri)
        add_copy_lineage(ctx, catalog, "clone", source_uri, record, version)
        catalog.mark_written(record.id)

    ctx.store.transact(complete)
    return models.CloneTableResponse(location=record.location, version=version, properties=record.properties)
