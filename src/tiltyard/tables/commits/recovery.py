"""Recover interrupted idempotent requests: rebuild the response of one that committed before its server went away.

The response of a request that the catalog alone fulfils is stored with it. On a managed table the commit's record names
the request, whatever kind of commit it is; elsewhere Lance's own transaction does, for appends and overwrites
(`docs/exactly-once.md` has the table). How a response is built from a commit is a fact of each operation
(`@operation(recovered_by=…)`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.change_feed.table_history import read_transaction, read_transactions
from tiltyard.model.branches import Branch
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import FileTooLargeError
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.commits.idempotency_marks import marked_rows
from tiltyard.tables.opening import find_table
from tiltyard.tables.rows.write_target import WriteTarget

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.model.operations import Handler
    from tiltyard.model.spec import Operation
    from tiltyard.store import RequestRecord, TableRecord

GONE = (
    InvalidTableStateError,
    NamespaceNotFoundError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
RECENT = 1000
"""How many of a table's last commits are searched for one that the catalog does not know."""


@dataclass(frozen=True, slots=True)
class RecoveredCommit:
    """A version that a request committed; `rows` is how many it brought, if the transaction says so.

    A version that was cleaned up since has no `dataset`, and its counts are unknown.
    """

    target: WriteTarget
    version: int
    dataset: lance.LanceDataset | None
    transaction: lance.Transaction | None
    rows: int | None

    @property
    def rewritten_rows(self) -> int:
        """Return how many rows an update rewrote."""
        operation = self.transaction.operation if self.transaction else None
        if not isinstance(operation, lance.LanceOperation.Update):
            return 0
        return sum(fragment.physical_rows for fragment in operation.new_fragments)

    @property
    def row_growth(self) -> int | None:
        """Return by how many rows the table grew; None where this version or the one before is gone."""
        if self.dataset is None:
            return None
        try:
            with lance_errors(self.dataset):
                before = self.dataset.checkout_version((self.target.branch.lance_name, self.version - 1))
                return int(self.dataset.count_rows() - before.count_rows())
        except TableVersionNotFoundError:
            return None


def recover_response(
    ctx: Context, operation: Operation, handler: Handler, request: Any, record: RequestRecord
) -> Any | None:
    """Return the response of an interrupted request that has committed.

    None if it has not, or a second run gives the same. Raises ServiceUnavailableError and what else keeps a table from
    being read.
    """
    if record.body is not None:
        response = msgspec.json.decode(record.body, type=getattr(models, f"{operation.name}Response"))
        return response if handler.replayed_by is None else handler.replayed_by(ctx, request, response)
    if handler.recovered_by is None:
        return None
    commit = _recorded_commit(ctx, record) if record.version is not None else _marked_commit(ctx, request, record)
    return None if commit is None else handler.recovered_by(ctx, request, commit)


def _recorded_commit(ctx: Context, record: RequestRecord) -> RecoveredCommit | None:
    """Return the commit that the catalog has for a request; None if it was rolled back or the table is gone."""
    assert record.table_id is not None
    assert record.version is not None
    try:
        table = ctx.store.table_by_id(record.table_id)
        finalize_pending(ctx, table.id)
        current = ctx.store.describe_request(record.id)
        if current is None or current.version is None:
            return None  # rolled back just now: a commit that bypassed the server has its number
        _check_finalized(ctx, table, record)
        target = WriteTarget(ctx, table, Branch.parse(record.branch))
        latest = target.exclusive_dataset()
        ctx.storage.manifests.check_size(table.location, target.branch, record.version)
    except FileTooLargeError:
        raise  # it cannot be known whether the request has committed
    except (*GONE, InvalidInputError):
        return None
    try:
        with lance_errors(latest):
            dataset = latest.checkout_version((target.branch.lance_name, record.version))
            transaction = read_transaction(latest, record.version)
    except TableVersionNotFoundError:
        return RecoveredCommit(target, record.version, None, None, None) if latest.version > record.version else None
    except (*GONE, InvalidInputError):
        return None
    return RecoveredCommit(target, record.version, dataset, transaction, marked_rows(transaction, record.id))


def _check_finalized(ctx: Context, table: TableRecord, record: RequestRecord) -> None:
    """Raise ServiceUnavailableError for a commit whose manifest is not final yet: the table does not show it."""
    latest = ctx.store.latest_version(table.id, Branch.parse(record.branch).key)
    if latest is None or latest.version != record.version or latest.finalized:
        return  # later versions were made from it
    if ctx.storage.stat(table.location, latest.manifest_path) is None:
        raise ServiceUnavailableError(
            f"Version {latest.version} of {table.name} is committed by this request, and its manifest is not in its "
            "place yet: try again later."
        )


def _marked_commit(ctx: Context, request: Any, record: RequestRecord) -> RecoveredCommit | None:
    """Return the commit whose transaction names the request."""
    try:
        target = WriteTarget(ctx, find_table(ctx, request.id), Branch.parse(getattr(request, "branch", None)))
        latest = target.exclusive_dataset()
    except GONE:
        return None
    ctx.storage.manifests.check_history(target.location, target.branch)
    with lance_errors(latest):
        for version, transaction in read_transactions(latest, int(latest.version) - RECENT):
            if (rows := marked_rows(transaction, record.id)) is not None:
                return RecoveredCommit(target, version, latest, transaction, rows)
    return None
