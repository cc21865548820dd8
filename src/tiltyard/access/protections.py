"""What protections refuse before an operation runs: changes of what is read-only.

Whether anything is read-only at all is known from the generation of protections, which each change of them counts up:
a change takes effect on all servers within FRESH_SECONDS. What removes an object is refused in its own transaction
(`store/protections`), so nothing here has to know of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.access.approvals import running_approved
from tiltyard.model.modes import KEPT_BY, ProtectionKind
from tiltyard.store import PROTECTIONS_GENERATION
from tiltyard.store.access.watched_generation import WatchedGeneration
from tiltyard.store.protections import protection_denial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from tiltyard.context import Context
    from tiltyard.store import Protection, Store


class ProtectionChecks:
    """The checks of one process. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kinds: frozenset[str] = frozenset()
        self._generation = WatchedGeneration(store, PROTECTIONS_GENERATION, self._read_kinds)

    def kinds(self) -> frozenset[str]:
        """Return the kinds of protection that are set anywhere. Raises ServiceUnavailableError."""
        self._generation.current()
        return self._kinds

    def refresh_next(self) -> None:
        """Check for changes at the next call: this server has made one."""
        self._generation.refresh_next()

    def check_request_writable(self, request: Any) -> None:
        """Raise PermissionDeniedError if a request names anything that is read-only, or if the server is."""
        if ProtectionKind.READ_ONLY in self.kinds():
            for path in ((), *named_paths(request)):
                self._refuse_change(self._store.protections_at(path), is_server=not path)

    def check_tables_writable(self, table_ids: Sequence[int]) -> None:
        """Raise PermissionDeniedError if one of some tables, by their ids, is read-only."""
        if ProtectionKind.READ_ONLY in self.kinds():
            self._store.check_tables_writable(table_ids)

    def keeps_files(self, table_id: int) -> bool:
        """Return whether nobody may write or delete files of a table by credentials: it is read-only, or held."""
        kinds = self.kinds()
        return any(kind in kinds and self._store.find_table_protection(table_id, kind) is not None for kind in KEPT_BY)

    @property
    def has_approvals(self) -> bool:
        """Whether any operation needs approval anywhere. Raises ServiceUnavailableError."""
        return ProtectionKind.APPROVAL in self.kinds()

    def running_approved(self, ctx: Context, name: str, request: Any) -> AbstractContextManager[Context]:
        """Return a block that runs with the approval that a call needs. See `access.approvals`."""
        return running_approved(ctx, name, request)

    def _refuse_change(self, protections: Sequence[Protection], *, is_server: bool) -> None:
        for protection in protections:
            if protection.kind == ProtectionKind.READ_ONLY and (not is_server or protection.object_kind == "server"):
                raise protection_denial("", protection, self._store.describe_protected(protection))

    def _read_kinds(self) -> None:
        self._kinds = self._store.protection_kinds()


def named_paths(request: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all namespaces and tables that a request names, whether or not they exist.

    An id that is no path (of a transaction) is yielded as well: nothing has its name.
    """
    for name in ("id", "table", "namespace", "new_id", "target_table_id"):
        value: Any = getattr(request, name, None)
        if _is_path(value):
            yield tuple(value)
    if (parent := getattr(request, "new_namespace_id", None)) is not None:
        yield tuple(parent)
    for paths in (getattr(request, "tables", None), getattr(request, "on_commit", None)):
        yield from (tuple(path) for path in paths or () if _is_path(path))
    for entry in (*(getattr(request, "operations", None) or ()), *(getattr(request, "entries", None) or ())):
        yield from named_paths(entry)
        for name in getattr(entry, "__struct_fields__", ()):
            if hasattr(each := getattr(entry, name), "__struct_fields__"):
                yield from named_paths(each)


def _is_path(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)
