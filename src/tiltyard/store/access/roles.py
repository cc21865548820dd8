"""Roles and their members. Every change counts the generation `grants` up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.repository import GRANTS_GENERATION, Repository, count_up, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

ADD = "INSERT INTO roles (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
DROP = "DELETE FROM roles WHERE name = ?"
DROP_GRANTS = "DELETE FROM grants WHERE grantee = ?"
EXISTS = "SELECT 1 FROM roles WHERE name = ?"
LIST = "SELECT name FROM roles WHERE name > ? ORDER BY name LIMIT ?"
ADD_MEMBER = "INSERT INTO role_members (role, member, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
DROP_MEMBER = "DELETE FROM role_members WHERE role = ? AND member = ?"
MEMBERS = "SELECT member FROM role_members WHERE role = ? ORDER BY member"
ROLES_OF = "SELECT DISTINCT role FROM role_members WHERE member IN ({members}) ORDER BY role"


class Roles(Repository):
    """The methods for roles. A member is written 'principal:NAME' or 'group:NAME'."""

    __slots__ = ()

    @writes
    def add_role(self, name: str) -> bool:
        """Add a role; return False if there is one of this name, which stays as it is."""
        return self.connection.change(ADD, name, self._clock()) == 1

    @writes
    def drop_role(self, name: str) -> bool:
        """Delete a role with its members and its grants; return whether there was one."""
        self.connection.change(DROP_GRANTS, f"role:{name}")
        dropped = self.connection.change(DROP, name) == 1
        count_up(self.connection, GRANTS_GENERATION)
        return dropped

    @reads
    def has_role(self, name: str) -> bool:
        """Return whether there is a role of this name."""
        return self.connection.row(EXISTS, name) is not None

    @reads
    def list_roles(self, after: str | None, limit: int) -> list[str]:
        """Return up to `limit` names of roles, those after `after`."""
        return [row[0] for row in self.connection.rows(LIST, after or "", limit)]

    @writes
    def add_member(self, role: str, member: str) -> bool:
        """Add a member; return False if it is one already. Raises InvalidInputError if there is no such role."""
        try:
            added = self.connection.change(ADD_MEMBER, role, member, self._clock()) == 1
        except ForeignKeyError:
            raise InvalidInputError(f"There is no role '{role}': create it first.") from None
        count_up(self.connection, GRANTS_GENERATION)
        return added

    @writes
    def drop_member(self, role: str, member: str) -> bool:
        """Remove a member from a role; return whether it was one."""
        dropped = self.connection.change(DROP_MEMBER, role, member) == 1
        count_up(self.connection, GRANTS_GENERATION)
        return dropped

    @reads
    def members_of(self, role: str) -> list[str]:
        """Return the members of a role."""
        return [row[0] for row in self.connection.rows(MEMBERS, role)]

    @reads
    def roles_of(self, members: Sequence[str]) -> list[str]:
        """Return the names of the roles that have any of these members."""
        return [row[0] for row in self.connection.rows(ROLES_OF.format(members=placeholders(members)), *members)]
