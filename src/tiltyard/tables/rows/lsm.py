"""LSM writes, which collect rows in a write-ahead log (Lance's MemWAL) before they come into the table.

No table of this server has such a log: an acknowledged row is in the table, where every reader finds it, and appends
that wait together share a commit already (`append_queue`). So a log cannot be switched on, and what is promised of one
that is off (nothing waits in it, nothing is left to flush or compact) is true at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.tables.opening import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context


@operation(needs=on_table(Privilege.ALTER))
def set_table_lsm_write_spec(
    ctx: Context, request: models.SetTableLsmWriteSpecRequest
) -> models.SetTableLsmWriteSpecResponse:
    """Refuse a log before the table. Raises UnsupportedOperationError, what opening a table raises."""
    _check_table(ctx, request.id, request.branch)
    raise UnsupportedOperationError(
        "This server has no write-ahead log before a table: an acknowledged row is in the table itself, so there is no "
        "sharding, no memtable and no index of one to set."
    )


@operation(needs=on_table(Privilege.ALTER))
def unset_table_lsm_write_spec(
    ctx: Context, request: models.UnsetTableLsmWriteSpecRequest
) -> models.UnsetTableLsmWriteSpecResponse:
    """Refuse to remove a specification: there is none. Raises InvalidInputError, what opening a table raises."""
    _check_table(ctx, request.id, request.branch)
    raise InvalidInputError("This table has no LSM write specification to remove.")


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_lsm_write_spec(
    ctx: Context, request: models.GetTableLsmWriteSpecRequest
) -> models.GetTableLsmWriteSpecResponse:
    """Return no specification: see the module.

    lancedb calls this before it reads rows by their ids. Raises what opening a table raises.
    """
    _check_table(ctx, request.id, request.branch)
    return models.GetTableLsmWriteSpecResponse()


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_lsm_stats(ctx: Context, request: models.GetTableLsmStatsRequest) -> models.GetTableLsmStatsResponse:
    """Return no statistics, as of a table without a log. Raises what opening a table raises."""
    _check_table(ctx, request.id, request.branch)
    return models.GetTableLsmStatsResponse()


@operation(needs=on_table(Privilege.WRITE), changes=False)
def flush_table_lsm(ctx: Context, request: models.FlushTableLsmRequest) -> models.FlushTableLsmResponse:
    """Return at once: no row waits in memory. Raises what opening a table raises."""
    _check_table(ctx, request.id, request.branch)
    return models.FlushTableLsmResponse()


@operation(needs=on_table(Privilege.WRITE), changes=False)
def compact_table_lsm(ctx: Context, request: models.CompactTableLsmRequest) -> models.CompactTableLsmResponse:
    """Return at once: no generation of a log waits to come into the table. Raises what opening a table raises."""
    _check_table(ctx, request.id, request.branch)
    return models.CompactTableLsmResponse()


def _check_table(ctx: Context, names: Sequence[str] | None, branch: str | None) -> None:
    open_for_reading(ctx, names, branch=Branch.parse(branch))
