"""Unity Catalog, by its REST API: catalogs and schemas are two levels of namespaces, tables have Lance's marker.

A Lance table is an external one, of which Unity deletes no data. Its properties can be neither changed nor its name,
and those of a namespace are written whole: of two changes at the same time the last one stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Required, TypedDict
from urllib.parse import quote, urlencode

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.model.ids import Id
from tiltyard.mounts.backends.iceberg_protocol import location_uri
from tiltyard.mounts.catalog_errors import (
    UNSUPPORTED,
    MalformedAnswerError,
    existing_namespace,
    existing_table,
    http_error,
    impossible_name,
    missing_namespace,
    missing_table,
    non_empty_namespace,
    root_dropped,
    unsupported,
)
from tiltyard.mounts.http.client import HttpSettings, ResponseError
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
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials
from tiltyard.mounts.paged_lists import collect_page
from tiltyard.mounts.storage_credentials import UnityCredentials, unity_credentials
from tiltyard.storage.locations import canonical_location

_API = "/api/2.1/unity-catalog"
_MAX_PAGE_SIZE = 50
"""Tables that Databricks lists at once with all that is known of each."""
_NEW_NAME = re.compile(r"[a-z0-9_-]{1,255}")
_NAME = re.compile(r"[A-Za-z0-9_@-]{1,255}")
_EXISTS, _MISSING = "ALREADY_EXISTS", ("NOT_FOUND", "DOES_NOT_EXIST")
"""How codes of errors end, of whatever they are about."""
_NOT_EMPTY = frozenset(("FAILED_PRECONDITION", "INVALID_STATE", "CATALOG_NOT_EMPTY", "SCHEMA_NOT_EMPTY"))
_CANNOT_VEND = frozenset((400, 404, 501))
_NO_REQUEST = "Unity Catalog has no request for it"
_COLUMN = {
    "name": "__placeholder_id",
    "type_text": "bigint",
    "type_json": '{"name":"__placeholder_id","type":"long","nullable":true,"metadata":{}}',
    "type_name": "LONG",
    "position": 0,
    "nullable": True,
}
"""What every table has: here it says that this is no table for engines without Lance."""


class _Entry(TypedDict, total=False):
    """A catalog, a schema or a table."""

    name: Required[str]
    properties: dict[str, str] | None
    storage_location: str | None
    table_id: str | None
    table_type: str | None


class _Page(TypedDict, total=False):
    catalogs: list[_Entry] | None
    schemas: list[_Entry] | None
    tables: list[_Entry] | None
    next_page_token: str | None


@dataclass(frozen=True, kw_only=True)
class UnitySettings(HttpSettings):
    """How to reach a server, with a token or as an OAuth2 client of `oauth2_uri`.

    New tables that get no location need `root`: what lies below a catalog's own location is Unity's.
    """

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        if self.client_id and not self.oauth2_uri:
            raise ValueError("client_id needs oauth2_uri")


class UnityCatalog:
    """The catalogs, schemas and Lance tables of a server."""

    settings_type = UnitySettings
    kind = "unity"
    levels = 2

    def __init__(self, settings: UnitySettings) -> None:
        """Parse; nothing is sent yet."""
        self._settings = settings
        self._name = f"The Unity Catalog {settings.uri}"
        self._root = f"{settings.uri.rstrip('/').removesuffix(_API)}{_API}"
        self._client = json_client(self._name, settings)

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        self._check_existing(parent)
        if len(parent) == self.levels:
            self.get_namespace(parent)
            return NamePage(())
        kind, query = ("schemas", {"catalog_name": parent.name}) if parent else ("catalogs", {})
        return self._list(parent, kind, query, limit, token)

    def get_namespace(self, namespace: Id) -> Properties:
        return dict(self._get_entry(namespace).get("properties") or {}) if namespace else {}

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if not namespace:
            raise existing_namespace(namespace)
        self._check_new(namespace, self.levels)
        parent = {"catalog_name": namespace.parent.name} if len(namespace) == self.levels else {}
        body = {"name": namespace.name, **parent, "properties": dict(properties)}
        with self._raising(missing_namespace(namespace.parent), existing_namespace(namespace)):
            self._request("POST", "schemas" if parent else "catalogs", body=body)

    def drop_namespace(self, namespace: Id) -> None:
        if not namespace:
            raise root_dropped(self._name)
        self._get_entry(namespace)
        is_schema = len(namespace) == self.levels
        kind, query = ("tables", _schema_query(namespace)) if is_schema else ("schemas", _catalog_query(namespace))
        if self._entries(namespace, kind, query, 1, None)[0]:
            raise non_empty_namespace(namespace)
        with self._raising(missing_namespace(namespace), not_empty=non_empty_namespace(namespace)):
            self._request("DELETE", _namespace_path(namespace), {"force": "false"})

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        self._check_existing(namespace)
        if len(namespace) < self.levels:
            self.get_namespace(namespace)
            return NamePage(())
        entries, following = self._entries(namespace, "tables", _schema_query(namespace), limit, token, only_lance=True)
        return NamePage(tuple(entry["name"] for entry in entries), following)

    def get_table(self, table: Id) -> MountedTable:
        return self._described(table, self._get_table_entry(table))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        self._check_new(table, self.levels + 1)
        if len(table) != self.levels + 1:
            raise InvalidInputError(f"{self._name} has tables in schemas alone: '{table}' is not in one.")
        check_properties(properties)
        place = canonical_location(location) if location is not None else self._default_location(table)
        body: dict[str, object] = {
            "name": table.name,
            **_schema_query(table.parent),
            "table_type": "EXTERNAL",
            "data_source_format": "TEXT",
            "columns": [_COLUMN],
            "storage_location": location_uri(place),
            "properties": {**properties, **MARKER_PROPERTIES},
        }
        with self._raising(missing_namespace(table.parent), existing_table(table)):
            return self._described(table, self._request("POST", "tables", body=body, expected=_Entry))

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        raise unsupported(self._name, "change the properties of a table", _NO_REQUEST)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        raise unsupported(self._name, "rename a table", _NO_REQUEST)

    def deregister_table(self, table: Id) -> MountedTable:
        entry = self._get_table_entry(table)
        if entry.get("table_type") != "EXTERNAL":
            raise unsupported(self._name, f"deregister '{table}'", "it is not external, and would lose its files")
        with self._raising(missing_table(table)):
            self._request("DELETE", _table_path(table))
        return self._described(table, entry)

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what Unity vends to the mount's principal; None for storages that it has no credentials of."""
        entry = self._get_table_entry(table)
        body = {"table_id": entry.get("table_id"), "operation": "READ_WRITE" if writable else "READ"}
        try:
            response = self._request("POST", "temporary-table-credentials", body=body, expected=UnityCredentials)
        except ResponseError as error:
            if error.status in _CANNOT_VEND:
                return None
            raise self._translated(error, missing_table(table)) from error
        vended = unity_credentials(self._described(table, entry).location, response)
        return None if vended is None else replace(vended, is_read_only=not writable)

    def close(self) -> None:
        self._client.close()

    def _default_location(self, table: Id) -> str:
        if not self._settings.root:
            raise InvalidInputError(f"{self._name} chooses no location for a table: name one, or a root of the mount.")
        return location_below_root(self._settings.root, table)

    def _get_entry(self, namespace: Id) -> _Entry:
        """Return a catalog or schema. Raises NamespaceNotFoundError."""
        self._check_existing(namespace)
        with self._raising(missing_namespace(namespace)):
            entry: _Entry = self._request("GET", _namespace_path(namespace), expected=_Entry)
        if entry["name"] != namespace.name:  # found under another case of its letters
            raise missing_namespace(namespace)
        return entry

    def _get_table_entry(self, table: Id) -> _Entry:
        """Return a Lance table's entry. Raises TableNotFoundError, NamespaceNotFoundError."""
        if len(table) != self.levels + 1 or not all(map(_NAME.fullmatch, table)):
            if table.parent:
                self._get_entry(table.parent)
            raise missing_table(table)
        try:
            entry: _Entry = self._request("GET", _table_path(table), expected=_Entry)
        except ResponseError as error:
            if _is_missing(error):
                self._get_entry(table.parent)
            raise self._translated(error, missing_table(table)) from error
        if entry["name"] != table.name:
            raise missing_table(table)
        if not is_lance(entry.get("properties")):
            raise other_format_error(self._name, table)
        return entry

    def _described(self, table: Id, entry: _Entry) -> MountedTable:
        location = entry.get("storage_location")
        if not location:
            raise MalformedAnswerError(f"{self._name} does not say where the table '{table}' is.")
        return MountedTable(
            table,
            normalized_location(location, is_encoded=False),
            user_properties(entry.get("properties")),
            stable_id=entry.get("table_id"),
        )

    def _list(self, parent: Id, kind: str, query: Mapping[str, str], limit: int | None, token: str | None) -> NamePage:
        entries, following = self._entries(parent, kind, query, limit, token)
        if not entries and parent:
            self._get_entry(parent)
        return NamePage(tuple(entry["name"] for entry in entries), following)

    def _entries(
        self,
        namespace: Id,
        kind: str,
        query: Mapping[str, str],
        limit: int | None,
        token: str | None,
        *,
        only_lance: bool = False,
    ) -> tuple[list[_Entry], str | None]:
        """Return entries of a list and the token of the next page. Raises NamespaceNotFoundError."""

        def fetch(page: str, size: int | None) -> tuple[list[_Entry], str | None]:
            paging: dict[str, str] = {"max_results": str(min(size or _MAX_PAGE_SIZE, _MAX_PAGE_SIZE))}
            if page:
                paging["page_token"] = page
            with self._raising(missing_namespace(namespace)):
                response = self._request("GET", kind, {**query, **paging}, expected=_Page)
            return response.get(kind) or [], response.get("next_page_token")

        return collect_page(
            self._name,
            fetch,
            limit,
            token,
            lambda chunk: [not only_lance or is_lance(entry.get("properties")) for entry in chunk],
        )

    def _check_new(self, path: Id, most_names: int) -> None:
        """Raise InvalidInputError for an id with a name, or as many of them, as Unity cannot have."""
        if len(path) > most_names:
            raise InvalidInputError(f"{self._name} has {self.levels} levels of namespaces: '{path}' is below them.")
        for name in path:
            if not _NEW_NAME.fullmatch(name):
                rule = "use up to 255 lower-case letters of ASCII, digits, '_' and '-'"
                raise impossible_name(self._name, name, rule)

    def _check_existing(self, namespace: Id) -> None:
        """Raise NamespaceNotFoundError for an id that no namespace can have."""
        if len(namespace) > self.levels or not all(map(_NAME.fullmatch, namespace)):
            raise missing_namespace(namespace)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
        expected: Any = dict[str, Any],
    ) -> Any:
        url = f"{self._root}/{path}{f'?{urlencode(query)}' if query else ''}"
        return self._client.request(method, url, body=body, expected=expected)

    @contextmanager
    def _raising(
        self,
        missing: LanceNamespaceError,
        exists: LanceNamespaceError | None = None,
        not_empty: LanceNamespaceError | None = None,
    ) -> Iterator[None]:
        """Raise these errors for Unity's that say so, and for others what they mean anywhere."""
        try:
            yield
        except ResponseError as error:
            if exists is not None and _code(error).endswith(_EXISTS):
                raise exists from error
            if not_empty is not None and _code(error) in _NOT_EMPTY:
                raise not_empty from error
            raise self._translated(error, missing) from error

    def _translated(self, error: ResponseError, missing: LanceNamespaceError) -> LanceNamespaceError:
        if _is_missing(error):
            return missing
        if _code(error) == "UNIMPLEMENTED":
            return UNSUPPORTED.error(self._name)
        return http_error(self._name, error.status)


def _code(error: ResponseError) -> str:
    return str(error.content.get("error_code", ""))


def _is_missing(error: ResponseError) -> bool:
    return error.status == 404 or _code(error).endswith(_MISSING)


def _catalog_query(namespace: Id) -> dict[str, str]:
    return {"catalog_name": namespace.name}


def _schema_query(namespace: Id) -> dict[str, str]:
    return {"catalog_name": namespace.parent.name, "schema_name": namespace.name}


def _namespace_path(namespace: Id) -> str:
    kind = "catalogs" if len(namespace) == 1 else "schemas"
    return f"{kind}/{quote('.'.join(namespace), safe='')}"


def _table_path(table: Id) -> str:
    return f"tables/{quote('.'.join(table), safe='')}"
