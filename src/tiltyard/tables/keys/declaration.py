"""Declare the primary key of a table, or drop the declaration: SetTablePrimaryKey, DropTablePrimaryKey."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError
from msgspec import structs

from tiltyard.access.needs import on_table
from tiltyard.contracts.contract import Contract
from tiltyard.model.columns.primary_keys import MAX_COLUMNS, PROPERTY, PrimaryKey, is_key_type, unenforced_key
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import column_not_found, lance_errors
from tiltyard.tables.indexes.indexes import create_table_scalar_index
from tiltyard.tables.keys.enforcement import check_rows
from tiltyard.tables.keys.key_values import has_literals
from tiltyard.tables.keys.lookup import indexed_columns
from tiltyard.tables.opening import check_records_versions, find_table, open_for_reading
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.versions.branches import check_branches

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord


@operation(needs=on_table(Privilege.READ | Privilege.ALTER))
def set_table_primary_key(ctx: Context, request: models.SetTablePrimaryKeyRequest) -> models.SetTablePrimaryKeyResponse:
    """Declare the key of a table, in place of an earlier one: from now on no commit can give it a key twice, or a null.

    Without `columns` they are those that Lance's schema declares as its (unenforced) primary key. All rows of all
    branches are checked first. Indexes are queued on columns that have none; the response has their transactions.
    Raises TableColumnNotFoundError, InvalidInputError (no columns, or of a type that a key cannot have),
    DuplicateKeyError, TableSchemaValidationError (a null), UnsupportedOperationError (a table whose commits do not all
    go through the server), ConcurrentModificationError (it is written faster than its rows can be checked).
    """
    retry = ConflictRetry(ctx.settings.conflict_timeout)
    while True:
        table = ctx.store.table_by_id(find_table(ctx, request.id).id)
        check_records_versions(table, "A key")
        opened = open_for_reading(ctx, request.id)
        columns = _columns(opened.dataset, request.columns)
        _check_not_of_contract(table, columns)
        key = PrimaryKey(uuid4().hex, columns, {})
        checked = check_branches(ctx, opened, columns, partial(_check_branch, ctx, table, key))
        text = structs.replace(key, checked=checked).to_json()
        try:
            ctx.store.set_primary_key(table, text, {PROPERTY: json.dumps(list(columns))}, checked)
            break
        except ConcurrentModificationError as error:
            retry.wait_or_raise(error)
    return models.SetTablePrimaryKeyResponse(
        columns=list(columns), transaction_ids=_queue_indexes(ctx, request.id, columns)
    )


def _check_not_of_contract(table: TableRecord, columns: tuple[str, ...]) -> None:
    """Raise InvalidInputError if the contract of a table says `unique` of what the new key would not hold."""
    contract = None if table.contract is None else Contract.from_json(table.contract)
    if contract is not None and contract.key and contract.key != columns:
        raise InvalidInputError(
            f"The contract of this table says that its key ({', '.join(contract.key)}) is unique: change or drop the "
            "contract first."
        )


def _columns(dataset: lance.LanceDataset, requested: list[str] | None) -> tuple[str, ...]:
    """Return the columns of the key. Raises InvalidInputError, TableColumnNotFoundError."""
    schema: pa.Schema = dataset.schema
    names = tuple(requested if requested is not None else unenforced_key(schema))
    if not names:
        raise InvalidInputError("Name the columns of the key: this table's schema declares none.")
    if len(set(names)) < len(names) or len(names) > MAX_COLUMNS:
        raise InvalidInputError(f"A key has up to {MAX_COLUMNS} columns, each of them once.")
    for name in names:
        if name not in schema.names:
            raise column_not_found(name, schema.names)
        if not is_key_type(schema.field(name).type) or "`" in name:
            raise InvalidInputError(
                f"The column '{name}' cannot be in a key, which has integers, text, bytes, dates, timestamps, decimals "
                "and booleans."
            )
    return names


def _check_branch(ctx: Context, table: TableRecord, key: PrimaryKey, dataset: lance.LanceDataset, _: Branch) -> None:
    check_rows(ctx, table, key, dataset)


def _queue_indexes(ctx: Context, names: list[str] | None, columns: tuple[str, ...]) -> list[str]:
    """Queue an index on each column of the key that has none; return the transactions."""
    table = open_for_reading(ctx, names)
    with lance_errors(table.dataset):
        indexed = table.snapshot.fact(indexed_columns)
    schema = table.dataset.schema
    missing = [name for name in columns if name not in indexed and has_literals(schema.field(name).type)]
    requests = [
        models.CreateTableIndexRequest(
            id=names, column=name, index_type="BTREE", name=f"{name}_primary_key_idx", replace=True
        )
        for name in missing
    ]
    return [create_table_scalar_index(ctx, request).transaction_id or "" for request in requests]


@operation(needs=on_table(Privilege.ALTER))
def drop_table_primary_key(
    ctx: Context, request: models.DropTablePrimaryKeyRequest
) -> models.DropTablePrimaryKeyResponse:
    """Enforce the key of a table no longer; its rows and indexes stay.

    Raises InvalidInputError (it has none, or its contract has a check that the key holds).
    """
    table = ctx.store.table_by_id(find_table(ctx, request.id).id)
    if table.primary_key is None:
        raise InvalidInputError("This table has no primary key that is enforced.")
    _check_not_of_contract(table, ())
    ctx.store.set_primary_key(table, None, {PROPERTY: None})
    return models.DropTablePrimaryKeyResponse()
