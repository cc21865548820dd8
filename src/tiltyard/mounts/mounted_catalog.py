"""The protocol of a mount's backend: a catalog of somebody else, that holds names, properties and places of tables.

A backend translates: our ids and errors on this side, its own requests on that side. It keeps nothing of what it reads,
opens no table, and deletes no data: a table is deregistered, and its files stay. What the specification asks for beyond
that (an existence check, a filter, data) is made of these methods above.

Errors are those of `lance_namespace.errors`, from every method: UnsupportedOperationError with a sentence that names
backend and operation, ServiceUnavailableError for a backend that does not answer in its time, ThrottlingError,
PermissionDeniedError, UnauthenticatedError. A name that the backend would fold, or cannot hold, is an InvalidInputError
before anything is written, and no table or namespace where something is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tiltyard.model.ids import Id

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NamePage:
    """Names in a namespace, sorted as the backend sorts them, and the token of the next page; None on the last."""

    names: tuple[str, ...]
    next_token: str | None = None


@dataclass(frozen=True, slots=True)
class MountedTable:
    """A table as its backend describes it.

    `location` is a path for a local disk, else a URI (`lance_entries.normalized_location`). `properties` are what users
    gave, without the backend's own. `stable_id` outlives a rename, and `is_declared` is whether the table has no data
    yet: each is None where the backend has no such thing.
    """

    id: Id
    location: str
    properties: Properties = field(default_factory=dict)
    stable_id: str | None = None
    is_declared: bool | None = None


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Storage options with credentials, in Lance's words, and their expiry (ms since 1970; None where unknown).

    `is_read_only` says that the backend has narrowed them to reading.
    """

    options: Mapping[str, str] = field(repr=False)
    expires_at: int | None = None
    is_read_only: bool = False


class MountedCatalog(Protocol):
    """A catalog behind a mount. Safe to use from several threads; each call blocks for a bounded time.

    Ids are relative to the mount: `Id()` is its root, which always exists.
    """

    @property
    def kind(self) -> str:
        """The kind of backend, as in `tiltyard.mounts.open_catalog`."""

    @property
    def levels(self) -> int | None:
        """How many levels of namespaces there are above a table; None for any number."""

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        """List the namespaces in a namespace, at most `limit` of them. Raises NamespaceNotFoundError."""

    def get_namespace(self, namespace: Id) -> Properties:
        """Return the properties of a namespace. Raises NamespaceNotFoundError."""

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        """Create a namespace. Raises NamespaceAlreadyExistsError, NamespaceNotFoundError for its parent."""

    def drop_namespace(self, namespace: Id) -> None:
        """Drop an empty namespace, never its files; tables of other formats count.

        Raises NamespaceNotFoundError, NamespaceNotEmptyError.
        """

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        """List the Lance tables in a namespace, at most `limit` of them. Raises NamespaceNotFoundError."""

    def get_table(self, table: Id) -> MountedTable:
        """Describe a table. Raises NamespaceNotFoundError; TableNotFoundError also for a table of another format."""

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        """Add a table, at the backend's own choice of location where none is given; write no data.

        Raises NamespaceNotFoundError, TableAlreadyExistsError, InvalidInputError for an unusable location.
        """

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        """Set properties, and remove those that are None. Raises TableNotFoundError, ConcurrentModificationError."""

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        """Give a table another name or namespace; its files stay where they are.

        Raises TableNotFoundError, TableAlreadyExistsError, NamespaceNotFoundError.
        """

    def deregister_table(self, table: Id) -> MountedTable:
        """Remove a table's entry, and return it; its files stay. Raises TableNotFoundError."""

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return credentials for a table's files; None where the backend vends none. Raises TableNotFoundError."""

    def close(self) -> None:
        """Close all connections."""


@runtime_checkable
class ConvertsUnsafeTables(Protocol):
    """What a backend has besides, in which others may have made entries that are not safe.

    Such an entry lets another program delete, or move, the table's files together with it.
    """

    def find_unsafe_tables(self, namespace: Id, names: Collection[str]) -> Mapping[str, str]:
        """Return those of these tables whose entries are not safe, each with a sentence that says why.

        Raises NamespaceNotFoundError.
        """

    def convert_table(self, table: Id) -> None:
        """Make a table's entry safe; its name, location and properties stay. Raises TableNotFoundError."""


def check_limit(limit: int | None) -> None:
    """Raise ValueError for a limit below 1: a caller's mistake, since requests are checked before."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}")


def page_by_name(names: list[str], limit: int | None, token: str | None) -> NamePage:
    """Cut one page out of all names, for a backend without pages; the token is the last name before it."""
    check_limit(limit)
    rest = sorted(name for name in names if token is None or name > token)
    if limit is None or len(rest) <= limit:
        return NamePage(tuple(rest))
    return NamePage(tuple(rest[:limit]), rest[limit - 1])
