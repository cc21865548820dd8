"""Vend storage credentials as the catalog behind a mount does, for one table's folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.model.ids import Id
from tiltyard.runtime.process import wall_clock
from tiltyard.storage.vending.vendor import Folder, VendedCredentials
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tiltyard.mounts.mounted_catalog import StorageCredentials
    from tiltyard.store import Store

    VendFromBackend: TypeAlias = Callable[[Id, bool], StorageCredentials | None]

UNKNOWN_LIFETIME_MS = 15 * 60 * 1000
"""Of credentials whose expiry the other catalog does not say."""


class NothingVendedError(Exception):
    """The other catalog vends no credentials for a table."""


@dataclass(frozen=True, slots=True)
class _TableFolder(Folder):
    """The folder of a table, and its whole location, by which the catalog has it."""

    location: str


class BackendVendor:
    """Vends what the catalog behind a mount vends; `CredentialCache` shares it."""

    def __init__(self, path: Id, vend: VendFromBackend, store: Store) -> None:
        """`path` is the mount's, `vend` asks the catalog behind it."""
        self._path = path
        self._vend = vend
        self._store = store

    def folder(self, location: str) -> Folder:
        """Return the folder of a table; it is asked for by that."""
        folder = Folder.of(location)
        return _TableFolder(folder.bucket, folder.path, location)

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        """Raises NothingVendedError, PermissionDeniedError (they could write, and must not), what the backend does."""
        assert isinstance(folder, _TableFolder)
        table = self._table_at(folder)
        vended = self._vend(table, writable)
        if vended is None:
            raise NothingVendedError
        if not writable and not vended.is_read_only:
            raise PermissionDeniedError(
                f"The catalog behind {self._path} has no credentials for reading alone: query the table through "
                "the server."
            )
        now = wall_clock()
        return VendedCredentials(dict(vended.options), now, vended.expires_at or now + UNKNOWN_LIFETIME_MS)

    def _table_at(self, folder: _TableFolder) -> Id:
        """Return the table whose folder it is, by its id in the other catalog. Raises NothingVendedError."""
        record = self._store.table_at(folder.location)
        path = None if record is None else self._store.object_path(TABLE, record.id)
        if path is None or path[: len(self._path)] != self._path:
            raise NothingVendedError
        return Id(path[len(self._path) :])
