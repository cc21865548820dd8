"""The roots below which tables lie: their storage options for the server, and options or credentials for clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, InvalidTableStateError, PermissionDeniedError

from tiltyard.model.settings.mounts import mount_locations
from tiltyard.model.settings.storages import NamedStorage, SecretError, read_secrets
from tiltyard.runtime.process import wall_clock
from tiltyard.storage.locations import canonical_location, is_below, is_local, is_within
from tiltyard.storage.vending import Folder, MissingVendorError, VendedCredentials, Vendor, open_vendor, refresh_offset

if TYPE_CHECKING:
    from tiltyard.config import Settings

_LIMITS = {"client_retry_timeout": "20"}
"""Options of object stores unless the operator sets them: Lance tries again for 3 minutes, and holds a thread."""
# Options that clients may see: how to reach the storage, no credentials.
_PUBLIC = re.compile(
    r"^(?:aws_)?(?:endpoint|endpoint_url|region|default_region|virtual_hosted_style_request)$|^allow_http$"
    r"|^(?:azure_(?:storage_)?)?(?:account_name|endpoint)$|^(?:google_)?base_url$"
)


FUNCTIONS_FOLDER, SPARK_EVENTS_FOLDER = "_functions", "_spark-events"
SERVER_FOLDERS = (FUNCTIONS_FOLDER, SPARK_EVENTS_FOLDER)
"""What the server keeps below its first root, beside the tables."""


class StorageError(Exception):
    """The storage cannot be used as it is configured; the message tells the operator why."""


@dataclass(frozen=True, slots=True)
class Root:
    """A root, and the storage options for everything below it; `vendor` if clients get credentials for it.

    Roots with the same `storage`, a name from the settings, have the same options.
    """

    location: str
    storage: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    vendor: Vendor | None = None

    @property
    def public_options(self) -> dict[str, str]:
        """The options that any client may see: the endpoint, the region, never a credential."""
        return {name: value for name, value in self.options.items() if _PUBLIC.match(name.lower())}


class Roots:
    """All roots of a server; new tables go to the first one."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        """Parse the settings; no storage is accessed. Raises StorageError for an invalid root or storage."""
        named = [_named_root(name, storage, clock) for name, storage in settings.storage.items()]
        named.sort(key=lambda root: -len(root.location))
        own = [_root_location(text) for text in (settings.root, *settings.allowed_roots)]
        mounted = [_root_location(text) for text in mount_locations(settings.mounts)]
        locations = own + [location for location in mounted if location not in own]
        unnamed = [_unnamed_root(location, named, settings.storage_options) for location in locations]
        self.first = unnamed[0]
        self._roots = tuple(sorted({root.location: root for root in (*named, *unnamed)}.values(), key=_longest_first))
        self._prefixes = [(root, f"{root.location.rstrip('/')}/") for root in self._roots]
        self.vends_credentials = any(root.vendor for root in self._roots)
        """Whether clients get credentials for any root."""
        self._database_file = _database_file(settings.db)
        self._mounted = frozenset(mounted).difference(own, (root.location for root in named))

    @property
    def locations(self) -> tuple[str, ...]:
        """The locations of the roots, the first root's first."""
        return (self.first.location, *(root.location for root in self._roots if root is not self.first))

    @property
    def own_locations(self) -> tuple[str, ...]:
        """The locations without those of mounts, which may be away without keeping the server from its work."""
        return tuple(location for location in self.locations if location not in self._mounted)

    def root_of(self, location: str) -> Root:
        """Return the innermost root that a location is, or lies below.

        Raises PermissionDeniedError for any other location, so that nothing there is read, written or handed out.
        """
        for root, prefix in self._prefixes:  # each use of a file asks
            if location.startswith(prefix) or location == root.location:
                return root
        raise PermissionDeniedError(
            "The location is not below the server's root or an allowed root: name its root in the server's setting "
            "allowed_roots, or move the table."
        )

    def public_options(self, location: str) -> dict[str, str]:
        """Return the storage options that any client may see. Raises PermissionDeniedError outside the roots."""
        return self.root_of(location).public_options

    def check_foreign(self, location: str) -> None:
        """Check the location that an entry of another catalog has.

        Raises InvalidTableStateError for a root or what is around one, and for files of the server beside its tables.
        """
        own = [*self.own_locations, *(f"{self.first.location}/{name}" for name in SERVER_FOLDERS)]
        if self._database_file:
            own.append(self._database_file)
        folders = [f"{self.first.location}/{name}" for name in SERVER_FOLDERS]
        is_around = any(is_within(place, location) for place in own) or any(
            is_below(place, location) for place in self._mounted
        )
        if is_around or any(is_within(location, folder) for folder in folders):
            raise InvalidTableStateError(
                "The entry's location is one of the server's roots, holds one, or has files of the server: give it a "
                "folder of its own below a root, or deregister it."
            )

    def vend_credentials(self, location: str, *, writable: bool) -> dict[str, str] | None:
        """Create storage options with credentials for one table's folder, and their expiry; None if its root has none.

        The location is validated again, whatever the catalog says. Raises PermissionDeniedError for one outside the
        roots, InvalidInputError for one that is not in its canonical form, ServiceUnavailableError.
        """
        root = self.root_of(location)
        if root.vendor is None:
            return None
        if location == root.location or canonical_location(location) != location:
            raise InvalidInputError(
                "The location of this table is not a plain folder: no credentials are issued for it."
            )
        credentials = root.vendor.vend(Folder.of(location), writable=writable)
        return {**root.public_options, **credentials.options, **lifetime_options(credentials)}


