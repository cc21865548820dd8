"""An Iceberg REST catalog: a Lance table is an Iceberg table of one column and no rows, with Lance's marker.

The catalog writes Iceberg's own metadata into `metadata/` of the table's folder, beside Lance's files. Lists of tables
are names alone, so that each table has to be loaded to know its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Required, TypedDict

from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import Id
from tiltyard.mounts.backends.iceberg_protocol import (
    FormatSettings,
    IcebergProtocol,
    location_uri,
    property_changes,
)
from tiltyard.mounts.catalog_errors import existing_table, missing_table
from tiltyard.mounts.http.aws_keys import AwsKeys, load_aws
from tiltyard.mounts.http.client import RequestAuthorization, ResponseError
from tiltyard.mounts.http.oauth2 import json_client
from tiltyard.mounts.lance_entries import (
    MARKER_PROPERTIES,
    check_properties,
    is_lance,
    location_below_root,
    normalized_location,
    other_format_error,
    user_properties,
)
from tiltyard.mounts.mounted_catalog import MountedTable, Properties, StorageCredentials
from tiltyard.mounts.storage_credentials import PrefixCredentials, iceberg_credentials
from tiltyard.storage.locations import canonical_location

_HIDDEN_PROPERTIES = frozenset(("write.parquet.compression-codec", "nessie."))
"""What catalogs add for Iceberg's own writers, and about themselves."""
_HIDDEN_IN_NESSIE = _HIDDEN_PROPERTIES | {"created-at", "gc.enabled"}
_NESSIE_COMMIT = "nessie.commit.id"
_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}],
}
"""Of every entry: upstream's, so that all clients write the same."""
_FEW_SNAPSHOTS = {"snapshots": "refs"}
"""Of Iceberg's own tables, of which there may be thousands, only those that have names."""
_VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}


_Metadata = TypedDict(
    "_Metadata",
    {"location": Required[str], "table-uuid": Required[str], "properties": dict[str, str] | None},
    total=False,
)
_Entry = TypedDict(
    "_Entry",
    {
        "metadata": Required[_Metadata],
        "metadata-location": str | None,
        "config": dict[str, str] | None,
        "storage-credentials": list[PrefixCredentials] | None,
    },
    total=False,
)
"""A table as the catalog answers it."""


@dataclass(frozen=True, kw_only=True)
class IcebergSettings(FormatSettings, AwsKeys):
    """How to reach a catalog, with a token, as an OAuth2 client, or by AWS's signatures.

    `signing_name` is the service that AWS knows the catalog by, `glue` or `s3tables`, in `signing_region`. `oauth2_uri`
    is the catalog's own without one. `formats_age` is for how many seconds the formats of tables are remembered.
    Without `root`, the catalog decides where new tables are put.
    """

    warehouse: str = ""
    signing_name: str = ""
    signing_region: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        self.check_keys()
        if bool(self.signing_name) != bool(self.signing_region):
            raise ValueError("signing_name and signing_region come together")
        if self.signing_name and (self.token or self.client_id):
            raise ValueError("signing_name excludes token and client_id")


class IcebergCatalog(IcebergProtocol):
    """The namespaces and Lance tables of a catalog, or of one of its warehouses."""

    settings_type = IcebergSettings
    kind = "iceberg"

    def __init__(self, settings: IcebergSettings) -> None:
        """Parse; nothing is sent yet. Raises InvalidInputError for unusable keys of AWS."""
        self._settings = settings
        name = f"The Iceberg catalog {settings.uri}"
        own_tokens = f"{settings.uri.rstrip('/')}/v1/oauth/tokens"
        http = replace(settings, oauth2_uri=settings.oauth2_uri or own_tokens) if settings.client_id else settings
        client = json_client(name, http, _signatures(name, settings))
        super().__init__(name, client, settings.uri, settings.warehouse, settings)

    def get_table(self, table: Id) -> MountedTable:
        return _described(table, self._load(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        self.check_new_table(table)
        check_properties(properties, _HIDDEN_PROPERTIES)
        place = canonical_location(location) if location is not None else self._default_location(table)
        self.get_namespace(table.parent)
        body = {
            "name": table.name,
            "schema": _SCHEMA,
            "properties": {**properties, **MARKER_PROPERTIES},
            "stage-create": False,
            **({"location": location_uri(place)} if place else {}),
        }
        described = _described(table, self.create_entry(table, body, _Entry))
        if location is not None and described.location != place:
            self.deregister_table(table)
            raise InvalidInputError(f"{self._name} puts tables at locations of its own choice: leave the location out.")
        self._formats.add(table)
        return described

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        check_properties(changes, _HIDDEN_PROPERTIES)
        entry = self._load(table)
        changed = property_changes(changes)
        updates = [
            {"action": "set-properties", "updates": changed["updates"]},
            {"action": "remove-properties", "removals": changed["removals"]},
        ]
        requirement = {"type": "assert-table-uuid", "uuid": entry["metadata"]["table-uuid"]}
        body = {"requirements": [requirement], "updates": updates}
        try:
            self.request_tables("POST", table.parent, table.name, body=body)
        except ResponseError as error:
            raise self.translated(error, missing_table(table)) from error
        return self.get_table(table)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        self.check_new_table(new_id)
        self._load(table)
        self.get_namespace(new_id.parent)
        body = {
            "source": {"namespace": list(table.parent), "name": table.name},
            "destination": {"namespace": list(new_id.parent), "name": new_id.name},
        }
        try:
            self.request("POST", ("tables", "rename"), body=body)
        except ResponseError as error:
            raise self.translated(error, missing_table(table), existing_table(new_id)) from error
        self._formats.forget(table)
        self._formats.add(new_id)
        return self.get_table(new_id)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        self.delete_entry(table, {"purgeRequested": "false"})
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what the catalog vends for a table; it alone decides whether that is enough to write."""
        entry = self._load(table, headers=_VENDED)
        location = entry["metadata"]["location"]
        return iceberg_credentials(location, entry.get("config") or {}, entry.get("storage-credentials") or ())

    def _default_location(self, table: Id) -> str | None:
        if not self._settings.root:
            return None
        return location_below_root(self._settings.root, table)

    def _check_format(self, table: Id) -> _Entry:
        return self._load(table, query=_FEW_SNAPSHOTS)

    def _load(
        self, table: Id, *, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> _Entry:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        entry: _Entry = self.load_entry(table, _Entry, query, headers)
        if not is_lance(entry["metadata"].get("properties")):
            raise other_format_error(self._name, table)
        return entry


def _signatures(name: str, settings: IcebergSettings) -> RequestAuthorization | None:
    """Return AWS's signatures, where the settings name the service that checks them."""
    if not settings.signing_name:
        return None
    signatures: RequestAuthorization = load_aws("iceberg").AwsSignatures(
        name, settings, settings.signing_name, settings.signing_region
    )
    return signatures


def _described(table: Id, entry: _Entry) -> MountedTable:
    metadata = entry["metadata"]
    properties = metadata.get("properties") or {}
    hidden = _HIDDEN_IN_NESSIE if _NESSIE_COMMIT in properties else _HIDDEN_PROPERTIES
    return MountedTable(
        table,
        normalized_location(metadata["location"], is_encoded=False),
        user_properties(properties, hidden),
        stable_id=metadata["table-uuid"],
    )
