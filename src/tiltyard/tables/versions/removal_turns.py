"""Turns between the removal of a table's old versions and what comes to refer to one: clones, tags, branches.

A removal looks once at what refers to versions, and then deletes the others. So it has a turn, a lease in the catalog
that all servers see, before it looks. A clone waits for the turn and holds it, too. A tag or a branch is made at once,
and confirmed: a removal that began before may not have seen it, so its end is awaited, and the version looked for
again. `models/collection.pml` has the orders in which this can go.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import TableVersionNotFoundError

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locks import TooBusyError
from tiltyard.tables.turns import hold_turn, wait_until
from tiltyard.tables.versions.records import find_scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord

OLD_VERSIONS = "#old-versions"
"""The turn's name, beside those of branches, of which none can have it."""
_REMOVAL = "removal "
"""How the holder of a turn that removes versions begins."""


@contextmanager
def hold_removal_turn(ctx: Context, location: str, *, removes: bool = False) -> Iterator[None]:
    """Hold the turn of the old versions of the table at a location during the block, which `removes` some, or clones.

    A folder that is no table's has none: nothing is removed there. Raises TooBusyError if the turn is not free within
    the setting `conflict_timeout`, TableNotFoundError.
    """
    table = ctx.store.table_at(location)
    if table is None:
        yield
        return
    holder = f"{_REMOVAL if removes else 'clone '}{uuid4().hex}"
    with hold_turn(ctx, table, OLD_VERSIONS, holder, "the old versions"):
        yield


def confirm_reference(
    ctx: Context, table: TableRecord, branch: Branch, version: int, undo: Callable[[], object]
) -> None:
    """Make sure that a version is kept to which a new tag or branch refers since a moment ago; else `undo` that.

    Raises TableVersionNotFoundError if a removal that had looked before has deleted it, TooBusyError if one takes
    longer than the setting `conflict_timeout`.
    """
    try:
        wait_until(ctx, lambda: not _is_removing(ctx, table))
    except TooBusyError:
        undo()
        raise
    with lance_errors(table.location):
        if find_scheme(ctx, table, branch, version) is not None:
            return
    undo()
    raise TableVersionNotFoundError(f"No version {version}: it has just been cleaned up.")


def _is_removing(ctx: Context, table: TableRecord) -> bool:
    holder = ctx.store.turn_holder(table.id, OLD_VERSIONS)
    return holder is not None and holder.startswith(_REMOVAL)
