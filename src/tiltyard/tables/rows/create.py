"""Creating tables from rows."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
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

from tiltyard.access.create_checks import CREATE_TABLE, owner
from tiltyard.catalog.folder_deletion import delete_marked
from tiltyard.model.ids import display, table_id
from tiltyard.model.modes import CreateMode, parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.spec import models
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.writing import count_rows, discard_failed, fragments_of, publish_first, write_first
from tiltyard.store import CREATING, DROPPED
from tiltyard.tables.rows.arrow_input import IncomingRows
from tiltyard.tables.rows.insert import overwrite
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.schema.computed_columns import own_properties
from tiltyard.tables.versions.managed import new_is_managed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.arrow_bodies import ArrowBody
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord, UnitOfWork

log = logging.getLogger("tiltyard.tables")

LEASE_MS = 10 * 60 * 1000
_RENEW_MS = LEASE_MS // 4


@operation(needs=CREATE_TABLE)
def create_table(ctx: Context, request: models.CreateTableRequest, data: ArrowBody) -> models.CreateTableResponse:
    """Create a table with the schema and the rows of an Arrow stream; one without rows makes an empty table.

    ExistOk keeps a table that is there as it is; Overwrite gives it a new version with these rows, this schema and
    these properties. A table that is only declared gets its first version in any mode.
    Raises NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError, TableSchemaValidationError,
    ConcurrentModificationError, UnsupportedOperationError (storage options that only the server may set).
    """
    path = table_id(request.id)
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    record = _find(ctx, path)
    if record is not None and not record.declared and mode is CreateMode.CREATE:
        raise TableAlreadyExistsError(f"Table already exists: {display(path)}")
    options = _writer_options(request.storage_options or {})
    location = ctx.storage.check_location(request.location) if request.location else None
    wanted = Wanted(path, mode, request.properties, options, data)
    if record is None:
        return _create_at(ctx, wanted, location) if location else _create_new(ctx, wanted)
    if location and location != record.location:
        raise InvalidInputError(f"The table {display(path)} lies elsewhere: leave the location out.")
    if record.declared and not ctx.storage.has_table(record.location):
        return _create_declared(ctx, record, wanted)
    return _create_again(ctx, record, wanted)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The table that a request asks for; `options` are further arguments of Lance's writer."""

    path: Id
    mode: CreateMode
    properties: Mapping[str, str] | None
    options: Mapping[str, Any]
    data: ArrowBody


def _writer_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of Lance's writer. Raises UnsupportedOperationError, InvalidInputError."""
    options: dict[str, Any] = {}
    for name, value in given.items():
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


def _find(ctx: Context, path: Id) -> TableRecord | None:
    if ctx.resolved is not None and path in ctx.resolved.tables:  # what was checked, and no other that came meanwhile
        return ctx.resolved.tables[path]
    try:
        return ctx.store.describe_table(path)
    except TableNotFoundError:
        return None


def _create_again(ctx: Context, record: TableRecord, wanted: Wanted) -> models.CreateTableResponse:
    """The name is taken by a table with data: what that means is what the mode says."""
    target = WriteTarget(ctx, record)
    if wanted.mode is CreateMode.CREATE:
        raise TableAlreadyExistsError(f"Table already exists: {display(wanted.path)}")
    if wanted.mode is CreateMode.EXIST_OK:
        return created(ctx, record, target.mark_written(target.dataset().version))
    properties = own_properties(wanted.properties, record.properties)
    with target.cleanup_on_error():
        version, _ = overwrite(target, IncomingRows(wanted.data))
    return created(ctx, ctx.store.set_table_properties(record.id, properties), version)


def _create_declared(ctx: Context, record: TableRecord, wanted: Wanted) -> models.CreateTableResponse:
    """Give a declared table its first version; of several who try, one succeeds."""
    target = WriteTarget(ctx, record)
    properties = own_properties(wanted.properties, record.properties)
    with target.cleanup_on_error():
        try:
            _write_first(target, wanted)
        except TableAlreadyExistsError:
            if wanted.mode is CreateMode.EXIST_OK:
                return created(ctx, ctx.store.mark_written(record.id), target.dataset().version)
            if wanted.mode is CreateMode.OVERWRITE:
                raise ConcurrentModificationError("Another request created this table just now: try again.") from None
            raise TableAlreadyExistsError(f"Table already exists: {display(wanted.path)}") from None
    if wanted.properties is not None:
        record = ctx.store.set_table_properties(record.id, properties)
    return created(ctx, record, 1)


def _write_first(target: WriteTarget, wanted: Wanted) -> None:
    storage = target.ctx.storage
    incoming = IncomingRows(wanted.data)
    check_new_columns(incoming.schema)
    with incoming.errors():
        first = write_first(storage, target.location, incoming.reader(), wanted.options)
    first.transaction_properties = target.marks(count_rows(fragments_of(first)))
    try:
        stable_row_ids = wanted.options.get("enable_stable_row_ids", False)
        publish_first(storage, target.location, first, target.road, stable_row_ids)
    except BaseException as error:
        discard_failed(storage, target.location, fragments_of(first), error)
        raise
    target.mark_written(1)


