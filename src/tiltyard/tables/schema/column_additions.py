"""Add columns to a table: computed once, null, or of those that a backfill computes, which it queues."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.classifications import is_classified
from tiltyard.model.columns.computed_columns import (
    AUTO_REFRESH,
    ExpressionDeclaration,
    is_auto_refreshed,
    read_declaration,
)
from tiltyard.model.ids import table_id
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import FILES
from tiltyard.model.schemas.arrow_json import from_json
from tiltyard.model.schemas.column_names import check_column_name, check_new_columns
from tiltyard.model.spec import models
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.classification.followed_columns import follow_columns
from tiltyard.tables.classification.new_columns import classify_as_inputs, take_classifications
from tiltyard.tables.commits.recovery import GONE
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.schema.column_refreshers import record_refreshers
from tiltyard.tables.schema.computed_columns import (
    check_backfill,
    check_inputs,
    computed_field,
    queue_backfill,
    virtual_fields,
)
from tiltyard.tables.schema.field_paths import RESERVED
from tiltyard.tables.schema.function_columns import check_function_inputs, function_fields, record_uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord
    from tiltyard.tables.commits.recovery import RecoveredCommit


def recover_add_columns(
    ctx: Context, request: models.AlterTableAddColumnsRequest, commit: RecoveredCommit
) -> models.AlterTableAddColumnsResponse:
    """Return the response of an interrupted request from its commit; queue its backfills, which come after it."""
    queue_missing_backfills(ctx, request.id, request.branch, backfills_of_new_columns(request), commit)
    return models.AlterTableAddColumnsResponse(version=commit.version)


@operation(needs=on_table(Privilege.ALTER), stores=FILES, entries="new_columns", recovered_by=recover_add_columns)
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
        check_new_name(name)
    expressions = {name: entry.expression for name, entry in entries.items() if entry.expression is not None}
    empty = [] if request.schema is None else list(from_json(request.schema))
    virtual = [
        field for entry in entries.values() if entry.virtual_column for field in virtual_fields(ctx, request.id, entry)
    ]
    computed = {name: entry.computed for name, entry in entries.items() if entry.computed is not None}
    functions = [] if request.function is None else function_fields(ctx, request)
    refreshes = _auto_refresh(request, is_computed=bool(computed or functions))

    branch = Branch.parse(request.branch)

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
        if branch.is_main:
            _classify_new(ctx, find_table(ctx, request.id), dataset, fields, expressions)

    backfills = backfills_of_new_columns(request)
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


def _classify_new(
    ctx: Context,
    table: TableRecord,
    dataset: lance.LanceDataset,
    fields: Sequence[pa.Field],
    expressions: Mapping[str, str],
) -> None:
    """Classify new columns: as the metadata of their fields says, or as the columns that their SQL has read."""
    follow_columns(ctx, table, dataset)
    if expressions:
        classify_as_inputs(ctx, table, dataset, expressions)
    elif is_classified(fields):
        take_classifications(ctx, table, dataset)


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
        check_new_name(name)
        if name in existing:
            raise InvalidInputError(f"The column '{name}' exists: drop or rename it first, or take another name.")


def check_new_name(name: str) -> None:
    check_column_name(name)
    if name in RESERVED:
        raise InvalidInputError(f"'{name}' cannot be the name of a column: responses to queries use it.")


def queue_missing_backfills(
    ctx: Context, path: Sequence[str] | None, branch: str | None, columns: Sequence[str], commit: RecoveredCommit
) -> None:
    """Queue backfills of an interrupted request. If a column gets a second one, it finds nothing to fill.

    A table, a branch or a column that is gone by now needs none.
    """
    for column in columns:
        with suppress(*GONE, TableColumnNotFoundError):
            if find_table(ctx, path).id == commit.target.record.id:
                queue_backfills(ctx, path, Branch.parse(branch), [column])
