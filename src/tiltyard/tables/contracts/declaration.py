"""Declare the contract of a table, drop it, or describe it: SetTableContract and its relatives."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

from tiltyard.access.needs import on_table
from tiltyard.contracts.contract import PROPERTY, Clients, Contract, Level, declare
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.primary_keys import PrimaryKey
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.refusals import RefusedError
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import PlainView
from tiltyard.tables.contracts.enforcement import ContractError, check_count, check_fragments
from tiltyard.tables.contracts.testing import open_referenced
from tiltyard.tables.lance_sql.expressions import check_condition
from tiltyard.tables.opening import check_records_versions, find_table, open_for_reading
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.versions.branches import check_branches

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import CheckedVersion, TableRecord, TestRecord

_PLAIN_DICTIONARIES = (2, 1)
"""The first version of Lance's file format in which a dictionary lies with its values."""
_LISTED = 20
"""Tests and commits that a description has, unless its request says how many."""


@operation(needs=on_table(Privilege.READ | Privilege.ALTER))
def set_table_contract(ctx: Context, request: models.SetTableContractRequest) -> models.SetTableContractResponse:
    """Declare the contract of a table, in place of an earlier one: from now on no commit brings rows that break it.

    All rows of all branches are checked first by what does not only warn; those of a view are not, which tests alone
    check. With `allow_missing_references`, tables of foreign keys may be made later. Raises InvalidInputError (texts
    that are no checks, columns that are not there, also of foreign keys, what no commit can hold),
    ContractError (rows that fail), UnsupportedOperationError (a table whose commits do not all go through the server),
    ConcurrentModificationError (it is written faster than its rows can be checked).
    """
    level = parse_mode(Level, request.on_failure, Level.FAIL, "on_failure")
    clients = parse_mode(Clients, request.clients, Clients.CHECK, "clients")
    retry = ConflictRetry(ctx.settings.conflict_timeout)
    while True:
        table = ctx.store.table_by_id(find_table(ctx, request.id).id)
        view = PlainView.from_properties(table.properties)
        declare_for = partial(_declare, table, request.checks, level, clients)
        if view is not None:
            contract, checked = declare_for(view.schema, is_view=True), {}
        else:
            check_records_versions(table, "A contract")
            opened = open_for_reading(ctx, request.id)
            contract = declare_for(opened.dataset.schema, is_view=False)
            _check_dictionaries(opened.dataset, contract)
            checked = check_branches(ctx, opened, contract.columns, partial(_check_rows, ctx, table, contract))
        if not request.allow_missing_references:
            _check_references(ctx, contract)
        try:
            ctx.store.set_contract(table, contract.to_json(), {PROPERTY: contract.to_property()}, checked)
            break
        except ConcurrentModificationError as error:
            retry.wait_or_raise(error)
    return models.SetTableContractResponse(
        checks=list(contract.checks), on_failure=contract.on_failure, clients=contract.clients
    )


def _declare(
    table: TableRecord, texts: list[str], level: Level, clients: Clients, schema: pa.Schema, *, is_view: bool
) -> Contract:
    """Return the contract. Raises InvalidInputError."""
    key = () if table.primary_key is None else PrimaryKey.from_json(table.primary_key).columns
    try:
        contract = declare(uuid4().hex, texts, level, clients, schema, key, _check_condition, is_tested_only=is_view)
    except RefusedError as error:
        raise InvalidInputError(str(error)) from error
    if blobs := [name for name in contract.columns if has_blobs([schema.field(name)])]:
        raise InvalidInputError(f"The column '{blobs[0]}' has blobs, which no check reads.")
    return contract


