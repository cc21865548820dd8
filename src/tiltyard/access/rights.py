"""The rights of principals, cached until any grant changes: a revocation is known to all servers in FRESH_SECONDS."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tiltyard.access.classifications import classifications_of_table, derived_classifications
from tiltyard.access.grantees import principal_grantees
from tiltyard.access.policies import EffectivePolicy, binding_policies, effective_policy, rules_on, with_rules
from tiltyard.model.principals import ALL, Privilege, with_implied
from tiltyard.runtime.cache import Cache
from tiltyard.store import GRANTS_GENERATION
from tiltyard.store.access.grants import SERVER, TABLE
from tiltyard.store.access.watched_generation import WatchedGeneration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.access.policies import ClassificationPolicy, ClassifiedRule
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
        "_classification_policies",
        "_counted",
        "_effective_policies",
        "_has_classified",
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
        granted = ALL if principal.administrator else store.privileges_on(SERVER, 0, self.grantees)
        self.server = with_implied(granted)
        self._namespaces: dict[int, int] = {}
        self._tables: dict[int, int] = {}
        self._effective_policies: dict[int, EffectivePolicy | None] = {}
        self._classification_policies: tuple[ClassificationPolicy, ...] | None = None
        self._has_classified: bool | None = None
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
                policy = with_rules(policy, self._rules_on(table_id))
            self._effective_policies[table_id] = policy
            return policy

    @property
    def classification_policies(self) -> tuple[ClassificationPolicy, ...]:
        """The policies by classifications that bind the principal: none with `administer` on the server.

        Raises ServiceUnavailableError, and PermissionDeniedError for a policy that cannot be applied.
        """
        if self._classification_policies is None:
            records = [] if self.server & Privilege.ADMINISTER else self._store.classification_policies()
            self._classification_policies = binding_policies(records, self._principal, self.roles)
        return self._classification_policies

    def _rules_on(self, table_id: int) -> Sequence[ClassifiedRule]:
        """Return what policies by classifications say of a table: nothing of a view, whose rows are those of tables."""
        policies = self.classification_policies
        if not policies or not self._is_anything_classified(policies) or self._store.is_plain_view(table_id):
            return ()
        derived = derived_classifications(self._store, table_id).classifications
        names = tuple((each.column, each.key, each.value) for each in derived)
        return list(rules_on(policies, replace(classifications_of_table(self._store, table_id), derived=names)))

    def _is_anything_classified(self, policies: Sequence[ClassificationPolicy]) -> bool:
        if self._has_classified is None:
            self._has_classified = self._store.has_classifications([policy.key for policy in policies])
        return self._has_classified


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
        self._generation = WatchedGeneration(store, GRANTS_GENERATION, self._rights.clear)

    def get(self, principal: Principal) -> Rights:
        """Return a principal's current rights. Raises ServiceUnavailableError: without the catalog nobody has any."""
        key = self._generation.current(), principal  # so threads that look up rights of the old one fill the old one
        rights = self._rights.get(key)
        if rights is None or rights.is_full:
            rights = Rights(self._store, principal)
            self._rights.put(key, rights)
        return rights

    @property
    def generation(self) -> int:
        """The generation of grants, of which what was found is kept. Raises ServiceUnavailableError."""
        return self._generation.current()

    def refresh_next(self) -> None:
        """Check for changes at the next `get`: this server has made one."""
        self._generation.refresh_next()
