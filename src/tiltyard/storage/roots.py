"""The roots below which tables lie: how the server reaches each, and what clients get to reach it themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.model.storage_settings import NamedStorage, SecretError, read_secrets
from tiltyard.storage.locations import canonical, is_local, is_within
from tiltyard.storage.vending import Folder, MissingVendorError, Vendor, open_vendor, refresh_offset

if TYPE_CHECKING:
    from tiltyard.config import Settings

# What a client may learn of the options: how to reach the storage, nothing that lets it in.
_PUBLIC = re.compile(
    r"^(?:aws_)?(?:endpoint|endpoint_url|region|default_region|virtual_hosted_style_request)$|^allow_http$"
    r"|^(?:azure_(?:storage_)?)?(?:account_name|endpoint)$|^(?:google_)?base_url$"
)


class StorageError(Exception):
    """The storage cannot be used as it is set up; the message says why, for whoever starts the server."""


@dataclass(frozen=True, slots=True)
class Place:
    """A root, and the options with which everything below it is reached; `vendor` if clients get credentials for it.

    Equal `storage`s have the same options.
    """

    root: str
    storage: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    vendor: Vendor | None = None

    @property
    def public(self) -> dict[str, str]:
        """The options that any client may be told: the endpoint, the region, never a credential."""
        return {name: value for name, value in self.options.items() if _PUBLIC.match(name.lower())}


class Places:
    """All roots of a server, the first one being where new tables go."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        """Know them; nothing is looked at. Raises StorageError for a root or a storage that cannot be one."""
        storages = [_place(name, storage, clock) for name, storage in settings.storage.items()]
        storages.sort(key=lambda place: -len(place.root))
        roots = [_root(text) for text in (settings.root, *settings.allowed_roots)]
        plain = [_plain(root, storages, settings.storage_options) for root in roots]
        self.first = plain[0]
        self._places = tuple(sorted({place.root: place for place in (*storages, *plain)}.values(), key=_longest_first))
        self.vend = any(place.vendor for place in self._places)
        """Whether there are credentials for clients anywhere."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots, the first one first."""
        return (self.first.root, *(place.root for place in self._places if place is not self.first))

    def of(self, location: str) -> Place:
        """The place of a root, or of a location below it: the innermost one.

        Raises PermissionDeniedError for any other location, so that nothing there is read, written or handed out.
        """
        for place in self._places:
            if is_within(location, place.root):
                return place
        raise PermissionDeniedError(
            "The location is not below the server's root or an allowed root: allow its root, or move the table."
        )

    def vended(self, location: str, *, writable: bool) -> dict[str, str] | None:
        """Options with credentials for one table's folder, and when they end; None where none are handed out.

        The location is looked at again, whatever the catalog says. Raises PermissionDeniedError for one outside the
        roots, InvalidInputError for one that is not in its canonical form, ServiceUnavailableError.
        """
        place = self.of(location)
        if place.vendor is None:
            return None
        if location == place.root or canonical(location) != location:
            raise InvalidInputError("The location of this table is no plain folder: no credentials are made for it.")
        made = place.vendor.vend(Folder.of(location), writable=writable)
        life = {"expires_at_millis": str(made.expires_at), "refresh_offset_millis": str(refresh_offset(made))}
        return {**place.public, **made.options, **life}


def _longest_first(place: Place) -> int:
    return -len(place.root)


def _plain(root: str, storages: list[Place], options: Mapping[str, str]) -> Place:
    """A root without a name: the storage around it counts, or what is set for those without a name."""
    for place in storages:
        if is_within(root, place.root):
            return Place(root, place.storage, place.options, place.vendor)
    return Place(root, "", {} if is_local(root) else dict(options))


def _place(name: str, storage: NamedStorage, clock: Callable[[], int]) -> Place:
    try:
        secrets = read_secrets(name, storage)
        vendor = open_vendor(storage, secrets, clock) if storage.vend else None
    except (SecretError, MissingVendorError) as error:
        raise StorageError(str(error)) from error
    except ValueError as error:  # its text may hold part of a secret
        raise StorageError(
            f"The storage {name} cannot be used: its credentials or its endpoint are malformed, or this host has none."
        ) from error
    return Place(_root(storage.uri), name, {**_reached(storage), **storage.options, **secrets.values}, vendor)


def _reached(storage: NamedStorage) -> dict[str, str]:
    """Where a storage is, in Lance's keys."""
    prefix = {"s3": "aws", "az": "azure_storage", "abfss": "azure_storage"}.get(storage.scheme)
    told = {
        f"{prefix}_endpoint" if prefix else "google_base_url": storage.endpoint,
        "aws_region": storage.region,
        "azure_storage_account_name": storage.account,
        "allow_http": "true" if storage.endpoint.startswith("http://") else "",
    }
    return {name: value for name, value in told.items() if value} if storage.scheme != "file" else {}


def _root(root: str) -> str:
    """A root in its canonical form; a relative one is taken from the working folder. Raises StorageError."""
    try:
        return canonical(root if "://" in root else str(Path(root).expanduser().absolute().resolve()))
    except InvalidInputError as error:
        raise StorageError(f"The root {root} cannot be used: {error}") from error
