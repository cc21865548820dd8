"""Columns of a table: alter and drop them; update the metadata of the schema and of fields."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import on_table
from tiltyard.contracts.contract import Contract
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import (
    is_auto_refreshed,
    read_declaration,
)
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.schemas.arrow_json import parse_type
from tiltyard.model.schemas.fields import metadata_texts
from tiltyard.model.schemas.nested_types import cast_array, is_same_type
from tiltyard.model.spec import models
from tiltyard.model.views.definitions import ViewDefinition, own_columns, query_columns
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.classification.followed_columns import follow_columns, note_renames, renames
from tiltyard.tables.classification.new_columns import keep_inherited
from tiltyard.tables.opening import find_table
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.column_additions import check_new_name, queue_backfills, queue_missing_backfills
from tiltyard.tables.schema.column_readers import check_no_readers, check_no_source
from tiltyard.tables.schema.column_refreshers import forget_refreshers, record_refreshers, refreshed_identities
from tiltyard.tables.schema.computed_columns import (
    altered_metadata,
    check_backfill,
    check_client_metadata,
)
from tiltyard.tables.schema.field_paths import find_field, fold_names, path_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.tables.commits.recovery import RecoveredCommit


def recover_alter_columns(
    ctx: Context, request: models.AlterTableAlterColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAlterColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    queue_missing_backfills(ctx, request.id, request.branch, backfills_of_alterations(request), commit)
    return models.AlterTableAlterColumnsResponse(version=commit.version)


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
        _check_not_of_contract(ctx, request, [entry["path"] for entry in alterations if "data_type" in entry])
        _check_not_of_view(dataset, [entry["path"] for entry in alterations if "name" in entry])
        check_lossless(dataset, {entry["path"]: entry["data_type"] for entry in alterations if "data_type" in entry})
        with _following_columns(ctx, request, dataset, renames(alterations)):
            dataset.alter_columns(*alterations)  # type: ignore[arg-type]  # annotated as if each were a list

    _, version = commit_with_retry(ctx, request.id, Branch.parse(request.branch), change)
    return models.AlterTableAlterColumnsResponse(version=version)


@contextmanager
def _following_columns(
    ctx: Context,
    request: models.AlterTableAlterColumnsRequest | models.AlterTableDropColumnsRequest,
    dataset: lance.LanceDataset,
    renamed: Mapping[tuple[str, ...], str],
) -> Iterator[None]:
    """Keep up which columns of the main branch are classified, whatever the commit in the block makes of them."""
    if not Branch.parse(request.branch).is_main:
        yield
        return
    table = find_table(ctx, request.id)
    if renamed:
        keep_inherited(ctx, table, dataset, [path[0] for path in renamed if len(path) == 1])
        note_renames(ctx, table, renamed)
    yield  # after an error, which may be one of a commit that was made, both names are taken for the column's
    follow_columns(ctx, table, dataset)


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
        check_new_name(entry.rename)
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
        with _following_columns(ctx, request, dataset, {}):
            dataset.drop_columns(columns)

    _, version = commit_with_retry(ctx, request.id, Branch.parse(request.branch), change)
    return models.AlterTableDropColumnsResponse(version=version)


def _check_readers(
    ctx: Context, request: models.AlterTableAlterColumnsRequest | models.AlterTableDropColumnsRequest, paths: list[str]
) -> None:
    """Raise InvalidInputError if others read the columns, unless the request says that they may break."""
    if not request.allow_breaking and Branch.parse(request.branch).is_main:
        check_no_readers(ctx, table_id(request.id), find_table(ctx, request.id), paths)


def _check_not_of_contract(ctx: Context, request: models.AlterTableAlterColumnsRequest, casts: Sequence[str]) -> None:
    """Raise InvalidInputError for a column that the table's contract checks: other values of it were agreed upon."""
    contract = find_table(ctx, request.id).contract
    checked = frozenset() if contract is None else fold_names(Contract.from_json(contract).columns)
    for path in casts:
        if path_names(path)[0].casefold() in checked:
            raise InvalidInputError(
                f"The column '{path}' is read by the contract of the table: change or drop that first, to cast it."
            )


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
    return metadata_texts(find_field(dataset, path).metadata)


def check_lossless(dataset: lance.LanceDataset, types: Mapping[str, pa.DataType]) -> None:
    """Read the columns at these paths, and raise InvalidInputError for the first value that its new type cannot hold.

    A cast that does not exist at all is left to Lance, which refuses it.
    """
    for path, target in types.items():
        fields = _fields_to(dataset.lance_schema.fields(), find_field(dataset, path).id())
        if not fields or not _may_lose(fields[-1].to_arrow().type, target):
            continue
        name = fields[0].name()
        scanner = dataset.scanner(columns=[name], **batch_options(CachedVersion(dataset), [name], {}))  # type: ignore[arg-type]  # integers and a flag
        for batch in scanner.to_batches():
            try:
                cast_array(_inner_values(batch.column(0), fields), target)
            except pa.ArrowNotImplementedError:
                break
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise InvalidInputError(
                    f"The column '{path}' cannot become {target} without a loss: {reason}. Update such values "
                    "first, or add a column of that type."
                ) from error


def _fields_to(fields: list[Any], field_id: int) -> list[Any]:
    """Return the field of this id, and before it the fields that it is in; none where there is no such field."""
    for field in fields:
        if field.id() == field_id:
            return [field]
        if inner := _fields_to(field.children(), field_id):
            return [field, *inner]
    return []


def _inner_values(array: pa.Array, fields: list[Any]) -> pa.Array:
    """Return the values of the innermost field from an array of the outermost one, of all lists that it is in."""
    for field in fields[1:]:
        is_struct = pa.types.is_struct(array.type)
        array = pc.struct_field(array, field.name()) if is_struct else pc.list_flatten(array)
    return array


def _may_lose(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether Lance's cast may lose a value. It checks integers itself, and casts text to text alone."""
    if is_same_type(source, target) or isinstance(target, pa.BaseExtensionType):
        return False
    return not any(is_kind(source) for is_kind in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string))
