"""What principals may do, kept in memory: looked up once, and forgotten as soon as any grant changes.

Every change of grants and roles counts a generation up in the catalog. A server asks for it once a second, and at once
after a change of its own, so that what was revoked elsewhere ends within a second or so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tiltyard.access.grantees import members
from tiltyard.access.policies import Narrowing, narrowing
from tiltyard.model.privileges import Privilege, with_implied
from tiltyard.store import GRANTS_GENERATION
from tiltyard.store.access.grants import SERVER, TABLE

if TYPE_CHECKING:
    from tiltyard.model.principals import Principal
    from tiltyard.store import Store, TableRecord

CHECK_SECONDS = 1.0
FEW = 1_000
"""So many grants make lists that are short reads still."""
RECOUNT_SECONDS = 10.0
MOST_PRINCIPALS = 10_000
MOST_OBJECTS = 100_000
"""How many are kept; beyond that, all are looked up anew."""


class Rights:
    """What one principal may do. Bits of privileges, with all that they imply; 0 where nothing was granted."""

    __slots__ = (
        "_few",
        "_namespaces",
        "_narrowings",
        "_principal",
        "_recount_at",
        "_store",
        "_tables",
        "grantees",
        "roles",
        "server",
    )

    def __init__(self, store: Store, principal: Principal) -> None:
        """Look up the principal's roles and what it may do on the whole server. Raises ServiceUnavailableError."""
        self._store = store
        self._principal = principal
        itself = members(principal)
        self.roles = tuple(store.roles_of(itself))
        self.grantees = (*itself, *(f"role:{role}" for role in self.roles))
        self.server = with_implied(store.privileges_on(SERVER, 0, self.grantees))
        self._namespaces: dict[int, int] = {}
        self._tables: dict[int, int] = {}
        self._narrowings: dict[int, Narrowing | None] = {}
        self._few = False
        self._recount_at = 0.0

    @property
    def few(self) -> bool:
        """Whether it has so few grants that lists which begin with them are quick. Raises ServiceUnavailableError."""
        now = time.monotonic()
        if now >= self._recount_at:
            self._few = self._store.count_grants(self.grantees, FEW) < FEW
            self._recount_at = now + RECOUNT_SECONDS  # what somebody creates is theirs without a new generation
        return self._few

    def on_namespace(self, namespace_id: int) -> int:
        """What was granted on a namespace, one above it, or the server. Raises ServiceUnavailableError."""
        bits = self._namespaces.get(namespace_id)
        if bits is None:
            _keep_small(self._namespaces)
            bits = with_implied(self.server | self._store.privileges_above(namespace_id, self.grantees))
            self._namespaces[namespace_id] = bits
        return bits

    def on_table(self, table_id: int, namespace_id: int) -> int:
        """What was granted on a table, or above it. Raises ServiceUnavailableError."""
        bits = self._tables.get(table_id)
        if bits is None:
            _keep_small(self._tables)
            bits = self._tables[table_id] = with_implied(self._store.privileges_on(TABLE, table_id, self.grantees))
        return bits | self.on_namespace(namespace_id)

    def allow(self, record: TableRecord, wanted: int) -> bool:
        """Whether all privileges of `wanted` were granted on a table, or above it."""
        inherited = self.on_namespace(record.namespace_id)
        return inherited & wanted == wanted or self.on_table(record.id, record.namespace_id) & wanted == wanted

    def narrowing(self, table_id: int) -> Narrowing | None:
        """What the policies of a table leave of it; None where none binds. Administrators of the server never are.

        Raises ServiceUnavailableError, and PermissionDeniedError for a policy that cannot be applied.
        """
        try:
            return self._narrowings[table_id]
        except KeyError:
            bound = None
            if not self.server & Privilege.ADMINISTER.value:
                bound = narrowing(self._store.policies(table_id), self._principal, self.roles)
            _keep_small(self._narrowings)
            self._narrowings[table_id] = bound
            return bound


def _keep_small(kept: dict[int, Any]) -> None:
    if len(kept) >= MOST_OBJECTS:
        kept.clear()


class Access:
    """The rights of all principals that asked lately. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rights: dict[Principal, Rights] = {}
        self._generation = -1
        self._check_at = 0.0

    def of(self, principal: Principal) -> Rights:
        """What a principal may do now. Raises ServiceUnavailableError: without the catalog nobody may do anything."""
        now = time.monotonic()
        if now >= self._check_at:
            self._check(now)
        known = self._rights
        rights = known.get(principal)
        if rights is None:
            if len(known) >= MOST_PRINCIPALS:
                known.clear()
            rights = known[principal] = Rights(self._store, principal)
        return rights

    def changed(self) -> None:
        """Look for changes before the next answer: this server has made one."""
        self._check_at = 0.0

    def _check(self, now: float) -> None:
        generation = self._store.generation(GRANTS_GENERATION)
        if generation != self._generation:
            self._rights = {}  # a new one: who still looks things up for the old one fills that
            self._generation = generation
        self._check_at = now + CHECK_SECONDS
