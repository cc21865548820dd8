"""Update and delete rows by SQL predicates."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.authorization import authorize_table
from tiltyard.access.needs import on_table
from tiltyard.model.ids import table_id
from tiltyard.model.operations import PoolName, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.spec import models
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.locks import LockKind
from tiltyard.storage.row_rewrites import delete_rows, update_rows
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.query.batch_sizes import check_change_memory
from tiltyard.tables.query.policy_enforcement import check_updates, policy_scope_of_latest, redact_errors_if_restricted
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.rows.row_changes import change_rows
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.schema.computed_columns import check_client_metadata
from tiltyard.tables.schema.properties import change_properties
from tiltyard.upkeep.thresholds import is_upkeep_property, upkeep_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.tables.commits.recovery import RecoveredCommit


def recover_update(
    ctx: Context, request: models.UpdateTableRequest, commit: RecoveredCommit
) -> models.UpdateTableResponse:
    """Return the response of an interrupted update from its commit; set the properties, which come after it."""
    table = commit.target.record
    if request.properties:
        table = change_properties(ctx, table_id(request.id), table, request.properties)
    return models.UpdateTableResponse(
        updated_rows=commit.rewritten_rows, version=commit.version, properties=table.properties
    )


@operation(
    needs=on_table(Privilege.READ | Privilege.WRITE, enforces_policies=True),
    pool=PoolName.WRITES,
    stores=ROWS_AND_FILES,
    doubles=True,
    recovered_by=recover_update,
)
def update_table(ctx: Context, request: models.UpdateTableRequest) -> models.UpdateTableResponse:
    """Set columns to SQL expressions, on all rows or on those that match a predicate.

    `properties` are merged into those of the table; clients cannot change those of the server (`tiltyard.…`), but for
    those of upkeep, for which they need the privilege to alter the table.
    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError,
    TableColumnNotFoundError, InvalidInputError, InvalidTableStateError, ConcurrentModificationError.
    """
    updates = _updates(request)
    predicate = check_predicate(request.predicate) if request.predicate is not None else None
    target = WriteTarget.named_by(ctx, request)
    current = target.record.properties
    # A client may send back all properties that it has read: an equal value is no change.
    changed = {key: value for key, value in (request.properties or {}).items() if current.get(key) != value}
    _check_properties(ctx, request, changed, current)
    seconds = ctx.settings.conflict_timeout

    def checked_condition(dataset: lance.LanceDataset) -> str | None:
        scope = policy_scope_of_latest(ctx, target.record, target.branch, None, dataset)
        condition = predicate
        if scope is not None:
            check_updates(updates, scope)
            condition = scope.combine_filter(predicate, "predicate")
        check_change_memory(
            CachedVersion(dataset), updates if condition is None else {**updates, "predicate": condition}
        )
        return condition

    def write(dataset: lance.LanceDataset) -> tuple[lance.Transaction, int] | None:
        return update_rows(ctx.storage, target.base, dataset, updates, checked_condition(dataset))

    def change(dataset: lance.LanceDataset) -> int:
        result = dataset.update(
            updates,
            checked_condition(dataset),
            conflict_retries=target.retries,
            retry_timeout=timedelta(seconds=seconds),
        )
        return int(result["num_rows_updated"])

    if updates:
        rows, version = _change(target, request.id, write, change)
    else:
        rows, version = 0, int(target.dataset().version)
    properties = current
    if changed:
        properties = change_properties(ctx, table_id(request.id), target.record, changed).properties
    return models.UpdateTableResponse(updated_rows=rows, version=version, properties=properties)


def _check_properties(
    ctx: Context, request: models.UpdateTableRequest, changed: Mapping[str, str], current: Mapping[str, str]
) -> None:
    """Check properties to set. Raises InvalidInputError, PermissionDeniedError."""
    check_client_metadata({key: value for key, value in changed.items() if not is_upkeep_property(key)})
    if any(map(is_upkeep_property, changed)):
        if not ctx.is_unchecked:
            authorize_table(ctx, table_id(request.id), Privilege.ALTER.value)
        upkeep_options({**current, **changed}, ctx.settings.keep_versions_days)


def _updates(request: models.UpdateTableRequest) -> dict[str, str]:
    """Return the SQL expressions by column, checked. Raises InvalidInputError."""
    if not request.updates and not request.properties:
        raise InvalidInputError("There is nothing to update: give [column, expression] pairs.")
    updates: dict[str, str] = {}
    for pair in request.updates:
        if len(pair) != 2 or not pair[0] or not pair[1].strip():
            raise InvalidInputError("An update is a pair of a column and an SQL expression.")
        column, expression = pair
        if column in updates:
            raise InvalidInputError(f"The column '{column}' is updated twice: once is enough.")
        updates[column] = check_expression(expression, "expression")
    check_growth(updates)
    return updates


def recover_delete(
    ctx: Context, request: models.DeleteFromTableRequest, commit: RecoveredCommit
) -> models.DeleteFromTableResponse:
    """Return the response of an interrupted delete from its commit."""
    growth = commit.row_growth
    deleted = None if growth is None else max(-growth, 0)
    return models.DeleteFromTableResponse(version=commit.version, num_deleted_rows=deleted)


@operation(
    needs=on_table(Privilege.READ | Privilege.WRITE, enforces_policies=True),
    pool=PoolName.WRITES,
    recovered_by=recover_delete,
)
def delete_from_table(ctx: Context, request: models.DeleteFromTableRequest) -> models.DeleteFromTableResponse:
    """Delete the rows that match a predicate.

    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, TableColumnNotFoundError,
    InvalidInputError, InvalidTableStateError, ConcurrentModificationError.
    """
    predicate = check_predicate(request.predicate)
    target = WriteTarget.named_by(ctx, request)
    seconds = ctx.settings.conflict_timeout

    def checked_condition(dataset: lance.LanceDataset) -> str:
        scope = policy_scope_of_latest(ctx, target.record, target.branch, None, dataset)
        condition = predicate if scope is None else scope.combine_filter(predicate, "predicate")
        check_change_memory(CachedVersion(dataset), {"predicate": condition or ""})
        return condition or predicate

    def write(dataset: lance.LanceDataset) -> tuple[lance.Transaction, int] | None:
        return delete_rows(dataset, checked_condition(dataset))

    def change(dataset: lance.LanceDataset) -> int:
        condition = checked_condition(dataset)
        result = dataset.delete(condition, conflict_retries=target.retries, retry_timeout=timedelta(seconds=seconds))
        return int(result["num_deleted_rows"])

    rows, version = _change(target, request.id, write, change)
    return models.DeleteFromTableResponse(version=version, num_deleted_rows=rows)


def _change(
    target: WriteTarget,
    names: Sequence[str] | None,
    write: Callable[[lance.LanceDataset], tuple[lance.Transaction, int] | None],
    change: Callable[[lance.LanceDataset], int],
) -> tuple[int, int]:
    """Change rows by the files that `write` writes, or else by `change`; return their number and the new version."""
    ctx, seconds = target.ctx, target.ctx.settings.conflict_timeout
    with redact_errors_if_restricted(ctx, target.record), ctx.storage.locks.hold(LockKind.CHANGES, target.key, seconds):
        if (changed := change_rows(target, write, seconds)) is not None:
            return changed.result, changed.version
        return commit_with_retry(ctx, names, target.branch, change)


def check_predicate(text: str) -> str:
    """Return a predicate, checked. Raises InvalidInputError."""
    if not text.strip():
        raise InvalidInputError("The predicate is empty: 'true' matches all rows.")
    return check_expression(text, "predicate")
