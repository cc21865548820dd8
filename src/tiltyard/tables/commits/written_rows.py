"""Read which rows versions have brought, and how large their table is: for quotas, after they were committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance import LanceOperation

from tiltyard.access.quotas import WrittenRows
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.branches import Branch
from tiltyard.model.lineage import RUN_PROPERTY
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.schema.stats import stored_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.storage import Storage
    from tiltyard.store import TableRecord


def read_written_rows(storage: Storage, table: TableRecord, versions: Sequence[tuple[str, int]]) -> WrittenRows:
    """Read the transactions of versions, each the key of its branch and its number, and the size of the latest on main.

    A version that was cleaned up meanwhile is left out. Raises what opening a table raises.
    """
    rows = dict[tuple[str, int], tuple[int, str]]()
    for key in sorted({branch for branch, _ in versions}):
        dataset = storage.datasets.open_for_reading(table.location, Branch.parse(key))
        for branch, version in versions:
            if branch == key and version <= dataset.version:
                with lance_errors(dataset):
                    transaction = read_transaction(dataset, version)
                if transaction is not None:
                    job_id = (transaction.transaction_properties or {}).get(RUN_PROPERTY, "")
                    rows[branch, version] = _rows_of(transaction.operation), job_id
    latest = storage.datasets.open_for_reading(table.location)
    with lance_errors(latest):
        return WrittenRows(rows, stored_bytes(latest))


def _rows_of(operation: Any) -> int:
    """Return the rows that an operation writes: inserted and updated ones, and none that it only moves."""
    match operation:
        case LanceOperation.Append() | LanceOperation.Overwrite():
            fragments = operation.fragments
        case LanceOperation.Update():
            fragments = operation.new_fragments
        case _:
            return 0
    return sum(fragment.physical_rows or 0 for fragment in fragments)
