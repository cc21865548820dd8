"""Generic tables of Apache Polaris: a table has a format, `lance`, and a location, in namespaces of Iceberg's protocol.

A generic table can be neither changed nor renamed. Lists of them are names alone, of all formats, so that each has to
be loaded to know its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Required, TypedDict

from tiltyard.model.ids import Id
from tiltyard.mounts.backends.iceberg_namespaces import (
    CATALOG_SERVICE,
    IcebergNamespaces,
    can_be_name,
    location_uri,
    namespace_path,
)
from tiltyard.mounts.catalog_errors import (
    MalformedAnswerError,
    existing_table,
    missing_namespace,
    missing_table,
    unsupported,
)
from tiltyard.mounts.http.client import HttpSettings, ResponseError
from tiltyard.mounts.http.oauth2 import json_client
from tiltyard.mounts.lance_entries import (
    MARKER,
    MARKER_PROPERTIES,
    check_properties,
    new_table_location,
    normalized_location,
    other_format_error,
    user_properties,
)
from tiltyard.mounts.lookup_cache import TableFormats
from tiltyard.mounts.mount_settings import check_age
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials
from tiltyard.mounts.storage_credentials import PrefixCredentials, iceberg_credentials
from tiltyard.storage.locations import canonical_location

_API = "/api/catalog"
_GENERIC_SERVICE = "polaris/v1"
_GENERIC_TABLES = "generic-tables"
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
class PolarisSettings(HttpSettings):
    """How to reach a server, with a token, or as a client with its own tokens or those of `oauth2_uri`.

    `uri` is the server, `catalog` one of its catalogs. `formats_age` is for how many seconds the formats of tables are
    remembered. Without `root`, new tables are put below their catalog's or namespace's location.
    """

    catalog: str
    scope: str = "PRINCIPAL_ROLE:ALL"
    formats_age: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        check_age(formats_age=self.formats_age)
        if not self.catalog:
            raise ValueError("catalog is empty")


class PolarisCatalog:
    """The namespaces and Lance tables of a catalog in Polaris."""

    settings_type = PolarisSettings
    kind = "polaris"
    levels = None

    def __init__(self, settings: PolarisSettings) -> None:
        """Parse; nothing is sent yet."""
        self._settings = settings
        self._name = f"The Polaris catalog {settings.catalog}"
        root = f"{settings.uri.rstrip('/').removesuffix(_API)}{_API}"
        own_tokens = f"{root}/{CATALOG_SERVICE}/oauth/tokens"
        self._client = json_client(self._name, replace(settings, oauth2_uri=settings.oauth2_uri or own_tokens))
        self._namespaces = IcebergNamespaces(self._name, self._client, root, settings.catalog, settings.timeout)
        self._formats = TableFormats(self._load, settings.connections, settings.formats_age)

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        return self._namespaces.list_children(parent, limit, token)

    def get_namespace(self, namespace: Id) -> Properties:
        return self._namespaces.get(namespace)

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        self._namespaces.create(namespace, properties)

    def update_namespace_properties(self, namespace: Id, changes: Mapping[str, str | None]) -> Properties:
        return self._namespaces.update_properties(namespace, changes)

    def drop_namespace(self, namespace: Id) -> None:
        self._namespaces.drop(namespace, (CATALOG_SERVICE, "tables"), (_GENERIC_SERVICE, _GENERIC_TABLES))

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if not namespace:
            return NamePage(())
        self._namespaces.check_existing(namespace)
        entries, following = self._namespaces.entries(
            namespace,
            _tables_path(namespace),
            "identifiers",
            limit,
            token,
            service=_GENERIC_SERVICE,
            is_kept=lambda chunk: self._formats.are_lance([Id((*namespace, entry["name"])) for entry in chunk]),
        )
        return NamePage(tuple(entry["name"] for entry in entries), following)

    def get_table(self, table: Id) -> MountedTable:
        return self._described(table, self._load(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        self._namespaces.check_new_table(table)
        check_properties(properties)
        place = canonical_location(location) if location is not None else self._default_location(table)
        body = {
            "name": table.name,
            "format": MARKER,
            "base-location": location_uri(place),
            "properties": {**properties, **MARKER_PROPERTIES},
        }
        try:
            entry = self._request("POST", _tables_path(table.parent), body=body)
        except ResponseError as error:
            missing, exists = missing_namespace(table.parent), existing_table(table)
            raise self._namespaces.translated(error, missing, exists) from error
        self._formats.add(table)
        return self._described(table, entry)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        raise unsupported(self._name, "change the properties of a table", _NO_REQUEST)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        raise unsupported(self._name, "rename a table", _NO_REQUEST)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        try:
            self._namespaces.request("DELETE", _table_path(table), service=_GENERIC_SERVICE)
        except ResponseError as error:
            raise self._namespaces.translated(error, missing_table(table)) from error
        self._formats.forget(table)
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what the catalog vends for a table; it alone decides whether that is enough to write."""
        described = self.get_table(table)
        try:
            entry = self._request("GET", _table_path(table), headers=_VENDED)
        except ResponseError as error:
            if error.status in _CANNOT_VEND:
                return None
            raise self._namespaces.translated(error, missing_table(table)) from error
        vended = entry.get("storage-access-configs") or entry.get("storage-credentials") or ()
        return iceberg_credentials(described.location, {}, vended)

    def close(self) -> None:
        self._client.close()

    def _default_location(self, table: Id) -> str:
        """Return a location below the mount's root, or that of the nearest namespace that has one."""
        if self._settings.root:
            return new_table_location(
                "/".join((canonical_location(self._settings.root).rstrip("/"), *table.parent)), table
            )
        location = self._namespaces.get(table.parent).get("location")
        if not location:
            raise unsupported(
                self._name, f"choose a location for '{table}'", "its namespace has none: name one, or a root"
            )
        return new_table_location(normalized_location(location, is_encoded=False), table)

    def _load(self, table: Id) -> _Entry:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        if len(table) < 2 or not all(map(can_be_name, table)):
            self._namespaces.get(table.parent)
            raise missing_table(table)
        try:
            entry = self._request("GET", _table_path(table))
        except ResponseError as error:
            if error.status == 404:
                self._namespaces.get(table.parent)
            raise self._namespaces.translated(error, missing_table(table)) from error
        if entry["table"]["format"].casefold() != MARKER:
            raise other_format_error(self._name, table)
        return entry

    def _request(
        self, method: str, path: tuple[str, ...], *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> _Entry:
        entry: _Entry = self._namespaces.request(
            method, path, body=body, headers=headers, service=_GENERIC_SERVICE, expected=_Entry
        )
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


def _tables_path(namespace: Id) -> tuple[str, ...]:
    return *namespace_path(namespace), _GENERIC_TABLES


def _table_path(table: Id) -> tuple[str, ...]:
    return *_tables_path(table.parent), table.name
