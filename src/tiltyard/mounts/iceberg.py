"""An Iceberg REST catalog: a Lance table is an Iceberg table of one column and no rows, with Lance's marker.

The catalog writes Iceberg's own metadata into `metadata/` of the table's folder, beside Lance's files. Lists of tables
are names alone, so that each table has to be loaded to know its format.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
)

from tiltyard.model.ids import Id
from tiltyard.mounts.call_deadline import CallDeadline
from tiltyard.mounts.lance_entries import (
    MARKER_PROPERTIES,
    check_properties,
    is_lance,
    normalized_location,
    other_format_error,
    user_properties,
)
from tiltyard.mounts.mount_settings import SECRET, check_network
from tiltyard.mounts.mounted_catalog import MountedTable, Page, Properties, StorageCredentials, check_limit
from tiltyard.storage.locations import canonical_location

_LEVEL_SEPARATOR = "\x1f"
_HIDDEN_PROPERTIES = frozenset(("write.parquet.compression-codec",))
"""What catalogs add for Iceberg's own writers."""
_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "dummy", "required": False, "type": "string"}],
}
"""Of every entry: upstream's, so that all clients write the same."""
_LANCE_OPTIONS = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "client.region": "aws_region",
    "gcs.oauth2.token": "google_storage_token",
}
"""Iceberg's words for storage options, and Lance's."""
_EXPIRY_KEYS = ("s3.session-token-expires-at-ms", "expiration-time", "gcs.oauth2.token-expires-at")
_ERRORS: dict[int, tuple[type[LanceNamespaceError], str]] = {
    400: (InvalidInputError, "does not take this"),
    401: (UnauthenticatedError, "does not accept the mount's token"),
    403: (PermissionDeniedError, "refuses this to the mount"),
    409: (ConcurrentModificationError, "has another version of this by now: try again"),
    419: (UnauthenticatedError, "takes the mount's token for expired"),
    429: (ThrottlingError, "is throttled: try again in a moment"),
}


class IcebergError(Exception):
    """A response that is an error: its status, and the type of exception that it names."""

    def __init__(self, status: int, exception: str) -> None:
        super().__init__(f"{status} {exception}")
        self.status = status
        self.exception = exception


@dataclass(frozen=True)
class IcebergSettings:
    """How to reach a catalog; `token` is a bearer token.

    `root` is the location below which new tables are put where they get none; without it, the catalog decides.
    """

    uri: str
    warehouse: str = ""
    token: str = field(default="", repr=False, metadata=SECRET)
    root: str = ""
    timeout: float = 10.0
    connect_timeout: float = 3.0
    connections: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        check_network(self.timeout, self.connect_timeout, self.connections, self.root)
        if not self.uri.startswith(("http://", "https://")):
            raise ValueError(f"uri is {self.uri!r}: http:// or https://")


