"""Changes of tags and branches of a table, one at a time: on disks by a lock, in object stores by a turn.

Lance changes one in two steps: it looks whether the file is there, and writes or deletes it. Of two callers at once
both would delete the tag, or one move it that the other has deleted, and both be told so.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from tiltyard.storage.locations import is_local
from tiltyard.tables.turns import hold_turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

REFERENCES = "#references"
"""The turn's name, beside those of branches, of which none can have it."""


@contextmanager
def changing_reference(ctx: Context, table: TableRecord, path: str) -> Iterator[None]:
    """Let Lance write or delete the file of a tag or a branch in the block; `path` is in the table.

    Raises as `Storage.changing_reference`, TooBusyError while others change tags or branches of the table,
    TableNotFoundError.
    """
    with ExitStack() as stack:
        if not is_local(table.location):
            stack.enter_context(hold_turn(ctx, table, REFERENCES, uuid4().hex, "a tag or a branch"))
        stack.enter_context(ctx.storage.changing_reference(table.location, path))
        yield
