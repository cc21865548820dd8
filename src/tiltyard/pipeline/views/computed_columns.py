"""Columns that a view's refreshes compute by code: what is called, and which of the view's values stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from lance_namespace.errors import InvalidTableStateError

from tiltyard.change_feed.row_digests import row_digests
from tiltyard.column_refresh.freshness import ComputedColumn, holds_values_of_inputs
from tiltyard.model.columns.computed_columns import UdfDeclaration, read_declaration
from tiltyard.model.views.definitions import ViewDefinition, ViewLineage
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.views.computed_values import ReusableValues
from tiltyard.view_refresh.removal import read_digests
from tiltyard.view_refresh.source_changes import find_last_refresh

if TYPE_CHECKING:
    from collections.abc import Mapping

    import lance
    import pyarrow as pa
    from numpy.typing import NDArray

    from tiltyard.pipeline.functions.call_policy import CallPolicy
    from tiltyard.pipeline.table_location import TableLocation

MAX_REUSED_ROWS = 4_000_000
"""Rows of a view whose values a refresh looks up at most: 24 bytes of each go to every task."""
_ADVICE = "with on_error='null' such rows have no value, and the next refresh that writes them computes them again"


def find_code(definition: ViewDefinition, view: pa.Schema) -> dict[str, UdfDeclaration]:
    """Return the declarations of the columns that refreshes compute by code, by name.

    Raises InvalidTableStateError if a column that the definition has is gone, or declared otherwise by now.
    """
    declarations: dict[str, UdfDeclaration] = {}
    for name, identity in definition.computed_columns.items():
        declaration = read_declaration(view.field(name).metadata) if name in view.names else None
        if declaration is None or declaration.identity != identity:
            raise InvalidTableStateError(
                f"What computes the column '{name}' of the view was changed in its table's metadata: create the view "
                "again to refresh it."
            )
        if isinstance(declaration, UdfDeclaration):
            declarations[name] = declaration
    return declarations


def column_functions(
    code: Mapping[str, UdfDeclaration], view: pa.Schema, policy: CallPolicy
) -> dict[str, ColumnFunction]:
    """Return what tasks call for each column."""
    return {
        name: ColumnFunction(
            (FilledColumn(view.field(name).remove_metadata()),),
            declaration.inputs,
            PickledFunction(declaration.code),
            policy=policy,
            advice=_ADVICE,
        )
        for name, declaration in code.items()
    }


def find_reusable(
    view: lance.LanceDataset,
    location: TableLocation,
    definition: ViewDefinition,
    code: Mapping[str, UdfDeclaration],
    addresses: NDArray[np.uint64] | None,
) -> dict[str, ReusableValues]:
    """Return the values that a version of a view has, of rows by their addresses, or (None) of all rows.

    There are none in a view to whose rows others wrote, or that this definition has not made, and none for more rows
    than MAX_REUSED_ROWS.
    """
    last = find_last_refresh(view) if code else ""
    count = view.count_rows() if addresses is None else len(addresses)
    is_trusted = isinstance(last, ViewLineage) and last.definition == definition.digest
    if not is_trusted or not 0 < count <= MAX_REUSED_ROWS:
        return {}
    found: dict[str, ReusableValues] = {}
    for name, declaration in code.items():
        column = ComputedColumn.of(view, name, declaration.inputs, declaration.identity)
        fragments = [each for each in view.get_fragments() if holds_values_of_inputs(column, each.metadata)]
        digests, rows = _digests(view, declaration.inputs, fragments, addresses)
        if digests:
            found[name] = ReusableValues.of(location, int(view.version), name, digests, rows)
    return found


def _digests(
    view: lance.LanceDataset,
    inputs: tuple[str, ...],
    fragments: list[lance.LanceFragment],
    addresses: NDArray[np.uint64] | None,
) -> tuple[list[bytes], NDArray[np.uint64]]:
    """Return the digests of the inputs of rows of some fragments, and the rows' addresses."""
    if addresses is not None:
        numbers = np.array([fragment.fragment_id for fragment in fragments], np.uint64)
        within = np.sort(addresses[np.isin(addresses >> np.uint64(32), numbers)])
        return read_digests(view, within, inputs), within
    digests: list[bytes] = []
    parts: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    if fragments:
        for batch in view.scanner(columns=list(inputs), with_row_address=True, fragments=fragments).to_batches():
            digests += row_digests([batch.column(name) for name in inputs])
            parts.append(batch["_rowaddr"].to_numpy())
    return digests, np.concatenate(parts)
