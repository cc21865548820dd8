"""Generic tables of Apache Polaris: a table has a format, `lance`, and a location, in namespaces of Iceberg's protocol.

A generic table can be neither changed nor renamed. Lists of them are names alone, of all formats, so that each has to
be loaded to know its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Required, TypedDict

from tiltyard.model.ids import Id
from tiltyard.mounts.backends.iceberg_protocol import (
    CATALOG_SERVICE,
    FormatSettings,
    IcebergProtocol,
    location_uri,
)
from tiltyard.mounts.catalog_errors import (
    MalformedAnswerError,
    missing_table,
    unsupported,
)
from tiltyard.mounts.http.client import ResponseError
from tiltyard.mounts.http.oauth2 import json_client
from tiltyard.mounts.lance_entries import (
    MARKER,
    MARKER_PROPERTIES,
    check_properties,
    location_below_root,
    new_table_location,
    normalized_location,
    other_format_error,
    user_properties,
)
from tiltyard.mounts.mounted_catalog import MountedTable, Properties, StorageCredentials
from tiltyard.mounts.storage_credentials import PrefixCredentials, iceberg_credentials
from tiltyard.storage.locations import canonical_location

_API = "/api/catalog"
_VENDED = {"Polaris-Generic-Table-Access-Delegation": "vended-credentials"}
_CANNOT_VEND = frozenset((400, 406, 501))
"""Statuses of a server that vends no credentials for generic tables, which it must not answer without them."""
_NO_REQUEST = "Polaris has no request for it"


_Table = TypedDict(
    "_Table",
    {"format": Required[str], "base-location": str | None, "properties": dict[str, str] | None},
    total=False,
)
_Entry = TypedDict(
    "_Entry",
    {
        "table": Required[_Table],
        "storage-access-configs": list[PrefixCredentials] | None,
        "storage-credentials": list[PrefixCredentials] | None,
    },
    total=False,
)
"""A table as Polaris answers it; its credentials have had two names."""


@dataclass(frozen=True, kw_only=True)
class PolarisSettings(FormatSettings):
    """How to reach a server, with a token, or as a client with its own tokens or those of `oauth2_uri`.

    `uri` is the server, `catalog` one of its catalogs. `formats_age` is for how many seconds the formats of tables are
    remembered. Without `root`, new tables are put below their catalog's or namespace's location.
    """

    catalog: str
    scope: str = "PRINCIPAL_ROLE:ALL"

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        if not self.catalog:
            raise ValueError("catalog is empty")


class PolarisCatalog(IcebergProtocol):
    """The namespaces and Lance tables of a catalog in Polaris."""

    settings_type = PolarisSettings
    kind = "polaris"
    table_lists = ((CATALOG_SERVICE, "tables"), ("polaris/v1", "generic-tables"))

    def __init__(self, settings: PolarisSettings) -> None:
        """Parse; nothing is sent yet."""
        self._settings = settings
        name = f"The Polaris catalog {settings.catalog}"
        root = f"{settings.uri.rstrip('/').removesuffix(_API)}{_API}"
        own_tokens = f"{root}/{CATALOG_SERVICE}/oauth/tokens"
        client = json_client(name, replace(settings, oauth2_uri=settings.oauth2_uri or own_tokens))
        super().__init__(name, client, root, settings.catalog, settings)

    def get_table(self, table: Id) -> MountedTable:
        return self._described(table, self._load(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        self.check_new_table(table)
        check_properties(properties)
        place = canonical_location(location) if location is not None else self._default_location(table)
        body = {
            "name": table.name,
            "format": MARKER,
            "base-location": location_uri(place),
            "properties": {**properties, **MARKER_PROPERTIES},
        }
        entry = self.create_entry(table, body, _Entry)
        self._formats.add(table)
        return self._described(table, entry)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        raise unsupported(self._name, "change the properties of a table", _NO_REQUEST)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        raise unsupported(self._name, "rename a table", _NO_REQUEST)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        self.delete_entry(table)
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what the catalog vends for a table; it alone decides whether that is enough to write."""
        described = self.get_table(table)
        try:
            entry: _Entry = self.request_tables("GET", table.parent, table.name, headers=_VENDED, expected=_Entry)
        except ResponseError as error:
            if error.status in _CANNOT_VEND:
                return None
            raise self.translated(error, missing_table(table)) from error
        vended = entry.get("storage-access-configs") or entry.get("storage-credentials") or ()
        return iceberg_credentials(described.location, {}, vended)

    def _default_location(self, table: Id) -> str:
        """Return a location below the mount's root, or that of the nearest namespace that has one."""
        if self._settings.root:
            return location_below_root(self._settings.root, table)
        location = self.get_namespace(table.parent).get("location")
        if not location:
            raise unsupported(
                self._name, f"choose a location for '{table}'", "its namespace has none: name one, or a root"
            )
        return new_table_location(normalized_location(location, is_encoded=False), table)

    def _check_format(self, table: Id) -> _Entry:
        return self._load(table)

    def _load(self, table: Id) -> _Entry:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        entry: _Entry = self.load_entry(table, _Entry)
        if entry["table"]["format"].casefold() != MARKER:
            raise other_format_error(self._name, table)
        return entry

    def _described(self, table: Id, entry: _Entry) -> MountedTable:
        details = entry["table"]
        location = details.get("base-location")
        if not location:
            raise MalformedAnswerError(f"{self._name} does not say where the table '{table}' is.")
        return MountedTable(
            table,
            normalized_location(location, is_encoded=False),
            user_properties(details.get("properties")),
        )