class IcebergCatalog:
    """The namespaces and Lance tables of a catalog, or of one of its warehouses."""

    settings_type = IcebergSettings
    kind = "iceberg"
    levels = None

    def __init__(self, settings: IcebergSettings) -> None:
        """Parse; nothing is sent yet."""
        self._settings = settings
        self._name = f"The Iceberg catalog {settings.uri}"
        self._pool = urllib3.PoolManager(
            maxsize=settings.connections,
            block=True,
            retries=urllib3.Retry(connect=1, read=0, redirect=0, other=0),
            timeout=urllib3.Timeout(total=settings.timeout, connect=settings.connect_timeout),
        )
        self._deadline = CallDeadline(self._name, settings.timeout, settings.connections)
        self._loaders = ThreadPoolExecutor(min(8, settings.connections), "mount")
        self._lock = threading.Lock()
        self._base: str | None = None

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> Page:
        self.get_namespace(parent)
        query = {"parent": _LEVEL_SEPARATOR.join(parent)} if parent else {}
        names, following = self._page(("namespaces",), query, limit, token)
        return Page(tuple(name[-1] for name in names), following)

    def get_namespace(self, namespace: Id) -> Properties:
        if not namespace:
            return {}
        try:
            return dict(self._request("GET", _namespace_path(namespace)).get("properties") or {})
        except IcebergError as error:
            raise self._translated(error, _missing_namespace(namespace)) from error

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if not namespace:
            raise NamespaceAlreadyExistsError("The root namespace always exists.")
        self._check_new_names(namespace)
        self.get_namespace(namespace.parent)
        body = {"namespace": list(namespace), "properties": dict(properties)}
        try:
            self._request("POST", ("namespaces",), body=body)
        except IcebergError as error:
            exists = NamespaceAlreadyExistsError(f"There is a namespace '{namespace}' already.")
            raise self._translated(error, _missing_namespace(namespace.parent), exists) from error

    def update_namespace_properties(self, namespace: Id, changes: Mapping[str, str | None]) -> Properties:
        self.get_namespace(namespace)
        try:
            self._request("POST", (*_namespace_path(namespace), "properties"), body=_changes(changes))
        except IcebergError as error:
            raise self._translated(error, _missing_namespace(namespace)) from error
        return self.get_namespace(namespace)

    def drop_namespace(self, namespace: Id) -> None:
        if not namespace:
            raise InvalidInputError(f"The root namespace cannot be dropped: unmount {self._name}.")
        not_empty = NamespaceNotEmptyError(f"The namespace '{namespace}' has namespaces or tables: drop them.")
        if self.list_namespaces(namespace, 1).names or self._page(_tables_path(namespace), {}, 1, None)[0]:
            raise not_empty
        try:
            self._request("DELETE", _namespace_path(namespace))
        except IcebergError as error:
            raise self._translated(error, _missing_namespace(namespace), not_empty) from error

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> Page:
        check_limit(limit)
        if not namespace:
            return Page(())
        self.get_namespace(namespace)
        tables: list[str] = []
        while True:
            room = None if limit is None else limit - len(tables)
            entries, token = self._page(_tables_path(namespace), {}, room, token)
            names = [entry["name"] for entry in entries]
            found = self._loaders.map(lambda name: self._is_lance(Id((*namespace, name))), names)
            tables += [name for name, is_table in zip(names, found, strict=True) if is_table]
            if token is None or (limit is not None and len(tables) >= limit):
                return Page(tuple(tables), token)

    def get_table(self, table: Id) -> MountedTable:
        return _described(table, self._load(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        if len(table) < 2:
            raise InvalidInputError(f"{self._name} has tables in namespaces alone, and none at its root.")
        self._check_new_names(table)
        check_properties(properties, _HIDDEN_PROPERTIES)
        place = canonical_location(location) if location is not None else self._default_location(table)
        self.get_namespace(table.parent)
        body = {
            "name": table.name,
            "schema": _SCHEMA,
            "properties": {**properties, **MARKER_PROPERTIES},
            "stage-create": False,
            **({"location": _as_uri(place)} if place else {}),
        }
        try:
            return _described(table, self._request("POST", _tables_path(table.parent), body=body))
        except IcebergError as error:
            exists = TableAlreadyExistsError(f"There is a table '{table}' already.")
            raise self._translated(error, _missing_namespace(table.parent), exists) from error

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        check_properties(changes, _HIDDEN_PROPERTIES)
        entry = self._load(table)
        changed = _changes(changes)
        updates = [
            {"action": "set-properties", "updates": changed["updates"]},
            {"action": "remove-properties", "removals": changed["removals"]},
        ]
        requirement = {"type": "assert-table-uuid", "uuid": entry["metadata"]["table-uuid"]}
        body = {"requirements": [requirement], "updates": updates}
        try:
            self._request("POST", _table_path(table), body=body)
        except IcebergError as error:
            raise self._translated(error, _missing_table(table)) from error
        return self.get_table(table)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        if len(new_id) < 2:
            raise InvalidInputError(f"{self._name} has tables in namespaces alone, and none at its root.")
        self._check_new_names(new_id)
        self._load(table)
        self.get_namespace(new_id.parent)
        body = {
            "source": {"namespace": list(table.parent), "name": table.name},
            "destination": {"namespace": list(new_id.parent), "name": new_id.name},
        }
        try:
            self._request("POST", ("tables", "rename"), body=body)
        except IcebergError as error:
            exists = TableAlreadyExistsError(f"There is a table '{new_id}' already.")
            raise self._translated(error, _missing_table(table), exists) from error
        return self.get_table(new_id)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        try:
            self._request("DELETE", _table_path(table), {"purgeRequested": "false"})
        except IcebergError as error:
            raise self._translated(error, _missing_table(table)) from error
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what the catalog vends for a table; it alone decides whether that is enough to write."""
        entry = self._load(table, {"X-Iceberg-Access-Delegation": "vended-credentials"})
        config = dict(entry.get("config") or {})
        for credentials in entry.get("storage-credentials") or ():
            if entry["metadata"]["location"].startswith(credentials["prefix"]):
                config |= credentials["config"]
        options = {name: config[key] for key, name in _LANCE_OPTIONS.items() if key in config}
        if not any(name.endswith(("secret_access_key", "token")) for name in options):
            return None
        expiry = next((int(config[key]) for key in _EXPIRY_KEYS if key in config), None)
        return StorageCredentials(options, expiry)

    def close(self) -> None:
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._deadline.close()
        self._pool.clear()

    def _default_location(self, table: Id) -> str | None:
        if not self._settings.root:
            return None
        return "/".join((canonical_location(self._settings.root).rstrip("/"), *table))

    def _load(self, table: Id, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        if len(table) < 2 or not all(map(_can_be_name, table)):
            self.get_namespace(table.parent)
            raise _missing_table(table)
        try:
            entry = self._request("GET", _table_path(table), headers=headers)
        except IcebergError as error:
            if error.status == 404:
                self.get_namespace(table.parent)
            raise self._translated(error, _missing_table(table)) from error
        if not is_lance(entry["metadata"].get("properties")):
            raise other_format_error(self._name, table)
        return entry

    def _is_lance(self, table: Id) -> bool:
        try:
            self._load(table)
        except TableNotFoundError:
            return False
        return True

    def _page(
        self, path: tuple[str, ...], query: Mapping[str, str], limit: int | None, token: str | None
    ) -> tuple[list[Any], str | None]:
        """Return entries of a list and the token of the next page; some catalogs have no pages, or larger ones.

        A token is a catalog's own, and how many of that page's entries have been returned already.
        """
        check_limit(limit)
        page, skipped = msgspec.json.decode(token, type=tuple[str, int]) if token else ("", 0)
        entries: list[Any] = []
        while True:
            paging = {} if limit is None else {"pageSize": str(limit), "pageToken": page}
            try:
                response = self._request("GET", path, {**query, **paging})
            except IcebergError as error:
                raise self._translated(error, NamespaceNotFoundError("This namespace is not here.")) from error
            all_entries = response.get("namespaces" if path == ("namespaces",) else "identifiers") or []
            rest = all_entries[skipped:]
            if limit is not None and len(entries) + len(rest) > limit:
                room = limit - len(entries)
                return entries + rest[:room], msgspec.json.encode((page, skipped + room)).decode()
            entries += rest
            following = response.get("next-page-token")
            if following and following == page:
                raise InternalError(f"{self._name} repeats a page.")
            if not following:
                return entries, None
            page, skipped = following, 0
            if limit is not None and len(entries) >= limit:
                return entries, msgspec.json.encode((page, 0)).decode()

    def _check_new_names(self, path: Id) -> None:
        for name in path:
            if not _can_be_name(name):
                raise InvalidInputError(
                    f"{self._name} cannot hold the name '{name}': leave out '/', '\\', '%' and '.'."
                )

    def _base_url(self) -> str:
        """Return the URL below which everything is, with the prefix that the catalog wants."""
        with self._lock:
            if self._base is None:
                root = f"{self._settings.uri.rstrip('/')}/v1"
                warehouse = {"warehouse": self._settings.warehouse} if self._settings.warehouse else {}
                try:
                    config = self._send("GET", f"{root}/config?{urlencode(warehouse)}", None, {})
                except IcebergError as error:
                    unusable = ServiceUnavailableError(f"{self._name} has no such warehouse: check the mount.")
                    raise self._translated(error, unusable) from error
                values = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}
                prefix = values.get("prefix", "")
                self._base = f"{root}/{prefix}" if prefix else root
            return self._base

    def _request(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return its response. Raises IcebergError, ServiceUnavailableError."""
        url = "/".join((self._base_url(), *(quote(segment, safe="") for segment in path)))
        return self._send(method, f"{url}?{urlencode(query)}" if query else url, body, headers or {})

    def _send(self, method: str, url: str, body: object, headers: Mapping[str, str]) -> dict[str, Any]:
        authorization = {"Authorization": f"Bearer {self._settings.token}"} if self._settings.token else {}
        content = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = self._deadline.run(
                self._pool.request,
                method,
                url,
                body=None if body is None else msgspec.json.encode(body),
                headers={**authorization, **content, **headers},
                preload_content=True,
            )
        except urllib3.exceptions.HTTPError as error:
            rest = "try again" if method == "GET" else "what was to change may have changed"
            raise ServiceUnavailableError(f"{self._name} does not answer: {rest}.") from error
        return self._decoded(response.status, response.data)

    def _decoded(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            content: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any]) if data else {}
        except msgspec.MsgspecError as error:
            if status < 400:
                raise InternalError(f"{self._name} answers what is no JSON.") from error
            content = {}
        if status >= 300:
            details = content.get("error")
            raise IcebergError(status, str(details.get("type", "")) if isinstance(details, dict) else "")
        return content

    def _translated(
        self, error: IcebergError, missing: LanceNamespaceError, conflict: LanceNamespaceError | None = None
    ) -> LanceNamespaceError:
        """Return the error of the specification: `missing` for 404, `conflict` for 409."""
        if error.status == 404:
            return missing
        if error.status == 409 and conflict is not None and error.exception != "CommitFailedException":
            return conflict
        if error.status in (502, 503, 504):
            return ServiceUnavailableError(f"{self._name} does not answer: try again in a moment.")
        error_type, reason = _ERRORS.get(error.status, (InternalError, f"has failed: {error}"))
        return error_type(f"{self._name} {reason}.")


def _can_be_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not any(character in "/\\%." for character in name)


def _missing_namespace(namespace: Id) -> NamespaceNotFoundError:
    return NamespaceNotFoundError(f"No namespace '{namespace}' here.")


def _missing_table(table: Id) -> TableNotFoundError:
    return TableNotFoundError(f"No table '{table}' here.")


def _namespace_path(namespace: Id) -> tuple[str, ...]:
    return "namespaces", _LEVEL_SEPARATOR.join(namespace)


def _tables_path(namespace: Id) -> tuple[str, ...]:
    return *_namespace_path(namespace), "tables"


def _table_path(table: Id) -> tuple[str, ...]:
    return *_tables_path(table.parent), table.name


def _changes(changes: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "updates": {key: value for key, value in changes.items() if value is not None},
        "removals": [key for key, value in changes.items() if value is None],
    }


def _as_uri(location: str) -> str:
    return f"file://{location}" if location.startswith("/") else location


def _described(table: Id, entry: Mapping[str, Any]) -> MountedTable:
    metadata = entry["metadata"]
    return MountedTable(
        table,
        normalized_location(metadata["location"], is_encoded=False),
        user_properties(metadata.get("properties"), _HIDDEN_PROPERTIES),
        stable_id=metadata["table-uuid"],
        version_token=entry.get("metadata-location"),
    )
