"""Catalogs that speak Iceberg's REST protocol: their namespaces, and the lists and entries of tables in them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict
from urllib.parse import quote, urlencode

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
)

from tiltyard.model.ids import Id
from tiltyard.mounts.call_deadline import held_in_time
from tiltyard.mounts.catalog_errors import (
    CONFLICT,
    existing_namespace,
    existing_table,
    http_error,
    impossible_name,
    missing_namespace,
    missing_table,
    non_empty_namespace,
    root_dropped,
)
from tiltyard.mounts.http.client import HttpSettings, JsonClient, ResponseError
from tiltyard.mounts.lookup_cache import TableFormats
from tiltyard.mounts.mount_settings import check_age
from tiltyard.mounts.mounted_catalog import NamePage, Properties
from tiltyard.mounts.paged_lists import collect_page

CATALOG_SERVICE = "v1"
"""The service of Iceberg's own protocol; a catalog may have others beside it, for the same namespaces."""

_LEVEL_SEPARATOR = "\x1f"
_COMMIT_FAILED = "CommitFailedException"


class _Config(TypedDict, total=False):
    defaults: dict[str, Any] | None
    overrides: dict[str, Any] | None


class _Namespace(TypedDict, total=False):
    properties: dict[str, str] | None


class _Identifier(TypedDict):
    name: str


_Page = TypedDict(
    "_Page",
    {
        "namespaces": list[Annotated[list[str], msgspec.Meta(min_length=1)]] | None,
        "identifiers": list[_Identifier] | None,
        "next-page-token": str | None,
    },
    total=False,
)


@dataclass(frozen=True, kw_only=True)
class FormatSettings(HttpSettings):
    """`formats_age` is for how many seconds the formats of tables are remembered, of which lists are names alone."""

    formats_age: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        check_age(formats_age=self.formats_age)


