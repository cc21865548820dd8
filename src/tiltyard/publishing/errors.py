"""How a publication fails, besides the errors of the operations that it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable


class PublishConflictError(ConcurrentModificationError):
    """Somebody else changed tables of the publication first; nothing of it is visible, its files are deleted.

    `tables` are their ids. Running the block again, on the tables as they are then, is the way on.
    """

    def __init__(self, tables: Iterable[tuple[str, ...]]) -> None:
        self.tables = tuple(tables)
        names = ", ".join("$".join(path) for path in self.tables) or "a table of this publication"
        super().__init__(f"Somebody else changed {names} first: nothing was published. Run the block again.")


class PublishUncertainError(ServiceUnavailableError):
    """The server did not say whether it published, and could not be asked: all or nothing is visible.

    Or, by its message, one version is lost to a commit round the server, and the rest is visible. Files are left where
    they are, since the tables may need them; if they do not, `tiltyard gc` finds them.
    """
