"""Columns of a table: add, alter and drop them; update the metadata of the schema and of fields."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import (
    AUTO_REFRESH,
    ExpressionDeclaration,
    is_auto_refreshed,
    read_declaration,
)
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.schemas.arrow_json import from_json, parse_type
from tiltyard.model.schemas.column_names import check_column_name, check_new_columns
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition, own_columns, query_columns
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.commits.recovery import GONE
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.column_readers import check_no_readers
from tiltyard.tables.schema.column_refreshers import forget_refreshers, record_refreshers, refreshed_identities
from tiltyard.tables.schema.computed_columns import (
    altered_metadata,
    check_backfill,
    check_client_metadata,
    check_inputs,
    computed_field,
    queue_backfill,
    virtual_fields,
)
from tiltyard.tables.schema.computed_sources import check_no_source
from tiltyard.tables.schema.field_paths import RESERVED, find_field, path_names
from tiltyard.tables.schema.function_columns import check_function_inputs, function_fields, record_uses
from tiltyard.tables.schema.type_changes import check_lossless

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.tables.commits.recovery import RecoveredCommit


def recover_add_columns(
    ctx: Context, request: models.AlterTableAddColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAddColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    _queue_missing_backfills(ctx, request.id, request.branch, backfills_of_new_columns(request), commit)
    return models.AlterTableAddColumnsResponse(version=commit.version)


@operation(needs=on_table(Privilege.ALTER), entries="new_columns", recovered_by=recover_add_columns)
def alter_table_add_columns(
    ctx: Context, request: models.AlterTableAddColumnsRequest
) -> models.AlterTableAddColumnsResponse:
    """Add columns: computed once by SQL from the existing rows, or without values, of the types in `schema`.

    Or columns that a backfill computes: `virtual_column` by code, `computed` by SQL. They are declared in the metadata
    of their fields, and null until a job fills them, which `auto_backfill` queues at once. With `auto_refresh_enabled`,
    those that SQL or a function computes refresh by themselves, as the caller. Raises InvalidInputError (a
    name that exists or is not allowed, an expression that is not SQL, kinds that do not go together, invalid code),
    TableColumnNotFoundError (in an expression, among the columns that code reads), UnsupportedOperationError (code of
    clients is switched off).
    """
    _check_kinds(request)
    _check_sql(request.new_columns)
    entries = {entry.name: entry for entry in request.new_columns}
    for name in entries:
        _check_name(name)
    expressions = {name: entry.expression for name, entry in entries.items() if entry.expression is not None}
    empty = [] if request.schema is None else list(from_json(request.schema))
    virtual = [
        field for entry in entries.values() if entry.virtual_column for field in virtual_fields(ctx, request.id, entry)
    ]
    computed = {name: entry.computed for name, entry in entries.items() if entry.computed is not None}
    functions = [] if request.function is None else function_fields(ctx, request)
    refreshes = _auto_refresh(request, is_computed=bool(computed or functions))

    def change(dataset: lance.LanceDataset) -> None:
        fields = [
            *empty,
            *virtual,
            *(with_metadata(field, refreshes) for field in functions),
            *(with_metadata(computed_field(dataset, name, text), refreshes) for name, text in computed.items()),
        ]
        check_new_columns(pa.schema(fields))
        _check_new_names(dataset, expressions or [field.name for field in fields])
        check_inputs(dataset, virtual)
        check_function_inputs(ctx, dataset, functions)
        options = batch_options(CachedVersion(dataset), (), expressions) if expressions else {}
        dataset.add_columns(expressions or fields, batch_size=options.get("batch_size"))

    backfills, branch = backfills_of_new_columns(request), Branch.parse(request.branch)
    if backfills:
        check_backfill()
    if is_auto_refreshed(refreshes):  # before the commit, after which a refresh may begin
        declared = [read_declaration(field.metadata) for field in functions]
        declared += [ExpressionDeclaration(text) for text in computed.values()]
        record_refreshers(ctx, find_table(ctx, request.id), branch, filter(None, declared))
    if functions:
        record_uses(ctx, find_table(ctx, table_id(request.id)).id, request.branch or "", functions)
    _, version = commit_with_retry(ctx, request.id, branch, change)
    queue_backfills(ctx, request.id, branch, backfills)
    return models.AlterTableAddColumnsResponse(version=version)


def _auto_refresh(request: models.AlterTableAddColumnsRequest, *, is_computed: bool) -> dict[str, str]:
    """Return the metadata of what a request says of refreshes without a call. Raises InvalidInputError."""
    enabled, seconds = request.auto_refresh_enabled, request.auto_refresh_interval_seconds
    if enabled is None and seconds is None:
        return {}
    if not is_computed:
        raise InvalidInputError("auto_refresh_… is about columns that are computed by SQL or a function: leave it out.")
    texts = {"enabled": "false" if enabled is False else "true", "interval_seconds": seconds and str(seconds)}
    return {f"{AUTO_REFRESH}{name}": text for name, text in texts.items() if text}


def with_metadata(field: pa.Field, metadata: Mapping[str, str]) -> pa.Field:
    """Return a field with metadata besides its own."""
    return field.with_metadata(
        {**(field.metadata or {}), **{key.encode(): text.encode() for key, text in metadata.items()}}
    )


def _check_kinds(request: models.AlterTableAddColumnsRequest) -> None:
    """Check that each column has one source of its values, and that columns computed at once come alone."""
    names = [entry.name for entry in request.new_columns]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"The column '{name}' is there twice in this request: name each one once.")
    for entry in request.new_columns:
        texts = [entry.expression, entry.computed]
        is_of_function = request.function is not None and bool(entry.all_null)
        sources = sum(text is not None for text in texts) + (entry.virtual_column is not None) + is_of_function
        if sources != 1 or any(text is not None and not text.strip() for text in texts):
            raise InvalidInputError(f"The new column '{entry.name}' needs an SQL expression, or what else computes it.")
    once = sum(entry.expression is not None for entry in request.new_columns)
    if bool(names) == (request.schema is not None):
        raise InvalidInputError("Give either new columns with expressions, or a schema of empty columns.")
    if once not in (0, len(names)):
        raise InvalidInputError("Columns that are computed now and columns that a backfill fills need two requests.")


def _check_sql(entries: Sequence[models.AddColumnsEntry]) -> None:
    """Check the SQL of new columns. Raises InvalidInputError if it cannot be planned, or its values not be held."""
    texts = {entry.name: entry.expression or entry.computed or "" for entry in entries}
    for name, text in texts.items():
        check_expression(text, f"expression of '{name}'")
    check_growth(texts)


def backfills_of_new_columns(request: models.AlterTableAddColumnsRequest) -> list[str]:
    """Return the new columns that are to be filled at once."""
    columns: list[str] = []
    for entry in request.new_columns:
        if (virtual := entry.virtual_column) is not None and virtual.auto_backfill:
            columns += [output.column for output in virtual.outputs or ()] or [entry.name]
    return columns


def queue_backfills(ctx: Context, names: Sequence[str] | None, branch: Branch, columns: Sequence[str]) -> None:
    """Queue a backfill of each column. Raises TableNotFoundError for a table that was dropped meanwhile."""
    if not columns:
        return
    table, privileges = open_for_reading(ctx, names, branch=branch), Privilege.ALTER | Privilege.RUN_UDFS
    for column in columns:
        queue_backfill(ctx, table, table_id(names), branch, column, privileges=privileges)


def _check_new_names(dataset: lance.LanceDataset, names: Iterable[str]) -> None:
    existing = set(dataset.schema.names)
    for name in names:
        _check_name(name)
        if name in existing:
            raise InvalidInputError(f"The column '{name}' exists: drop or rename it first, or take another name.")


def _check_name(name: str) -> None:
    check_column_name(name)
    if name in RESERVED:
        raise InvalidInputError(f"'{name}' cannot be the name of a column: responses to queries use it.")


def recover_alter_columns(
    ctx: Context, request: models.AlterTableAlterColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAlterColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    _queue_missing_backfills(ctx, request.id, request.branch, backfills_of_alterations(request), commit)
    return models.AlterTableAlterColumnsResponse(version=commit.version)


def _queue_missing_backfills(
    ctx: Context, path: Sequence[str] | None, branch: str | None, columns: Sequence[str], commit: RecoveredCommit
) -> None:
    """Queue backfills of an interrupted request. If a column gets a second one, it finds nothing to fill.

    A table, a branch or a column that is gone by now needs none.
    """
    for column in columns:
        with suppress(*GONE, TableColumnNotFoundError):
            if find_table(ctx, path).id == commit.target.record.id:
                queue_backfills(ctx, path, Branch.parse(branch), [column])


@operation(needs=on_table(Privilege.ALTER), entries="alterations", recovered_by=recover_alter_columns)
def alter_table_alter_columns(
    ctx: Context, request: models.AlterTableAlterColumnsRequest
) -> models.AlterTableAlterColumnsResponse:
    """Rename columns, cast them, or change whether they are nullable: all alterations, or none.

    Raises TableColumnNotFoundError, InvalidInputError (a name that exists, a cast that is not supported or would lose a
    value, null values in a column to be made not nullable, another name or type of a column that a computed one
    reads, or others do, unless it says `allow_breaking`), UnsupportedOperationError (code of clients is switched
    off).
    """
    if not request.alterations:
        raise InvalidInputError("Name at least one column to alter.")
    if any(entry.virtual_column is not None for entry in request.alterations):
        return _alter_virtual(ctx, request)
    alterations = [_alteration(entry) for entry in request.alterations]

    def change(dataset: lance.LanceDataset) -> None:
        _check_alterations(dataset, alterations)
        moved = [entry["path"] for entry in alterations if "data_type" in entry or "name" in entry]
        check_no_source(dataset, moved)
        _check_readers(ctx, request, moved)
        _check_not_of_view(dataset, [entry["path"] for entry in alterations if "name" in entry])
        check_lossless(dataset, {entry["path"]: entry["data_type"] for entry in alterations if "data_type" in entry})
        dataset.alter_columns(*alterations)  # type: ignore[arg-type]  # annotated as if each were a list

    _, version = commit_with_retry(ctx, request.id, Branch.parse(request.branch), change)
    return models.AlterTableAlterColumnsResponse(version=version)


def _alter_virtual(
    ctx: Context, request: models.AlterTableAlterColumnsRequest
) -> models.AlterTableAlterColumnsResponse:
    """Change the declarations of virtual columns. Their values stay until a backfill, which finds them stale."""
    paths = [entry.path for entry in request.alterations]
    for entry in request.alterations:
        has_other_changes = any(change is not None for change in (entry.rename, entry.nullable, entry.data_type))
        if entry.virtual_column is None or has_other_changes or paths.count(entry.path) > 1:
            raise InvalidInputError("What computes a column is altered in a request of its own, once for each column.")

    def change(dataset: lance.LanceDataset) -> None:
        _check_not_of_view(dataset, paths)
        dataset.update_field_metadata(
            {entry.path: altered_metadata(ctx, dataset, request.id, entry) for entry in request.alterations}
        )

    backfills, branch = backfills_of_alterations(request), Branch.parse(request.branch)
    if backfills:
        check_backfill()
    _, version = commit_with_retry(ctx, request.id, branch, change)
    queue_backfills(ctx, request.id, branch, backfills)
    return models.AlterTableAlterColumnsResponse(version=version)


def backfills_of_alterations(request: models.AlterTableAlterColumnsRequest) -> list[str]:
    """Return the altered columns that are to be filled again at once."""
    return [entry.path for entry in request.alterations if entry.virtual_column and entry.virtual_column.auto_backfill]


def _alteration(entry: models.AlterColumnsEntry) -> dict[str, Any]:
    """Return an alteration as Lance takes it."""
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
    """Refuse two alterations of one column (Lance would apply the last alone), and names that would not be unique."""
    names: dict[int, str | None] = {}
    for alteration in alterations:
        field = find_field(dataset, alteration["path"])
        if field.id() in names:
            raise InvalidInputError(
                f"The column '{alteration['path']}' is in this request twice: give all its changes at once."
            )
        names[field.id()] = alteration.get("name")
    _check_renames(dataset.lance_schema.fields(), names)


def _check_renames(fields: Sequence[Any], names: Mapping[int, str | None]) -> None:
    """Refuse two fields of one name in one struct: Lance accepts them, and cannot read the table then."""
    new_names = [names.get(field.id()) or field.name() for field in fields]
    for field in fields:
        name = names.get(field.id())
        if name is not None and new_names.count(name) > 1:
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
    """Drop columns, and the indexes on them.

    Raises TableColumnNotFoundError, InvalidInputError (none, or all; one that a computed column reads, which stays, or
    a policy, a view or another table's contract, unless it says `allow_breaking`).
    """
    if not request.columns:
        raise InvalidInputError("Name at least one column to drop.")
    columns = list(dict.fromkeys(request.columns))

    def change(dataset: lance.LanceDataset) -> None:
        for path in columns:
            find_field(dataset, path)
        check_no_source(dataset, columns, dropped=columns)
        _check_readers(ctx, request, columns)
        _check_not_of_view(dataset, columns)
        if not set(dataset.schema.names).difference(columns):
            raise InvalidInputError("A table keeps at least one column: drop the table instead.")
        dataset.drop_columns(columns)

    _, version = commit_with_retry(ctx, request.id, Branch.parse(request.branch), change)
    return models.AlterTableDropColumnsResponse(version=version)


def _check_readers(
    ctx: Context, request: models.AlterTableAlterColumnsRequest | models.AlterTableDropColumnsRequest, paths: list[str]
) -> None:
    """Raise InvalidInputError if others read the columns, unless the request says that they may break."""
    if not request.allow_breaking and Branch.parse(request.branch).is_main:
        check_no_readers(ctx, table_id(request.id), find_table(ctx, request.id), paths)


def _check_not_of_view(dataset: lance.LanceDataset, paths: Sequence[str]) -> None:
    """Raise InvalidInputError for a column that a view's definition makes: each refresh makes it, by that name."""
    if ViewDefinition.from_metadata(dataset.schema.metadata) is None:
        return
    made, own = query_columns(dataset.schema), own_columns(dataset.schema)
    for path in paths:
        if (name := path_names(path)[0]) in own:
            maker = "query" if name in made else "definition"
            raise InvalidInputError(
                f"The view's {maker} makes the column '{path}': create another view, with one that makes what you "
                "want. Only columns that were added to a view are renamed and dropped."
            )


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
    result, _ = commit_with_retry(
        ctx,
        request.id,
        Branch.parse(request.branch),
        lambda dataset: dataset.update_schema_metadata(metadata, replace=True),
    )
    return models.UpdateTableSchemaMetadataResponse(metadata=result)


def recover_field_metadata(
    ctx: Context, request: models.UpdateFieldMetadataRequest, commit: RecoveredCommit
) -> models.UpdateFieldMetadataResponse:
    """Return the response of an interrupted request from its commit."""
    fields = fields_metadata(commit.dataset, request) if commit.dataset else {}
    return models.UpdateFieldMetadataResponse(version=commit.version, fields=fields)


@operation(needs=on_table(Privilege.ALTER), recovered_by=recover_field_metadata)
def update_field_metadata(
    ctx: Context, request: models.UpdateFieldMetadataRequest
) -> models.UpdateFieldMetadataResponse:
    """Set metadata of fields; remove the keys whose value is null, and with `replace` all other keys, too.

    All fields change in one commit; the response has their metadata then. A computed column that this lets refresh by
    itself does so as the caller, until it is switched off. Raises TableColumnNotFoundError,
    InvalidInputError (no field, or one twice; keys that declare a computed column, whose code others may run).
    """
    if not request.updates:
        raise InvalidInputError("Name at least one field to update.")
    paths = [update.path for update in request.updates]
    if len(set(paths)) < len(paths):
        raise InvalidInputError("A field is there twice in this request: give all its metadata at once.")

    branch = Branch.parse(request.branch)
    refreshed = [update.path for update in request.updates if is_auto_refreshed(update.metadata)]

    def change(dataset: lance.LanceDataset) -> tuple[dict[str, dict[str, str]], set[str]]:
        if refreshed:
            declared = [read_declaration(_metadata(dataset, path)) for path in refreshed]
            record_refreshers(ctx, find_table(ctx, request.id), branch, filter(None, declared))
        before = refreshed_identities(dataset.schema)
        dataset.update_field_metadata({update.path: _new_metadata(dataset, update) for update in request.updates})
        return fields_metadata(dataset, request), before - refreshed_identities(dataset.schema)

    (fields, forgotten), version = commit_with_retry(ctx, request.id, branch, change)
    if forgotten:
        forget_refreshers(ctx, find_table(ctx, request.id), branch, forgotten)
    return models.UpdateFieldMetadataResponse(version=version, fields=fields)


def fields_metadata(
    dataset: lance.LanceDataset, request: models.UpdateFieldMetadataRequest
) -> dict[str, dict[str, str]]:
    """Return the metadata of the fields that a request names, by their paths."""
    return {update.path: _metadata(dataset, update.path) for update in request.updates}


def _new_metadata(dataset: lance.LanceDataset, update: models.UpdateFieldMetadataEntry) -> dict[str, str | None]:
    """Return the keys to set and, with the value None, to remove.

    Lance's own `replace` would apply to all fields of a commit.
    """
    before = _metadata(dataset, update.path)
    changed = {key: text for key, text in update.metadata.items() if text is not None and text != before.get(key)}
    check_client_metadata(changed)
    removed: dict[str, str | None] = dict.fromkeys(before) if update.replace else {}
    return removed | update.metadata


def _metadata(dataset: lance.LanceDataset, path: str) -> dict[str, str]:
    metadata = find_field(dataset, path).metadata or {}
    return {_text(key): _text(value) for key, value in metadata.items()}


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