class IcebergProtocol(ABC):
    """What all backends do of a catalog, or of one of its warehouses, whatever its entries of tables are."""

    levels = None
    table_lists: ClassVar[Sequence[tuple[str, str]]] = ((CATALOG_SERVICE, "tables"),)
    """What a namespace may have in it, services and the names of their lists; Lance tables are in the last one."""

    def __init__(self, name: str, client: JsonClient, root: str, warehouse: str, settings: FormatSettings) -> None:
        """`name` is what messages call the catalog, `root` the URL below which its services are; nothing is sent."""
        self._name = name
        self._client = client
        self._root = root.rstrip("/")
        self._warehouse = warehouse
        self._timeout = settings.timeout
        self._formats = TableFormats(self._check_format, settings.connections, settings.formats_age)
        self._lock = threading.Lock()
        self._prefix: str | None = None

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        self.check_existing(parent)
        query = {"parent": _LEVEL_SEPARATOR.join(parent)} if parent else {}
        names, following = self.entries(parent, ("namespaces",), "namespaces", limit, token, query)
        if not names:  # some catalogs have none in a namespace that is not there
            self.get_namespace(parent)
        return NamePage(tuple(name[-1] for name in names), following)

    def get_namespace(self, namespace: Id) -> Properties:
        if not namespace:
            return {}
        self.check_existing(namespace)
        try:
            response: _Namespace = self.request("GET", namespace_path(namespace), expected=_Namespace)
            return response.get("properties") or {}
        except ResponseError as error:
            raise self.translated(error, missing_namespace(namespace)) from error

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if not namespace:
            raise existing_namespace(namespace)
        self.check_new_names(namespace)
        self.get_namespace(namespace.parent)
        body = {"namespace": list(namespace), "properties": dict(properties)}
        try:
            self.request("POST", ("namespaces",), body=body)
        except ResponseError as error:
            missing, exists = missing_namespace(namespace.parent), existing_namespace(namespace)
            raise self.translated(error, missing, exists) from error

    def drop_namespace(self, namespace: Id) -> None:
        if not namespace:
            raise root_dropped(self._name)
        if self.list_namespaces(namespace, 1).names:
            raise non_empty_namespace(namespace)
        for service, kind in self.table_lists:
            path = (*namespace_path(namespace), kind)
            if self.entries(namespace, path, "identifiers", 1, None, service=service)[0]:
                raise non_empty_namespace(namespace)
        try:
            self.request("DELETE", namespace_path(namespace))
        except ResponseError as error:
            missing, not_empty = missing_namespace(namespace), non_empty_namespace(namespace)
            raise self.translated(error, missing, not_empty) from error

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        if not namespace:
            return NamePage(())
        self.check_existing(namespace)
        service, kind = self.table_lists[-1]
        entries, following = self.entries(
            namespace,
            (*namespace_path(namespace), kind),
            "identifiers",
            limit,
            token,
            service=service,
            is_kept=lambda chunk: self._formats.are_lance([Id((*namespace, entry["name"])) for entry in chunk]),
        )
        if not entries:  # some catalogs have none in a namespace that is not there
            self.get_namespace(namespace)
        return NamePage(tuple(entry["name"] for entry in entries), following)

    def close(self) -> None:
        self._client.close()

    @abstractmethod
    def _check_format(self, table: Id) -> object:
        """Raise TableNotFoundError for a table that is not Lance's, or gone."""

    def create_entry(self, table: Id, body: object, expected: Any) -> Any:
        """Add the entry of a table. Raises TableAlreadyExistsError, NamespaceNotFoundError."""
        try:
            return self.request_tables("POST", table.parent, body=body, expected=expected)
        except ResponseError as error:
            raise self.translated(error, missing_namespace(table.parent), existing_table(table)) from error

    def load_entry(
        self,
        table: Id,
        expected: Any,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the entry of a table, of any format. Raises TableNotFoundError, NamespaceNotFoundError."""
        if len(table) < 2 or not all(map(can_be_name, table)):
            self.get_namespace(table.parent)
            raise missing_table(table)
        try:
            return self.request_tables("GET", table.parent, table.name, query=query, headers=headers, expected=expected)
        except ResponseError as error:
            if error.status == 404:
                self.get_namespace(table.parent)
            raise self.translated(error, missing_table(table)) from error

    def delete_entry(self, table: Id, query: Mapping[str, str] | None = None) -> None:
        """Delete the entry of a table. Raises TableNotFoundError."""
        try:
            self.request_tables("DELETE", table.parent, table.name, query=query)
        except ResponseError as error:
            raise self.translated(error, missing_table(table)) from error
        self._formats.forget(table)

    def request_tables(
        self,
        method: str,
        namespace: Id,
        *name: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        expected: Any = dict[str, Any],
    ) -> Any:
        """Send a request about the tables of a namespace, or one of them, as `request` does."""
        service, kind = self.table_lists[-1]
        path = (*namespace_path(namespace), kind, *name)
        return self.request(method, path, query, body=body, headers=headers, service=service, expected=expected)

    def entries(
        self,
        namespace: Id,
        path: tuple[str, ...],
        key: str,
        limit: int | None,
        token: str | None,
        query: Mapping[str, str] | None = None,
        *,
        service: str = CATALOG_SERVICE,
        is_kept: Any = None,
    ) -> tuple[list[Any], str | None]:
        """Return entries of a list in a namespace and the token of the next page. Raises NamespaceNotFoundError."""

        def fetch(page: str, size: int | None) -> tuple[list[Any], str | None]:
            paging = {} if size is None else {"pageSize": str(size), "pageToken": page}
            try:
                response = self.request("GET", path, {**(query or {}), **paging}, service=service, expected=_Page)
            except ResponseError as error:
                raise self.translated(error, missing_namespace(namespace)) from error
            return response.get(key) or [], response.get("next-page-token")

        return collect_page(self._name, fetch, limit, token, **({"is_kept": is_kept} if is_kept else {}))

    def request(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        service: str = CATALOG_SERVICE,
        expected: Any = dict[str, Any],
    ) -> Any:
        """Send a request, and return its response, as `JsonClient.request` does."""
        segments = (service, *self._prefix_segments(), *(quote(segment, safe="") for segment in path))
        url = f"{self._root}/{'/'.join(segments)}"
        return self._client.request(
            method, f"{url}?{_encoded(query)}" if query else url, body=body, headers=headers, expected=expected
        )

    def translated(
        self, error: ResponseError, missing: LanceNamespaceError, conflict: LanceNamespaceError | None = None
    ) -> LanceNamespaceError:
        """Return the error of the specification: `missing` for 404, `conflict` for 409."""
        if error.status == 404:
            return missing
        if error.status == 409:
            has_lost_race = conflict is None or _exception(error) == _COMMIT_FAILED
            return CONFLICT.error(self._name) if has_lost_race or conflict is None else conflict
        return http_error(self._name, error.status)

    def check_new_names(self, path: Id) -> None:
        """Raise InvalidInputError for a name that servers may read in several ways in a path."""
        for name in path:
            if not can_be_name(name):
                raise impossible_name(self._name, name, "leave out '/', '\\', '%' and '.'")

    def check_existing(self, namespace: Id) -> None:
        """Raise NamespaceNotFoundError for what cannot be a namespace."""
        if not all(map(can_be_name, namespace)):
            raise missing_namespace(namespace)

    def check_new_table(self, table: Id) -> None:
        """Raise InvalidInputError for what cannot be a new table."""
        if len(table) < 2:
            raise InvalidInputError(f"{self._name} has tables in namespaces alone, and none at its root.")
        self.check_new_names(table)

    def _prefix_segments(self) -> tuple[str, ...]:
        """Return the prefix that the catalog wants in paths, as it writes it."""
        with held_in_time(self._lock, self._name, self._timeout):
            if self._prefix is None:
                warehouse = f"?{_encoded({'warehouse': self._warehouse})}" if self._warehouse else ""
                try:
                    url = f"{self._root}/{CATALOG_SERVICE}/config{warehouse}"
                    config: _Config = self._client.request("GET", url, expected=_Config)
                except ResponseError as error:
                    unusable = ServiceUnavailableError(f"{self._name} has no such warehouse: check the mount.")
                    raise self.translated(error, unusable) from error
                values = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}
                self._prefix = str(values.get("prefix") or "")
            return (self._prefix,) if self._prefix else ()


def can_be_name(name: str) -> bool:
    """Whether servers read a name in one way in a path."""
    return bool(name) and name.isprintable() and not any(character in "/\\%." for character in name)


def namespace_path(namespace: Id) -> tuple[str, ...]:
    """Return the segments of a namespace's path."""
    return "namespaces", _LEVEL_SEPARATOR.join(namespace)


def property_changes(changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return changes of properties as Iceberg has them."""
    return {
        "updates": {key: value for key, value in changes.items() if value is not None},
        "removals": [key for key, value in changes.items() if value is None],
    }


def location_uri(location: str) -> str:
    """Return a location as a URI."""
    return f"file://{location}" if location.startswith("/") else location


def _encoded(query: Mapping[str, str]) -> str:
    """Return a query with spaces as %20: signatures know no other way."""
    return urlencode(query, quote_via=quote)


def _exception(error: ResponseError) -> str:
    details = error.content.get("error")
    return str(details.get("type", "")) if isinstance(details, dict) else ""
