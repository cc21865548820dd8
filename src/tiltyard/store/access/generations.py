"""Numbers that tell a server when what it keeps in memory has changed elsewhere."""

from __future__ import annotations

from tiltyard.store.connection_scope import Scope, reads

READ = "SELECT number FROM generations WHERE name = ?"
COUNT_UP = "UPDATE generations SET number = number + 1 WHERE name = ?"


class Generations(Scope):
    """The methods for generations."""

    __slots__ = ()

    @reads
    def generation(self, name: str) -> int:
        """Return the number that every change of the thing counts up."""
        return int(self.connection.rows(READ, name)[0][0])
