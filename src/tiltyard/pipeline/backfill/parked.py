"""Rows of a computed column that were parked: a function failed on them, the catalog has their errors, they are null.

Errors are recorded by the row's position in its fragment. A row is parked no more once it has a value, and it is lost
to this list once a compaction has moved it: then it is one of the missing values that any backfill computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import TableColumnNotFoundError

from tiltyard.model.columns.blob_columns import is_blob

if TYPE_CHECKING:
    import lance

    from tiltyard.calls.caller import Caller
    from tiltyard.pipeline.catalog_client import Table

_FRAGMENT_BITS = 32
_MAX_RECORDS = 100_000
"""What the catalog lists at most."""

PARKED_SCHEMA = pa.schema(
    [
        ("_rowid", pa.uint64()),
        ("error_type", pa.string()),
        ("error_message", pa.string()),
        ("job", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the catalog has of a column: errors by the row's address, and fragments of which some are not recorded."""

    errors: Mapping[int, Mapping[str, Any]]
    cut_fragments: frozenset[int]

    def fragments(self) -> frozenset[int]:
        return self.cut_fragments | {address >> _FRAGMENT_BITS for address in self.errors}


def parked_rows(calls: Caller, table: Table, dataset: lance.LanceDataset, column: str) -> pa.Table:
    """Return the parked rows of a column, with PARKED_SCHEMA and the columns of the rows, other than blobs.

    Raises TableColumnNotFoundError, TableNotFoundError.
    """
    recorded = _read_errors(calls, table, dataset, column)
    shown = [field.name for field in dataset.schema if field.name != column and not is_blob(field)]
    schema = pa.schema([*PARKED_SCHEMA, *(dataset.schema.field(name) for name in shown)])
    parts = [pa.Table.from_batches([], schema)]
    for fragment_id, condition in _conditions(dataset, recorded, column).items():
        rows = _scan(dataset, fragment_id, condition, shown)
        errors = [recorded.errors.get(address, {}) for address in rows["_rowaddr"].to_pylist()]
        described = {
            "error_type": [error.get("error_type") for error in errors],
            "error_message": [error.get("error_message") for error in errors],
            "job": [error.get("job_id") for error in errors],
        }
        arrays = [rows["_rowid"], *described.values(), *(rows[name] for name in shown)]
        parts.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(parts)


def parked_conditions(calls: Caller, table: Table, dataset: lance.LanceDataset, column: str) -> Mapping[int, str]:
    """Return, for each fragment that has parked rows, the SQL condition that they meet."""
    conditions = _conditions(dataset, _read_errors(calls, table, dataset, column), column)
    return {number: condition for number, condition in conditions.items() if _scan(dataset, number, condition).num_rows}


def _read_errors(calls: Caller, table: Table, dataset: lance.LanceDataset, column: str) -> _Recorded:
    if column not in dataset.schema.names:
        raise TableColumnNotFoundError(f"The table has no column '{column}'; it has {', '.join(dataset.schema.names)}.")
    response = calls.call("ListFunctionErrors", id=table.id, column=column, limit=_MAX_RECORDS)
    errors: dict[int, Mapping[str, Any]] = {}
    for record in response["records"]:  # of the newest job first
        address = (int(record["fragment_id"]) << _FRAGMENT_BITS) + int(record["row_offset"])
        errors.setdefault(address, record)
    cut = frozenset(int(summary["fragment_id"]) for summary in response.get("fragments") or ())
    return _Recorded(errors, cut)


def _conditions(dataset: lance.LanceDataset, recorded: _Recorded, column: str) -> dict[int, str]:
    """Return the condition of the parked rows of each fragment that is still there.

    Where not all errors were recorded, they are the rows without a value.
    """
    is_null = f"`{column}` IS NULL"
    present = {fragment.fragment_id for fragment in dataset.get_fragments()}
    conditions = {}
    for fragment_id in sorted(recorded.fragments() & present):
        addresses = [str(address) for address in recorded.errors if address >> _FRAGMENT_BITS == fragment_id]
        is_cut = fragment_id in recorded.cut_fragments
        conditions[fragment_id] = is_null if is_cut else f"{is_null} AND _rowaddr IN ({', '.join(addresses)})"
    return conditions


def _scan(dataset: lance.LanceDataset, fragment_id: int, condition: str, columns: Any = ()) -> pa.Table:
    fragment = dataset.get_fragment(fragment_id)
    assert fragment is not None
    return dataset.scanner(
        columns=list(columns),
        filter=condition,
        fragments=[fragment],
        with_row_id=True,
        with_row_address=True,
    ).to_table()
