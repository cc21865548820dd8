"""The rights of principals, cached until any grant changes.

Every change of grants, roles and policies increments a generation in the catalog. A server reads it every FRESH_SECONDS
that it is asked, and at once after a change of its own: so a revocation takes effect on all servers after that time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tiltyard.access.grantees import principal_grantees
from tiltyard.access.policies import EffectivePolicy, effective_policy
from tiltyard.model.privileges import Privilege, with_implied
from tiltyard.runtime.cache import Cache
from tiltyard.store import FRESH_SECONDS, GRANTS_GENERATION
from tiltyard.store.access.grants import SERVER, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.model.principals import Principal
    from tiltyard.store import Store, TableRecord

FEW_GRANTS = 1_000
"""Up to so many grants, filtered lists of what was removed are fast reads."""
FEW_NAMESPACES = 1_000
"""Up to so many namespaces that inherit a principal's grants, its list of all tables is a fast read."""
RECOUNT_SECONDS = 10.0
MAX_PRINCIPALS = 10_000
MAX_OBJECTS = 100_000
"""The size of each cache, which is emptied when it is full."""


class Rights:
    """The rights of one principal: bits of privileges, with all that they imply; 0 where it has none."""

    __slots__ = (
        "_counted",
        "_effective_policies",
        "_namespaces",
        "_principal",
        "_store",
        "_tables",
        "grantees",
        "roles",
        "server",
    )

    def __init__(self, store: Store, principal: Principal) -> None:
        """Look up the principal's roles and its privileges on the whole server. Raises ServiceUnavailableError."""
        self._store = store
        self._principal = principal
        grantees = principal_grantees(principal)
        self.roles = tuple(store.roles_of(grantees))
        self.grantees = (*grantees, *(f"role:{role}" for role in self.roles))
        self.server = with_implied(store.privileges_on(SERVER, 0, self.grantees))
        self._namespaces: dict[int, int] = {}
        self._tables: dict[int, int] = {}
        self._effective_policies: dict[int, EffectivePolicy | None] = {}
        self._counted: dict[str, tuple[bool, float]] = {}
        """Of what there were few, and when that was counted."""

    @property
    def has_few_namespaces(self) -> bool:
        """Whether its list of all tables is fast: few namespaces inherit. Raises ServiceUnavailableError."""
        return self._are_few("namespaces", self._store.count_inheriting_namespaces, FEW_NAMESPACES)

    @property
    def has_few_grants(self) -> bool:
        """Whether lists of what was removed, which all grants filter, are fast. Raises ServiceUnavailableError."""
        return self._are_few("grants", self._store.count_grants, FEW_GRANTS)

    def _are_few(self, what: str, count: Callable[[Sequence[str], int], int], few: int) -> bool:
        """Return whether a count is below `few`; counted anew after RECOUNT_SECONDS.

        A creator's grants, and namespaces, come without a new generation.
        """
        are_few, counted_at = self._counted.get(what, (False, -RECOUNT_SECONDS))
        now = time.monotonic()
        if now >= counted_at + RECOUNT_SECONDS:
            are_few = count(self.grantees, few) < few
            self._counted[what] = are_few, now
        return are_few

    @property
    def is_full(self) -> bool:
        """Whether they are of so many objects that they are looked up anew."""
        return len(self._tables) + len(self._namespaces) + len(self._effective_policies) > MAX_OBJECTS

    def on_namespace(self, namespace_id: int) -> int:
        """Return the privileges on a namespace, granted on it or above it, or on the server.

        Raises ServiceUnavailableError.
        """
        bits = self._namespaces.get(namespace_id)
        if bits is None:
            bits = with_implied(self.server | self._store.privileges_above(namespace_id, self.grantees))
            self._namespaces[namespace_id] = bits
        return bits

    def on_table(self, table_id: int, namespace_id: int) -> int:
        """Return the privileges on a table: granted on it, or above it. Raises ServiceUnavailableError."""
        bits = self._tables.get(table_id)
        if bits is None:
            bits = self._tables[table_id] = with_implied(self._store.privileges_on(TABLE, table_id, self.grantees))
        return bits | self.on_namespace(namespace_id)

    def allow(self, record: TableRecord, required: int) -> bool:
        """Return whether all `required` privileges were granted on a table, or above it."""
        inherited = self.on_namespace(record.namespace_id)
        return inherited & required == required or self.on_table(record.id, record.namespace_id) & required == required

    def effective_policy(self, table_id: int) -> EffectivePolicy | None:
        """Return the row filter and column masks of a table for the principal; None where no policy binds it.

        No policy binds principals with `administer` on the server.

        Raises ServiceUnavailableError, and PermissionDeniedError for a policy that cannot be applied.
        """
        try:
            return self._effective_policies[table_id]
        except KeyError:
            policy = None
            if not self.server & Privilege.ADMINISTER.value:
                policy = effective_policy(self._store.policies(table_id), self._principal, self.roles)
            self._effective_policies[table_id] = policy
            return policy


class RightsCache:
    """The rights of all recent principals. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rights: Cache[tuple[int, Principal], Rights] = Cache(
            "rights",
            "Privileges and policies of principals, on each object that they have named",
            max_entries=MAX_PRINCIPALS,
            invalidated_by="the generation of grants, which each change of one raises",
        )
        self._generation = -1
        self._check_at = 0.0
        self._checking = threading.Lock()

    def get(self, principal: Principal) -> Rights:
        """Return a principal's current rights. Raises ServiceUnavailableError: without the catalog nobody has any."""
        if time.monotonic() >= self._check_at:
            self._check()
        key = self._generation, principal  # so threads that look up rights of the old generation fill the old one
        rights = self._rights.get(key)
        if rights is None or rights.is_full:
            rights = Rights(self._store, principal)
            self._rights.put(key, rights)
        return rights

    def refresh_next(self) -> None:
        """Check for changes at the next `get`: this server has made one."""
        with self._checking:  # a check under way may have read the generation before
            self._check_at = 0.0

    def _check(self) -> None:
        with self._checking:
            now = time.monotonic()
            if now < self._check_at:
                return  # another thread has read it meanwhile
            generation = self._store.generation(GRANTS_GENERATION)
            if generation != self._generation:
                self._generation = generation
                self._rights.clear()
            self._check_at = now + FRESH_SECONDS
