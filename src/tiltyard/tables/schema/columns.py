"""Columns: add, alter, drop; metadata of the schema and of single fields."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.model.computed_columns import declared
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.schemas.column_names import check_column_name, check_new_columns
from tiltyard.model.schemas.from_json import from_json, parse_type
from tiltyard.model.spec import models
from tiltyard.tables.commits.recovery import GONE
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.computed_columns import (
    altered_metadata,
    check_backfill,
    check_inputs,
    computed_field,
    own_metadata,
    queue_backfill,
    virtual_fields,
)
from tiltyard.tables.schema.field_paths import RESERVED, arrow_field, find_field
from tiltyard.tables.schema.type_changes import check_values
from tiltyard.tables.sql.amplification import check_growth
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.tables.commits.recovery import RecoveredCommit


def recover_add_columns(
    ctx: Context, request: models.AlterTableAddColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAddColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    _queue_missing_fills(ctx, request.id, fills_added(request), commit)
    return models.AlterTableAddColumnsResponse(version=commit.version)


@operation(needs=on_table(Privilege.ALTER), entries="new_columns", recovered_by=recover_add_columns)
def alter_table_add_columns(
    ctx: Context, request: models.AlterTableAddColumnsRequest
) -> models.AlterTableAddColumnsResponse:
    """Add columns: computed once from the rows there are by SQL, or empty ones of the types in `schema`.

    Or columns that a backfill computes: `virtual_column` by code, `computed` by SQL. They are declared in the metadata
    of their fields, and null until a job fills them, which `auto_backfill` queues at once. Raises InvalidInputError (a
    name that is taken or cannot be, an expression that is not SQL, kinds that do not go together, code that cannot
    be), TableColumnNotFoundError (in an expression, among the columns that code reads), UnsupportedOperationError
    (code of clients is switched off).
    """
    _check_kinds(request)
    _check_sql(request.new_columns)
    entries = {entry.name: entry for entry in request.new_columns}
    for name in entries:
        _check_name(name)
    expressions = {name: entry.expression for name, entry in entries.items() if entry.expression is not None}
    empty = [] if request.schema is None else list(from_json(request.schema))
    coded = [field for one in entries.values() if one.virtual_column for field in virtual_fields(ctx, request.id, one)]
    by_sql = {name: entry.computed for name, entry in entries.items() if entry.computed is not None}

    def change(dataset: lance.LanceDataset) -> None:
        fields = [*empty, *coded, *(computed_field(dataset, name, text) for name, text in by_sql.items())]
        check_new_columns(pa.schema(fields))
        _check_new_names(dataset, expressions or [field.name for field in fields])
        check_inputs(dataset, coded)
        few = batch_options(dataset, (), expressions) if expressions else {}
        dataset.add_columns(expressions or fields, batch_size=few.get("batch_size"))

    fills = fills_added(request)
    if fills:
        check_backfill(request.branch)
    _, version = commit_with_retry(ctx, request.id, request.branch, change)
    queue_fills(ctx, request.id, fills)
    return models.AlterTableAddColumnsResponse(version=version)


def _check_kinds(request: models.AlterTableAddColumnsRequest) -> None:
    """Each column says how it comes to be, in one way; and what is computed once goes by itself."""
    names = [entry.name for entry in request.new_columns]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"The column '{name}' is there twice in this request: name each one once.")
    for entry in request.new_columns:
        texts = [entry.expression, entry.computed]
        ways = sum(text is not None for text in texts) + (entry.virtual_column is not None)
        if ways != 1 or any(text is not None and not text.strip() for text in texts):
            raise InvalidInputError(f"The new column '{entry.name}' needs an SQL expression, or what else computes it.")
    once = sum(entry.expression is not None for entry in request.new_columns)
    if bool(names) == (request.schema is not None):
        raise InvalidInputError("Give either new columns with expressions, or a schema of empty columns.")
    if once not in (0, len(names)):
        raise InvalidInputError("Columns that are computed now and columns that a backfill fills need two requests.")


def _check_sql(entries: Sequence[models.AddColumnsEntry]) -> None:
    """What computes columns, now or later. Raises InvalidInputError for what cannot be planned, or be held."""
    texts = {entry.name: entry.expression or entry.computed or "" for entry in entries}
    for name, text in texts.items():
        check_expression(text, f"expression of '{name}'")
    check_growth(texts)


def fills_added(request: models.AlterTableAddColumnsRequest) -> list[str]:
    """The new columns that are to be filled at once."""
    found: list[str] = []
    for entry in request.new_columns:
        if (wanted := entry.virtual_column) is not None and wanted.auto_backfill:
            found += [output.column for output in wanted.outputs or ()] or [entry.name]
    return found


def queue_fills(ctx: Context, names: Sequence[str] | None, columns: Sequence[str]) -> None:
    """Queue a backfill of each column. Raises TableNotFoundError for a table that was dropped meanwhile."""
    if not columns:
        return
    table, wanted = open_for_reading(ctx, names), Privilege.ALTER | Privilege.RUN_UDFS
    for column in columns:
        found = declared(arrow_field(table.dataset, column).metadata)
        queue_backfill(ctx, table.record.id, table_id(names), column, found, wanted=wanted)


def _check_new_names(dataset: lance.LanceDataset, names: Iterable[str]) -> None:
    there = set(dataset.schema.names)
    for name in names:
        _check_name(name)
        if name in there:
            raise InvalidInputError(f"The column '{name}' exists: drop or rename it first, or take another name.")


def _check_name(name: str) -> None:
    check_column_name(name)
    if name in RESERVED:
        raise InvalidInputError(f"'{name}' cannot be the name of a column: answers of queries use it.")


def recover_alter_columns(
    ctx: Context, request: models.AlterTableAlterColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAlterColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    _queue_missing_fills(ctx, request.id, fills_altered(request), commit)
    return models.AlterTableAlterColumnsResponse(version=commit.version)


def _queue_missing_fills(
    ctx: Context, path: Sequence[str] | None, columns: Sequence[str], commit: RecoveredCommit
) -> None:
    """Queue backfills of an interrupted request: of two of one column, the second one has nothing left to fill.

    A table or a column that is gone by now needs none.
    """
    for column in columns:
        with suppress(*GONE, TableColumnNotFoundError):
            if find_table(ctx, path).id == commit.target.record.id:
                queue_fills(ctx, path, [column])


@operation(needs=on_table(Privilege.ALTER), entries="alterations", recovered_by=recover_alter_columns)
def alter_table_alter_columns(
    ctx: Context, request: models.AlterTableAlterColumnsRequest
) -> models.AlterTableAlterColumnsResponse:
    """Rename columns, cast them, or change whether they may be null: all that is asked, or nothing.

    Raises TableColumnNotFoundError, InvalidInputError (a name that is taken, a cast that cannot be or would lose a
    value, null values in a column that shall have none), UnsupportedOperationError (code of clients is switched off).
    """
    if not request.alterations:
        raise InvalidInputError("Name at least one column to alter.")
    if any(entry.virtual_column is not None for entry in request.alterations):
        return _alter_virtual(ctx, request)
    alterations = [_alteration(entry) for entry in request.alterations]

    def change(dataset: lance.LanceDataset) -> None:
        _check_alterations(dataset, alterations)
        check_values(dataset, {one["path"]: one["data_type"] for one in alterations if "data_type" in one})
        dataset.alter_columns(*alterations)  # type: ignore[arg-type]  # annotated as if each were a list

    _, version = commit_with_retry(ctx, request.id, request.branch, change)
    return models.AlterTableAlterColumnsResponse(version=version)


def _alter_virtual(
    ctx: Context, request: models.AlterTableAlterColumnsRequest
) -> models.AlterTableAlterColumnsResponse:
    """Declare virtual columns anew. Their values stay until a backfill, which finds them stale."""
    paths = [entry.path for entry in request.alterations]
    for entry in request.alterations:
        others = (entry.rename, entry.nullable, entry.data_type)
        if entry.virtual_column is None or any(one is not None for one in others) or paths.count(entry.path) > 1:
            raise InvalidInputError("What computes a column is altered in a request of its own, once for each column.")

    def change(dataset: lance.LanceDataset) -> None:
        dataset.update_field_metadata(
            {entry.path: altered_metadata(ctx, dataset, request.id, entry) for entry in request.alterations}
        )

    fills = fills_altered(request)
    if fills:
        check_backfill(request.branch)
    _, version = commit_with_retry(ctx, request.id, request.branch, change)
    queue_fills(ctx, request.id, fills)
    return models.AlterTableAlterColumnsResponse(version=version)


def fills_altered(request: models.AlterTableAlterColumnsRequest) -> list[str]:
    """The columns that are to be filled anew at once."""
    return [one.path for one in request.alterations if one.virtual_column and one.virtual_column.auto_backfill]


def _alteration(entry: models.AlterColumnsEntry) -> dict[str, Any]:
    """What Lance calls an alteration."""
    alteration: dict[str, Any] = {"path": entry.path}
    if entry.rename is not None:
        _check_name(entry.rename)
        alteration["name"] = entry.rename
    if entry.nullable is not None:
        alteration["nullable"] = entry.nullable
    if entry.data_type is not None:
        alteration["data_type"] = parse_type(entry.data_type)
    if len(alteration) == 1:
        raise InvalidInputError(f"Say what to alter in '{entry.path}': rename, data_type or nullable.")
    return alteration


def _check_alterations(dataset: lance.LanceDataset, alterations: list[dict[str, Any]]) -> None:
    """Lance takes the last of two alterations of one column, so the others would be lost."""
    names: dict[int, str | None] = {}
    for alteration in alterations:
        field = find_field(dataset, alteration["path"])
        if field.id() in names:
            raise InvalidInputError(f"The column '{alteration['path']}' is there twice: ask for all changes at once.")
        names[field.id()] = alteration.get("name")
    _check_renames(dataset.lance_schema.fields(), names)


def _check_renames(fields: Sequence[Any], names: Mapping[int, str | None]) -> None:
    """Refuse two of one name beside each other: within a struct Lance takes them, and cannot read the table then."""
    after = [names.get(field.id()) or field.name() for field in fields]
    for field in fields:
        name = names.get(field.id())
        if name is not None and after.count(name) > 1:
            raise InvalidInputError(f"The column '{name}' exists: drop or rename it first, or take another name.")
        _check_renames(field.children(), names)


def recover_drop_columns(
    ctx: Context, request: models.AlterTableDropColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableDropColumnsResponse:
    """Return the response of an interrupted request from its commit."""
    return models.AlterTableDropColumnsResponse(version=commit.version)


@operation(needs=on_table(Privilege.ALTER), entries="columns", recovered_by=recover_drop_columns)
def alter_table_drop_columns(
    ctx: Context, request: models.AlterTableDropColumnsRequest
) -> models.AlterTableDropColumnsResponse:
    """Drop columns, and the indices on them. Raises TableColumnNotFoundError, InvalidInputError (none, or all)."""
    if not request.columns:
        raise InvalidInputError("Name at least one column to drop.")
    columns = list(dict.fromkeys(request.columns))

    def change(dataset: lance.LanceDataset) -> None:
        for path in columns:
            find_field(dataset, path)
        if not set(dataset.schema.names).difference(columns):
            raise InvalidInputError("A table keeps at least one column: drop the table instead.")
        dataset.drop_columns(columns)

    _, version = commit_with_retry(ctx, request.id, request.branch, change)
    return models.AlterTableDropColumnsResponse(version=version)


def recover_schema_metadata(
    ctx: Context, request: models.UpdateTableSchemaMetadataRequest, commit: RecoveredCommit
) -> models.UpdateTableSchemaMetadataResponse:
    """Return the response of an interrupted request that has committed."""
    return models.UpdateTableSchemaMetadataResponse(metadata=dict(request.metadata or {}))


@operation(needs=on_table(Privilege.ALTER), recovered_by=recover_schema_metadata)
def update_table_schema_metadata(
    ctx: Context, request: models.UpdateTableSchemaMetadataRequest
) -> models.UpdateTableSchemaMetadataResponse:
    """Replace the metadata of the schema, as the specification has it. Raises what opening a table raises."""
    metadata: dict[str, str | None] = {**(request.metadata or {})}
    kept, _ = commit_with_retry(
        ctx, request.id, request.branch, lambda dataset: dataset.update_schema_metadata(metadata, replace=True)
    )
    return models.UpdateTableSchemaMetadataResponse(metadata=kept)


def recover_field_metadata(
    ctx: Context, request: models.UpdateFieldMetadataRequest, commit: RecoveredCommit
) -> models.UpdateFieldMetadataResponse:
    """Return the response of an interrupted request from its commit."""
    fields = metadata_of(commit.dataset, request) if commit.dataset else {}
    return models.UpdateFieldMetadataResponse(version=commit.version, fields=fields)


@operation(needs=on_table(Privilege.ALTER), recovered_by=recover_field_metadata)
def update_field_metadata(
    ctx: Context, request: models.UpdateFieldMetadataRequest
) -> models.UpdateFieldMetadataResponse:
    """Set metadata of fields, remove the keys whose value is null, and with `replace` all others too.

    All fields change in one commit; the answer holds what they have then. Raises TableColumnNotFoundError,
    InvalidInputError (no field, or one twice; keys that declare a computed column, whose code others may run).
    """
    if not request.updates:
        raise InvalidInputError("Name at least one field to update.")
    paths = [update.path for update in request.updates]
    if len(set(paths)) < len(paths):
        raise InvalidInputError("A field is there twice in this request: give all its metadata at once.")

    def change(dataset: lance.LanceDataset) -> dict[str, dict[str, str]]:
        dataset.update_field_metadata({update.path: _new_metadata(dataset, update) for update in request.updates})
        return metadata_of(dataset, request)

    fields, version = commit_with_retry(ctx, request.id, request.branch, change)
    return models.UpdateFieldMetadataResponse(version=version, fields=fields)


def metadata_of(dataset: lance.LanceDataset, request: models.UpdateFieldMetadataRequest) -> dict[str, dict[str, str]]:
    """The metadata that the fields of a request have."""
    return {update.path: _metadata(dataset, update.path) for update in request.updates}


def _new_metadata(dataset: lance.LanceDataset, update: models.UpdateFieldMetadataEntry) -> dict[str, str | None]:
    """What to set and, as None, what to remove; Lance's own `replace` would hold for all fields of one commit."""
    there = _metadata(dataset, update.path)
    own_metadata({key: text for key, text in update.metadata.items() if text is not None and text != there.get(key)})
    removed: dict[str, str | None] = dict.fromkeys(there) if update.replace else {}
    return removed | update.metadata


def _metadata(dataset: lance.LanceDataset, path: str) -> dict[str, str]:
    found = find_field(dataset, path).metadata or {}
    return {_text(key): _text(value) for key, value in found.items()}


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
