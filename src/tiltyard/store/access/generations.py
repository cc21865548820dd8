"""Generations: counters that tell each server when its cached copy of something is out of date.

Every change counts its generation up in the same transaction; a server that reads another number than before drops
what it has cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.repository import Repository, reads

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection

FRESH_SECONDS = 0.05
"""How long a server uses what it has cached without reading the generation: changes take effect everywhere by then."""
IDENTITY_GENERATION = "identity"
"""The generation of principals, API keys and signing keys."""
GRANTS_GENERATION = "grants"
"""The generation of roles, grants and policies."""
MOUNTS_GENERATION = "mounts"
"""The generation of mounts."""

READ = "SELECT number FROM generations WHERE name = ?"
COUNT_UP = "UPDATE generations SET number = number + 1 WHERE name = ?"


def count_up(connection: Connection, name: str) -> None:
    """Count a generation up, in the transaction of the change."""
    connection.change(COUNT_UP, name)


class Generations(Repository):
    """The method for generations."""

    __slots__ = ()

    @reads
    def generation(self, name: str) -> int:
        """Return the current number of a generation."""
        return int(self.connection.rows(READ, name)[0][0])