def _create_new(ctx: Context, wanted: Wanted) -> models.CreateTableResponse:
    """A name that is free, as it seems: the catalog decides when the table is entered."""
    path = wanted.path
    ctx.store.describe_namespace(path[:-1])
    location = ctx.storage.new_location(path)
    ctx.store.doom(location, ctx.clock() + LEASE_MS, CREATING)
    try:
        version = _write_new(ctx, location, wanted)
        reach(Point.BEFORE_RECORD)
        record = _enter(ctx, location, wanted, version)
    except BaseException as error:
        if not isinstance(error, ServiceUnavailableError):  # else it may be in the catalog; the sweeper will know
            _sweep(ctx, location)
        if not isinstance(error, TableAlreadyExistsError) or wanted.mode is CreateMode.CREATE:
            raise
        if wanted.mode is CreateMode.OVERWRITE:
            raise ConcurrentModificationError("Another request created this table just now: try again.") from error
        return created(ctx, ctx.store.describe_table(path), None)
    return created(ctx, record, version)


def _enter(ctx: Context, location: str, wanted: Wanted, version: int) -> TableRecord:
    """Enter a written table into the catalog, together with the request that it fulfils."""
    managed, made_by = new_is_managed(ctx, wanted.path, wanted.properties), owner(ctx, wanted.path[:-1])
    home = ctx.resolved_namespace_id(wanted.path[:-1])

    def work(catalog: UnitOfWork) -> TableRecord:
        record = catalog.insert_table(
            wanted.path, location, wanted.properties or {}, managed=managed, in_creation=True, owner=made_by, home=home
        )
        if ctx.claims:
            catalog.mark_committed(ctx.claims, record.id, "", version)
        return record

    return ctx.store.transact(work) if ctx.claims else work(ctx.store)


def _write_new(ctx: Context, location: str, wanted: Wanted) -> int:
    """The first version of a table, in a folder that nobody else knows."""
    lease = _Lease(ctx, location)
    incoming = IncomingRows(wanted.data)
    check_new_columns(incoming.schema)
    writing_back = nullcontext() if incoming.is_small else ctx.storage.writing_back(f"{location}/data")
    with incoming.errors(), writing_back:
        dataset = lance.write_dataset(
            incoming.reader(each=lease.renew),
            location,
            mode="create",
            storage_options=ctx.storage.options(location),
            session=ctx.storage.datasets.session,
            **wanted.options,
        )
    ctx.storage.sync_written([location])
    ctx.storage.datasets.keep(location, None, dataset)
    return int(dataset.version)


class _Lease:
    """Keeps the sweeper off a folder for as long as rows keep coming."""

    def __init__(self, ctx: Context, location: str) -> None:
        self._ctx = ctx
        self._location = location
        self._next = ctx.clock() + _RENEW_MS

    def renew(self) -> None:
        """Called for every batch. Raises ConcurrentModificationError if the sweeper was first."""
        now = self._ctx.clock()
        if now >= self._next:
            self._ctx.store.extend_doom(self._location, now + LEASE_MS)
            self._next = now + _RENEW_MS


def _sweep(ctx: Context, location: str) -> None:
    """Delete a folder that became no table: at once if that works, else with the next sweep.

    Whoever was interrupted may have entered the table all the same: then it stays.
    """
    try:
        if ctx.store.doom(location, ctx.clock(), DROPPED):  # from here on it cannot be entered
            delete_marked(ctx, location)
    except (LanceNamespaceError, OSError) as error:
        log.warning("cannot delete %s yet: %s", location, error)


def _create_at(ctx: Context, wanted: Wanted, location: str) -> models.CreateTableResponse:
    """A table where the client wants it: declared first, so that no two can have the same location."""
    if not ctx.storage.is_empty(location):
        raise InvalidInputError("The location is not empty: register the table there, or choose another.")
    managed, made_by = new_is_managed(ctx, wanted.path, wanted.properties), owner(ctx, wanted.path[:-1])
    record = ctx.store.insert_table(
        wanted.path,
        location,
        wanted.properties or {},
        managed=managed,
        declared=True,
        registered=True,
        owner=made_by,
        home=ctx.resolved_namespace_id(wanted.path[:-1]),
    )
    try:
        return _create_declared(ctx, record, replace(wanted, mode=CreateMode.CREATE, properties=None))
    except BaseException:
        _withdraw(ctx, wanted.path, record)
        raise


def _withdraw(ctx: Context, path: Id, record: TableRecord) -> None:
    """Take back the declaration of a table that got no data from anyone."""
    try:
        found = ctx.store.describe_table(path)
        if found.id == record.id and found.declared and not ctx.storage.has_table(record.location):
            ctx.store.remove_table(path, doom=True, only=record.id)
            delete_marked(ctx, record.location)
    except LanceNamespaceError as error:
        log.warning("cannot take back %s: %s", record.location, error)


def created(ctx: Context, record: TableRecord, version: int | None) -> models.CreateTableResponse:
    """What CreateTable answers."""
    return models.CreateTableResponse(
        location=record.location,
        version=version,
        storage_options=ctx.storage.public_options(record.location) or None,
        properties=record.properties,
    )
