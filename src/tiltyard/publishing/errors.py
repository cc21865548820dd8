"""How a publication fails, besides the errors of the operations that it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable


class PublishConflictError(ConcurrentModificationError):
    """Another writer changed tables of the publication first; nothing of it is visible, its files are deleted.

    `tables` are their ids. Run the block again, on the latest versions of the tables. `reason` is what the server said,
    which names the first key that both commits brought to a table with a primary key.
    """

    def __init__(self, tables: Iterable[tuple[str, ...]], reason: str = "") -> None:
        self.tables = tuple(tables)
        names = ", ".join("$".join(path) for path in self.tables) or "a table of this publication"
        self.reason = reason
        said = f" The server: {reason}" if reason else ""
        super().__init__(f"Another commit changed {names} first: nothing was published. Run the block again.{said}")


class PublishUncertainError(ServiceUnavailableError):
    """The server did not say whether it published, and does not answer any more: all or nothing is visible.

    Or, by its message, one version is lost to a commit that bypassed the server, and all others are visible. Files are
    not deleted, since the tables may need them; if they do not, `tiltyard gc` deletes them.
    """
