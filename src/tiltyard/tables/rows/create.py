"""Create tables from the rows of a request."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import lance
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.access.needs import CREATE_TABLE, creator_for
from tiltyard.catalog.garbage import delete_marked_folder, hold_folder, stage_folder
from tiltyard.catalog.mounts.tables import declare, withdrawing
from tiltyard.model.branches import MAIN
from tiltyard.model.classifications import is_classified
from tiltyard.model.ids import table_id
from tiltyard.model.modes import CreateMode, parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import is_view, refuse_view
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.locations import is_local
from tiltyard.storage.writing import (
    commit_first_version,
    count_rows,
    discard_after_error,
    fragments_of,
    write_first_version,
)
from tiltyard.store import DROPPED
from tiltyard.tables.classification.new_columns import take_classifications
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.rows.arrow_input import IncomingRows
from tiltyard.tables.rows.insert import overwrite
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.schema.computed_columns import replace_client_properties
from tiltyard.tables.schema.properties import change_properties
from tiltyard.tables.versions.records import new_is_managed
from tiltyard.upkeep.thresholds import upkeep_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.model.operations import ArrowBody
    from tiltyard.mounts.registry.mount import Mount
    from tiltyard.store import TableRecord, UnitOfWork
    from tiltyard.tables.commits.recovery import RecoveredCommit

log = logging.getLogger("tiltyard.tables")


def recover_create(
    ctx: Context, request: models.CreateTableRequest, commit: RecoveredCommit
) -> models.CreateTableResponse:
    """Return the response of an interrupted create from its commit.

    Does what comes after the commit: marks the table as written, and sets its properties.
    """
    table = commit.target.record
    if table.declared:
        table = ctx.store.mark_written(table.id)
    path = table_id(request.id)
    if (
        request.properties is not None
        or parse_mode(CreateMode, request.mode, CreateMode.CREATE) is CreateMode.OVERWRITE
    ):
        table = change_properties(ctx, path, table, replace_client_properties(request.properties, table.properties))
    return create_response(ctx, table, commit.version)


@operation(needs=CREATE_TABLE, stores=ROWS_AND_FILES, recovered_by=recover_create)
def create_table(ctx: Context, request: models.CreateTableRequest, data: ArrowBody) -> models.CreateTableResponse:
    """Create a table with the schema and the rows of an Arrow stream; one without rows makes an empty table.

    ExistOk leaves an existing table as it is (with `check_schema` only one whose schema equals the body's); Overwrite
    gives it a new version with these rows, this schema and these properties, unless it is protected. A declared
    table gets its first version in any mode.
    Raises NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError, TableSchemaValidationError,
    ConcurrentModificationError, UnsupportedOperationError (storage options that only the server may set).
    """
    path = table_id(request.id)
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    record = _find_existing(ctx, path)
    if record is not None and mode is CreateMode.CREATE and (not record.declared or is_view(record.properties)):
        raise TableAlreadyExistsError(f"Table already exists: {path}")
    options = _writer_options(request.storage_options or {})
    upkeep_options(request.properties or {}, ctx.settings.keep_versions_days)
    location = ctx.storage.check_location(request.location) if request.location else None
    new = NewTable(path, mode, request.properties, options, data, bool(request.check_schema))
    response = _create(ctx, record, new, location)
    if new.has_classified_rows:
        opened = open_for_reading(structs.replace(ctx, resolved=None), path)
        take_classifications(ctx, opened.record, opened.dataset)
    return response


def _create(
    ctx: Context, record: TableRecord | None, new: NewTable, location: str | None
) -> models.CreateTableResponse:
    """Create a table at a name that has this record, if any. Raises as `create_table` does."""
    path = new.path
    if record is None:
        if (mounted := ctx.services.mounts.find(path)) is not None:
            return _create_mounted(ctx, new, location, *mounted)
        return _create_at(ctx, new, location) if location else _create_new(ctx, new)
    refuse_view(record.properties)
    if location and location != record.location:
        raise InvalidInputError(f"The table {path} is at another location: leave the location out.")
    # Below a mount a folder may be an entry before another request has written its first version there.
    is_mounted = record.mount_id is not None
    if (record.declared or is_mounted) and not ctx.storage.has_table(record.location):
        return _create_declared(ctx, record, new)
    return _create_over_existing(ctx, record, new)


@dataclass(frozen=True)
class NewTable:
    """The table to create, from the request; `options` are additional arguments of Lance's writer.

    `checks_schema`: ExistOk leaves only a table of the same schema as it is.
    """

    path: Id
    mode: CreateMode
    properties: Mapping[str, str] | None
    options: Mapping[str, Any]
    data: ArrowBody
    checks_schema: bool

    @cached_property
    def rows(self) -> IncomingRows:
        """The rows of the body, whose schema is read now. Raises InvalidInputError."""
        return IncomingRows(self.data)

    @property
    def has_classified_rows(self) -> bool:
        """Whether rows were read, and the metadata of a column classifies it."""
        return "rows" in self.__dict__ and is_classified(self.rows.schema)


def _writer_options(storage_options: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments of Lance's writer from a request's storage options. Raises UnsupportedOperationError."""
    options: dict[str, Any] = {}
    for name, value in storage_options.items():
        match name:
            case "new_table_data_storage_version":
                options["data_storage_version"] = value
            case "new_table_enable_stable_row_ids":
                options["enable_stable_row_ids"] = value.lower() == "true"
            case "new_table_enable_v2_manifest_paths" if value.lower() == "true":
                continue
            case _:
                raise UnsupportedOperationError(f"The storage option '{name}' is the server's to set: leave it out.")
    return options


def _find_existing(ctx: Context, path: Id) -> TableRecord | None:
    """Return the record of the table, None if there is none."""
    if ctx.resolved is not None and path in ctx.resolved.tables:  # the authorized table, not one created since
        return ctx.resolved.tables[path]
    try:
        return ctx.look_up_table(path)
    except TableNotFoundError:
        return None


def _create_over_existing(ctx: Context, record: TableRecord, new: NewTable) -> models.CreateTableResponse:
    """Apply the request's mode to a name that an existing table with data has."""
    target = WriteTarget(ctx, record)
    if new.mode is CreateMode.CREATE:
        raise TableAlreadyExistsError(f"Table already exists: {new.path}")
    if new.mode is CreateMode.EXIST_OK:
        return _keep_existing(ctx, record, new, target.mark_written(target.dataset().version, is_new=False))
    ctx.store.check_removable(record.namespace_id, record.id, f"the table {new.path}")
    properties = replace_client_properties(new.properties, record.properties)
    with target.cleanup_on_error():
        written = overwrite(target, new.rows)
    record = change_properties(ctx, new.path, record, properties)
    return create_response(ctx, record, written.version, written.rejected)


def _keep_existing(ctx: Context, record: TableRecord, new: NewTable, version: int | None) -> models.CreateTableResponse:
    """Return the response of ExistOk for a table that is there. Raises TableAlreadyExistsError (another schema)."""
    if new.checks_schema:
        existing = WriteTarget(ctx, record).dataset().schema
        if not new.rows.schema.equals(existing, check_metadata=True):
            raise TableAlreadyExistsError(f"Table already exists, with another schema: {new.path}")
    return create_response(ctx, record, version)


def _create_declared(ctx: Context, record: TableRecord, new: NewTable) -> models.CreateTableResponse:
    """Write the first version of a declared table; of concurrent requests, one succeeds."""
    target = WriteTarget(ctx, record)
    properties = replace_client_properties(new.properties, record.properties)
    with target.cleanup_on_error():
        try:
            _write_first(target, new)
        except TableAlreadyExistsError:
            if new.mode is CreateMode.EXIST_OK:
                return _keep_existing(ctx, ctx.store.mark_written(record.id), new, target.dataset().version)
            if new.mode is CreateMode.OVERWRITE:
                raise ConcurrentModificationError("A concurrent request created this table: try again.") from None
            raise TableAlreadyExistsError(f"Table already exists: {new.path}") from None
    if new.properties is not None:
        record = change_properties(ctx, new.path, record, properties)
    return create_response(ctx, record, 1)


def _write_first(target: WriteTarget, new: NewTable) -> None:
    """Write and publish the first version. Raises TableAlreadyExistsError if a concurrent request was first."""
    storage = target.ctx.storage
    incoming = new.rows
    check_new_columns(incoming.schema)
    with incoming.errors():
        first = write_first_version(storage, target.location, incoming.reader(), new.options)
    first.transaction_properties = target.transaction_properties(count_rows(fragments_of(first)))
    try:
        stable_row_ids = new.options.get("enable_stable_row_ids", False)
        commit_first_version(storage, target.location, first, target.commit_route, stable_row_ids)
    except BaseException as error:
        discard_after_error(storage, target.location, fragments_of(first), error)
        raise
    target.mark_written(1)


def _create_new(ctx: Context, new: NewTable) -> models.CreateTableResponse:
    """Create a table in a new folder under a name that seems free; the insert into the catalog decides.

    A folder that becomes no table is scheduled for deletion before it is written.
    """
    path = new.path
    location = stage_folder(ctx, path)
    try:
        version = _write_table(ctx, location, new)
        reach(Point.BEFORE_RECORD)
        record = _insert_record(ctx, location, new, version)
    except BaseException as error:
        if not isinstance(error, ServiceUnavailableError):  # else the record may be in the catalog; the sweeper decides
            _delete_folder(ctx, location)
        if not isinstance(error, TableAlreadyExistsError) or new.mode is CreateMode.CREATE:
            raise
        if new.mode is CreateMode.OVERWRITE:
            raise ConcurrentModificationError("A concurrent request created this table: try again.") from error
        return _keep_existing(ctx, ctx.store.describe_table(path), new, None)
    return create_response(ctx, record, version)


def _insert_record(ctx: Context, location: str, new: NewTable, version: int) -> TableRecord:
    """Insert a written table into the catalog; in the same transaction, mark the request with a key as committed."""
    managed, table_owner = new_is_managed(ctx, new.path, new.properties), creator_for(ctx, new.path.parent)
    home = ctx.resolved_namespace_id(new.path.parent)

    def work(catalog: UnitOfWork) -> TableRecord:
        record = catalog.insert_table(
            new.path,
            location,
            new.properties or {},
            managed=managed,
            in_creation=True,
            creator=table_owner,
            created_by=ctx.principal.name,
            expected_parent_id=home,
        )
        if ctx.claims:
            catalog.mark_requests_committed(ctx.claims, record.id, MAIN.key, version)
        return record

    record = ctx.store.transact(work) if ctx.claims else work(ctx.store)
    ctx.services.quotas.note_version(record.id, MAIN.key, version, ctx.principal)
    return record


def _write_table(ctx: Context, location: str, new: NewTable) -> int:
    """Write the first version of a table into a folder that is in no record yet; return the version."""
    incoming = new.rows
    check_new_columns(incoming.schema)
    with nullcontext() if incoming.is_small else hold_folder(ctx, location):
        write = _write_files if is_local(location) else _write_objects
        return write(ctx, location, incoming, new.options)


def _write_files(ctx: Context, location: str, incoming: IncomingRows, options: Mapping[str, Any]) -> int:
    """Write the first version of a table on a local disk."""
    writeback = nullcontext() if incoming.is_small else ctx.storage.writing_back(f"{location}/data")
    with incoming.errors(), writeback:
        dataset = lance.write_dataset(
            incoming.reader(),
            location,
            mode="create",
            storage_options=ctx.storage.options(location),
            session=ctx.storage.datasets.session,
            **options,
        )
    version = int(dataset.version)
    ctx.storage.make_durable([*ctx.storage.manifests.version_files(location, MAIN, version), f"{location}/"])
    ctx.storage.datasets.cache(location, MAIN, dataset)
    return version


def _write_objects(ctx: Context, location: str, incoming: IncomingRows, options: Mapping[str, Any]) -> int:
    """Write the first version of a table on an object store; with fewer requests than Lance takes for it."""
    storage = ctx.storage
    with incoming.errors():
        first = write_first_version(storage, location, incoming.reader(), options)
        stable_row_ids = options.get("enable_stable_row_ids", False)
        made = commit_first_version(storage, location, first, stable_row_ids=stable_row_ids, in_new_folder=True)
        dataset = made.open(location, storage.options(location), storage.datasets.session, 1)
    storage.datasets.cache(location, MAIN, dataset)
    return 1


def _delete_folder(ctx: Context, location: str) -> None:
    """Delete a folder that became no table: at once if possible, else with the next sweep.

    The interrupted request may have inserted the record all the same: then the folder stays.
    """
    try:
        if ctx.store.schedule_deletion(location, ctx.clock(), DROPPED):  # from here on no record can be inserted for it
            delete_marked_folder(ctx, location)
    except (LanceNamespaceError, OSError) as error:
        log.warning("cannot delete %s yet: %s", location, error)


def _create_at(ctx: Context, new: NewTable, location: str) -> models.CreateTableResponse:
    """Create a table at the client's location: declare it first, so that no two tables have the same location."""
    if not ctx.storage.is_empty(location):
        raise InvalidInputError("The location is not empty: register the table there, or choose another.")
    managed, table_owner = new_is_managed(ctx, new.path, new.properties), creator_for(ctx, new.path.parent)
    record = ctx.store.insert_table(
        new.path,
        location,
        new.properties or {},
        managed=managed,
        declared=True,
        registered=True,
        creator=table_owner,
        expected_parent_id=ctx.resolved_namespace_id(new.path.parent),
    )
    try:
        return _create_declared(ctx, record, replace(new, mode=CreateMode.CREATE, properties=None))
    except BaseException:
        _withdraw_declaration(ctx, new.path, record)
        raise


def _create_mounted(
    ctx: Context, new: NewTable, location: str | None, mount: Mount, below: Id
) -> models.CreateTableResponse:
    """Create a table in a mounted catalog: declare it there first, which decides whether the name is free.

    A table that another request has declared meanwhile is as one that was there before: with ExistOk, it has its first
    version when this returns.
    """
    if location is not None and not ctx.storage.is_empty(location):
        raise InvalidInputError("The location is not empty: register the table there, or choose another.")
    properties = dict(new.properties or {})
    try:
        record = declare(ctx, mount, below, new.path, location, properties)
    except TableAlreadyExistsError as error:
        if new.mode is CreateMode.CREATE:
            raise
        winner = _find_winner(mount, below, error)
        if new.mode is CreateMode.OVERWRITE:
            raise ConcurrentModificationError("A concurrent request created this table: try again.") from error
        if not ctx.storage.has_table(winner.location):
            return _create_declared(ctx, winner, replace(new, properties=None))
        return _keep_existing(ctx, winner, new, None)
    with withdrawing(ctx, mount, below, record):
        return _create_declared(ctx, record, replace(new, properties=None))


def _find_winner(mount: Mount, below: Id, error: TableAlreadyExistsError) -> TableRecord:
    """Return the table that another has created. Raises TableAlreadyExistsError for one of another format."""
    try:
        return mount.find_table(below)
    except TableNotFoundError as other:
        raise TableAlreadyExistsError(f"{other} Choose another name.") from error


def _withdraw_declaration(ctx: Context, path: Id, record: TableRecord) -> None:
    """Remove the declaration of a table, unless a concurrent request has written data to it."""
    try:
        current = ctx.store.describe_table(path)
        if current.id == record.id and current.declared and not ctx.storage.has_table(record.location):
            ctx.store.remove_table(path, delete_folder=True, expected_id=record.id, withdrawn=True)
            delete_marked_folder(ctx, record.location)
    except LanceNamespaceError as error:
        log.warning("cannot withdraw the declaration of %s: %s", record.location, error)


def create_response(
    ctx: Context, record: TableRecord, version: int | None, rejected: int | None = None
) -> models.CreateTableResponse:
    """Return the response of CreateTable."""
    return models.CreateTableResponse(
        location=record.location,
        version=version,
        storage_options=ctx.storage.roots.public_options(record.location) or None,
        properties=record.properties,
        num_rejected_rows=rejected,
    )