def _check_references(ctx: Context, contract: Contract) -> None:
    """Raise InvalidInputError for a foreign key to a table or a column that is not there, as the caller sees it."""
    for each in contract.parsed():
        if each.check.kind != "foreign_key":
            continue
        reference = each.check.arguments[1]
        try:
            other, column = open_referenced(ctx, reference)
            missing = None if column in other.schema.names else "column"
        except (NamespaceNotFoundError, TableNotFoundError):
            missing = "table"
        except PermissionDeniedError:
            continue  # who tests the table by it has to be able to read the other one
        except RefusedError as error:
            raise InvalidInputError(str(error)) from error
        if missing:
            raise InvalidInputError(
                f"{each.text}: there is no {missing} of '{reference}'. Make it first, or say that it comes later "
                "(allow_missing_references)."
            )


def _check_condition(text: str) -> None:
    check_condition(text, "condition of expect")


def _check_dictionaries(dataset: lance.LanceDataset, contract: Contract) -> None:
    """Raise InvalidInputError for a column of a dictionary in a file format that keeps it apart from its values."""
    version = tuple(int(part) for part in dataset.data_storage_version.split("."))
    for name in contract.columns if version < _PLAIN_DICTIONARIES else ():
        if pa.types.is_dictionary(dataset.schema.field(name).type):
            raise InvalidInputError(
                f"The column '{name}' is a dictionary, in files of format {dataset.data_storage_version}: checks read "
                "those of 2.1 and later."
            )


def _check_rows(
    ctx: Context, table: TableRecord, contract: Contract, dataset: lance.LanceDataset, branch: Branch
) -> None:
    """Check all rows of a branch's latest version. Raises ContractError."""
    try:
        check_count(contract, dataset.count_rows())
        check_fragments(ctx, table, contract, dataset)
    except ContractError as error:
        where = "" if branch.is_main else f" (on the branch '{branch.name}')"
        sentence = str(error).removesuffix("; nothing was committed.")
        raise ContractError(
            f"The table has rows that break this contract{where}: {sentence}. Correct them first, or let it warn."
        ) from error


@operation(needs=on_table(Privilege.ALTER))
def drop_table_contract(ctx: Context, request: models.DropTableContractRequest) -> models.DropTableContractResponse:
    """Enforce the contract of a table no longer; parked rows and results stay. Raises InvalidInputError without one."""
    table = ctx.store.table_by_id(find_table(ctx, request.id).id)
    if table.contract is None:
        raise InvalidInputError("This table has no contract.")
    ctx.store.set_contract(table, None, {PROPERTY: None})
    return models.DropTableContractResponse()


@operation(needs=on_table(Privilege.READ), changes=False)
def describe_table_contract(
    ctx: Context, request: models.DescribeTableContractRequest
) -> models.DescribeTableContractResponse:
    """Describe the contract of a table, its latest tests, and the commits of which its checks have found something.

    A table without a contract has no checks. Raises TableNotFoundError, NamespaceNotFoundError.
    """
    table = ctx.store.table_by_id(find_table(ctx, request.id).id)
    limit = request.limit or _LISTED
    contract = None if table.contract is None else Contract.from_json(table.contract)
    return models.DescribeTableContractResponse(
        checks=[] if contract is None else list(contract.checks),
        on_failure=Level.FAIL if contract is None else contract.on_failure,
        clients=Clients.CHECK if contract is None else contract.clients,
        tests=[_wire_test(test) for test in ctx.store.list_tests(table.id, limit)],
        commits=[_wire_commit(version) for version in ctx.store.list_checked_versions(table.id, limit)],
    )


def _wire_test(test: TestRecord) -> models.TableTest:
    return models.TableTest(
        version=test.version,
        branch=test.branch or None,
        tested_at=test.tested_at,
        requested_by=test.requested_by,
        passed=test.passed,
        results=msgspec.json.decode(test.results, type=list[models.TestedCheck]),
    )


def _wire_commit(version: CheckedVersion) -> models.CheckedCommit:
    found = json.loads(version.checks)
    return models.CheckedCommit(
        version=version.version,
        branch=version.branch or None,
        committed_at=version.committed_at,
        warned=found.get("warned"),
        rejected=found.get("rejected"),
    )
