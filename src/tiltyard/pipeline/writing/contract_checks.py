"""The checks of a table's contract that reject rows: tasks park such rows, where the commit could only be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.contracts.checks import validate_checks
from tiltyard.contracts.contract import PROPERTY, Level, property_contract

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.contracts.checks import QualityCheck
    from tiltyard.pipeline.catalog_client import Table


def rejecting_checks(table: Table, rows: pa.Schema) -> tuple[QualityCheck, ...]:
    """Return the checks by which a table's contract rejects rows that have these columns; none without a contract.

    Raises RefusedError for a column of a type that a check does not take, TableNotFoundError.
    """
    text = (table.describe().properties or {}).get(PROPERTY)
    if text is None:
        return ()
    checks = [each.check for each in property_contract(text).row_checks(Level.REJECT)]
    validate_checks(checks, rows)
    return tuple(checks)
