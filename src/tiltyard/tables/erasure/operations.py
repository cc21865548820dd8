"""EraseFromTable, ListErasures and DescribeErasure: request an erasure of rows, and read its signed report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access.authorization import caller_rights, require_decision
from tiltyard.access.filtered_lists import fetch_allowed
from tiltyard.access.needs import ANY_CALLER, on_table
from tiltyard.catalog.jobs.authorization import submitter_payload
from tiltyard.model.ids import table_id
from tiltyard.model.operations import Needs, operation
from tiltyard.model.paging import fetch_chosen
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.erasures import ERASE, erasure_not_found
from tiltyard.tables.erasure.plan import Plan
from tiltyard.tables.erasure.report import is_signed
from tiltyard.tables.erasure.rows import check_value_columns
from tiltyard.tables.erasure.scope import PRIVILEGES, check_rights, find_scope, refuse_protected
from tiltyard.tables.lance_sql.expressions import check_values_alone
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.rows.update_delete import check_predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import Erasure, UnitOfWork

MAX_VALUE_COLUMNS = 100
"""Columns of which an erasure searches for values."""
MAX_REFERENCE_CHARACTERS = 500
"""The longest reference of an erasure, as the number of a request."""
RUNNING = "running"
"""What an erasure is called that has no outcome yet."""


@operation(needs=on_table(PRIVILEGES))
def erase_from_table(ctx: Context, request: models.EraseFromTableRequest) -> models.EraseFromTableResponse:
    """Queue the erasure of the rows that match: from all versions, branches and indexes of the table, from its shallow
    clones, from what lineage says was made of them, and from dropped tables. DescribeErasure returns its report.

    `values_of` are columns whose values in these rows are searched for in all files in the end. With `end_protected`,
    tags and snapshots of versions that have the rows end, too; with `supersede_tags` such tags move to branches with
    what their versions have without the rows; without, they are named and nothing is changed.
    Raises NamespaceNotFoundError, TableNotFoundError, TableColumnNotFoundError, InvalidInputError,
    InvalidTableStateError, PermissionDeniedError (a legal hold), UnsupportedOperationError (below a mount),
    RunKeyTakenError (an erasure of this table is not finished).
    """
    path = table_id(request.id)
    if ctx.services.mounts.find(path) is not None:
        raise UnsupportedOperationError(f"{path} is below a mount: the other catalog has its versions.")
    predicate = check_values_alone(check_predicate(request.predicate), "predicate")
    reference = (request.reference or "").strip()
    if len(reference) > MAX_REFERENCE_CHARACTERS:
        raise InvalidInputError(f"A reference has {MAX_REFERENCE_CHARACTERS} characters at most.")
    if len(request.values_of or ()) > MAX_VALUE_COLUMNS:
        raise InvalidInputError(f"values_of names {MAX_VALUE_COLUMNS} columns at most.")
    table = open_for_reading(ctx, request.id)
    columns = check_value_columns(table.dataset.schema, request.values_of or ())
    with lance_errors(table.dataset):
        table.dataset.count_rows(predicate)
    scope = find_scope(ctx, table.record, path, predicate)
    check_rights(ctx, scope)
    end_protected, supersede_tags = bool(request.end_protected), bool(request.supersede_tags)
    refuse_protected(ctx, scope, end_protected=end_protected, supersede_tags=supersede_tags)
    plan = Plan(predicate, columns, end_protected, supersede_tags).to_json()
    record, principal, submitter = table.record, ctx.principal.name, submitter_payload(ctx, PRIVILEGES)

    def work(catalog: UnitOfWork) -> models.EraseFromTableResponse:
        queued = catalog.create_transaction(
            ERASE, record.id, submitter, {"table": str(path)}, requested_by=principal, run_key=f"{ERASE} {record.id}"
        )
        catalog.add_erasure(queued.id, record.id, record.namespace_id, path, reference, principal, plan)
        return models.EraseFromTableResponse(erasure_id=queued.id, transaction_id=queued.id)

    return ctx.transact(work)


def _is_visible(ctx: Context, erasure: Erasure) -> bool:
    """Return whether the caller has asked for an erasure, or may erase from its table."""
    if ctx.principal.administrator or erasure.requested_by == ctx.principal.name:
        return True
    bits = caller_rights(ctx).on_table(erasure.table_id, erasure.namespace_id)
    return bits & PRIVILEGES.value == PRIVILEGES.value


def _key_of(erasure: Erasure) -> tuple[int, str]:
    return erasure.requested_at, erasure.id


def _table_of(ctx: Context, erasure: Erasure) -> tuple[str, Sequence[str]] | None:
    """Return what services outside are asked about: the table under its present name; None once it is gone."""
    path = ctx.store.object_path(TABLE, erasure.table_id)
    return None if path is None else (TABLE, path)


def _describe(ctx: Context, request: Any) -> Context:
    erasure = ctx.store.find_erasure(request.erasure_id)
    if not _is_visible(ctx, erasure):
        raise erasure_not_found(request.erasure_id)
    if (table := _table_of(ctx, erasure)) is not None:
        require_decision(ctx, *table, Privilege.USE.value)
    return ctx


DESCRIBE_ERASURE = Needs("nothing for the caller's own; else what EraseFromTable needs on the table", _describe)


@operation(needs=ANY_CALLER, changes=False)
def list_erasures(ctx: Context, request: models.ListErasuresRequest) -> models.ListErasuresResponse:
    """List erasures, newest first: the caller's own, and those of tables from which it may erase.

    Raises InvalidInputError.
    """

    def fetch(before: tuple[int, str] | None, count: int) -> list[Erasure]:
        return fetch_chosen(ctx.store.list_erasures, before, count, _key_of, partial(filter, partial(_is_visible, ctx)))

    records, token = ctx.paging.fetch_page(
        "erasures",
        request.page_token,
        request.limit,
        lambda before, count: fetch_allowed(ctx, fetch, before, count, partial(_table_of, ctx), _key_of),
        _key_of,
    )
    return models.ListErasuresResponse(erasures=[_to_entry(each) for each in records], page_token=token)


@operation(needs=DESCRIBE_ERASURE, changes=False)
def describe_erasure(ctx: Context, request: models.DescribeErasureRequest) -> models.DescribeErasureResponse:
    """Return an erasure with its report, a JSON text, and whether that is as it was signed.

    Raises TransactionNotFoundError.
    """
    erasure = ctx.store.find_erasure(request.erasure_id)
    return models.DescribeErasureResponse(
        erasure=_to_entry(erasure),
        report=erasure.report or None,
        signature=erasure.signature or None,
        signature_is_valid=is_signed(ctx, erasure) if erasure.report else None,
    )


def _to_entry(erasure: Erasure) -> models.ErasureEntry:
    return models.ErasureEntry(
        id=erasure.id,
        table=list(erasure.path),
        reference=erasure.reference or None,
        outcome=erasure.outcome or RUNNING,
        requested_by=erasure.requested_by,
        requested_at_millis=erasure.requested_at,
        ended_at_millis=erasure.ended_at,
    )