def storage_options_of(settings: Settings, location: str) -> dict[str, str]:
    """Return the storage options for any location: of the named storage that it lies in, or else `storage_options`.

    Raises StorageError for a storage that cannot be used.
    """
    named = [_named_root(name, storage, wall_clock) for name, storage in settings.storage.items()]
    named.sort(key=_longest_first)
    return dict(_unnamed_root(location, named, settings.storage_options).options)


def lifetime_options(credentials: VendedCredentials) -> dict[str, str]:
    """Return the options by which clients know when to request new credentials."""
    return {
        "expires_at_millis": str(credentials.expires_at),
        "refresh_offset_millis": str(refresh_offset(credentials)),
    }


def _database_file(url: str) -> str:
    """Return the location of a catalog that is a file; empty for another one."""
    if not url.startswith("sqlite:///"):
        return ""
    return str(Path(url.removeprefix("sqlite:///")).absolute().resolve())


def _longest_first(root: Root) -> int:
    return -len(root.location)


def _unnamed_root(location: str, named: list[Root], options: Mapping[str, str]) -> Root:
    """Build a root without a name: with the options of the named storage around it, or else with `options`."""
    for root in named:
        if is_within(location, root.location):
            return Root(location, root.storage, root.options, root.vendor)
    return Root(location, "", {} if is_local(location) else {**_LIMITS, **options})


def _named_root(name: str, storage: NamedStorage, clock: Callable[[], int]) -> Root:
    try:
        secrets = read_secrets(name, storage)
        vendor = open_vendor(storage, secrets, clock) if storage.vend else None
    except (SecretError, MissingVendorError) as error:
        raise StorageError(str(error)) from error
    except ValueError as error:  # its text may hold part of a secret
        raise StorageError(
            f"The storage {name} cannot be used: its credentials or its endpoint are malformed, or this host has none."
        ) from error
    limits = _LIMITS if storage.scheme != "file" else {}
    options = {**limits, **_connection_options(storage), **storage.options, **secrets.values}
    return Root(_root_location(storage.uri), name, options, vendor)


def _connection_options(storage: NamedStorage) -> dict[str, str]:
    """Return endpoint, region and account of a storage under Lance's keys."""
    prefix = {"s3": "aws", "az": "azure_storage", "abfss": "azure_storage"}.get(storage.scheme)
    options = {
        f"{prefix}_endpoint" if prefix else "google_base_url": storage.endpoint,
        "aws_region": storage.region,
        "azure_storage_account_name": storage.account,
        "allow_http": "true" if storage.endpoint.startswith("http://") else "",
    }
    return {name: value for name, value in options.items() if value} if storage.scheme != "file" else {}


def _root_location(root: str) -> str:
    """Return a root's canonical location; resolve a relative one in the working folder. Raises StorageError."""
    try:
        return canonical_location(root if "://" in root else str(Path(root).expanduser().absolute().resolve()))
    except InvalidInputError as error:
        raise StorageError(f"The root {root} cannot be used: {error}") from error
