"""Who lets computed columns refresh by themselves: recorded when it is said, and found when a refresh is due.

Such a refresh runs with that principal's rights. So the catalog records it, by what a column's values are computed by:
the metadata of the column alone, which whoever can alter the table can write, lets nothing run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tiltyard.access.stored_definitions import Definer
from tiltyard.model.columns.computed_columns import read_declaration, refresh_seconds
from tiltyard.model.principals import Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.columns.computed_columns import Declaration
    from tiltyard.store import TableRecord


def record_refreshers(ctx: Context, table: TableRecord, branch: Branch, declarations: Iterable[Declaration]) -> None:
    """Record the caller as the one who lets columns of these declarations refresh by themselves.

    Not for a branch, which upkeep does not look at, nor below a mount.
    """
    if branch.is_main and table.mount_id is None:
        identities = [declaration.identity for declaration in declarations]
        ctx.store.set_column_refreshers(table.id, identities, msgspec.json.encode(ctx.principal).decode())


def forget_refreshers(ctx: Context, table: TableRecord, branch: Branch, identities: Iterable[str]) -> None:
    """Forget who let columns of these declarations refresh by themselves: their metadata alone lets nothing run."""
    if branch.is_main:
        ctx.store.forget_column_refreshers(table.id, identities)


def refreshed_identities(schema: pa.Schema) -> set[str]:
    """Return the identities of the declarations of columns that refresh by themselves, by their metadata."""
    declared = (read_declaration(field.metadata) for field in schema if refresh_seconds(field.metadata) is not None)
    return {declaration.identity for declaration in declared if declaration is not None}


def find_refreshers(ctx: Context, table: TableRecord) -> dict[str, Definer]:
    """Return who lets the columns of a table refresh by themselves, by the identity of their declarations."""
    return {
        identity: Definer(
            msgspec.json.decode(text, type=Principal),
            "{name}, who lets the column refresh by itself, is refused: let another principal say so.",
        )
        for identity, text in ctx.store.column_refreshers(table.id).items()
    }
