"""A server of the Lance REST Namespace: another Tiltyard, pylance's RestAdapter, Gravitino's Lance REST service.

Servers differ in what they check. Some accept a table in a namespace that does not exist, and list that as empty: so
the namespace is looked up where their response leaves it open. The specification has no operation for the properties
of what exists already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict
from urllib.parse import quote, urlencode

from lance_namespace.errors import (
    ConcurrentModificationError,
    ErrorCode,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableNotFoundError,
)

from tiltyard.model.ids import DEFAULT_DELIMITER, Id
from tiltyard.mounts.catalog_errors import (
    CONFLICT,
    FORBIDDEN,
    INVALID,
    THROTTLED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNSUPPORTED,
    CatalogFailure,
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
from tiltyard.mounts.lance_entries import location_below_root, normalized_location
from tiltyard.mounts.mounted_catalog import MountedTable, NamePage, Properties, StorageCredentials
from tiltyard.mounts.paged_lists import collect_page
from tiltyard.storage.locations import canonical_location, is_below

_EXPIRY = "expires_at_millis"
"""The storage option that says when the others expire."""
_NO_PROPERTIES = "the Lance namespace specification has no operation for it"
_SOURCE_LINE = re.compile(r",? /\S+\.rs:\d+:\d+")
_MAX_REASON_LENGTH = 300
_NAME_RULE = "leave out the delimiter, slashes and control characters"

_FAILURES: dict[int, CatalogFailure] = {
    0: UNSUPPORTED,
    13: INVALID,
    14: CONFLICT,
    15: FORBIDDEN,
    16: UNAUTHENTICATED,
    17: UNAVAILABLE,
    19: CatalogFailure(InvalidTableStateError, "cannot do this with the table as it is"),
    21: THROTTLED,
}
"""What the specification's codes mean, without those of things that exist or do not."""


class _Description(TypedDict, total=False):
    """A namespace, or a table."""

    location: str | None
    properties: dict[str, str] | None
    storage_options: dict[str, str] | None
    is_only_declared: bool | None


class _Names(TypedDict, total=False):
    namespaces: list[str] | None
    tables: list[str] | None
    page_token: str | None


@dataclass(frozen=True, kw_only=True)
class LanceRestSettings(HttpSettings):
    """How to reach a server.

    `delimiter` joins the names of an id in paths. `levels` is how many levels of namespaces the server has, where it
    has not any number of them: 2 for Gravitino.
    """

    delimiter: str = DEFAULT_DELIMITER
    levels: int | None = None
    relative_to: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        super().__post_init__()
        if not self.delimiter:
            raise ValueError("delimiter is empty")
        if self.levels is not None and self.levels < 0:
            raise ValueError(f"levels is {self.levels}: 0 or more")
        if self.client_id and not self.oauth2_uri:
            raise ValueError("client_id needs oauth2_uri")


class LanceRestCatalog:
    """The namespaces and tables of a server."""

    settings_type = LanceRestSettings
    kind = "lance"

    def __init__(self, settings: LanceRestSettings) -> None:
        """Parse; nothing is sent yet."""
        self._settings = settings
        self._name = f"The Lance server {settings.uri}"
        self._client = json_client(self._name, settings)

    @property
    def levels(self) -> int | None:
        return self._settings.levels

    def list_namespaces(self, parent: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        self._check_existing(parent)
        names, following = self._list("namespaces", parent, "list", limit, token)
        if not names:
            self.get_namespace(parent)
        return NamePage(names, following)

    def get_namespace(self, namespace: Id) -> Properties:
        if not namespace:
            return {}
        self._check_existing(namespace)
        with self._raising({1: missing_namespace(namespace)}):
            response = self._post("namespace", namespace, "describe", {})
        return dict(response.get("properties") or {})

    def create_namespace(self, namespace: Id, properties: Properties) -> None:
        if not namespace:
            raise existing_namespace(namespace)
        self._check_new(namespace, self.levels)
        self.get_namespace(namespace.parent)
        errors = {1: missing_namespace(namespace.parent), 2: existing_namespace(namespace)}
        with self._raising(errors):
            self._post("namespace", namespace, "create", {"mode": "Create", "properties": dict(properties)})

    def drop_namespace(self, namespace: Id) -> None:
        if not namespace:
            raise root_dropped(self._name)
        self._check_existing(namespace)
        errors = {1: missing_namespace(namespace), 3: non_empty_namespace(namespace)}
        with self._raising(errors):
            self._post("namespace", namespace, "drop", {"mode": "Fail", "behavior": "Restrict"})

    def list_tables(self, namespace: Id, limit: int | None = None, token: str | None = None) -> NamePage:
        self._check_existing(namespace)
        names, following = self._list("tables", namespace, "table/list", limit, token)
        if not names:
            self.get_namespace(namespace)
        return NamePage(names, following)

    def get_table(self, table: Id) -> MountedTable:
        return self._described(table, self._describe(table, {}))

    def declare_table(self, table: Id, location: str | None, properties: Properties) -> MountedTable:
        if not table:
            raise InvalidInputError("A table's id has at least one name.")
        self._check_new(table, None if self.levels is None else self.levels + 1)
        self.get_namespace(table.parent)
        place = canonical_location(location) if location is not None else self._default_location(table)
        request = {"properties": dict(properties), **({"location": place} if place else {})}
        try:
            self._add("declare", table, request)
        except InvalidInputError:
            if place is None:
                raise
            return self._register(table, place, properties)
        except ConcurrentModificationError:  # some servers say so where another one has just taken the name
            self._add("declare", table, request)
        return self.get_table(table)

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        raise unsupported(self._name, "change the properties of a table", _NO_PROPERTIES)

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        if not new_id:
            raise InvalidInputError("A table's id has at least one name.")
        self._check_new(new_id, None if self.levels is None else self.levels + 1)
        self.get_table(table)
        self.get_namespace(new_id.parent)
        request = {"new_table_name": new_id.name, "new_namespace_id": list(new_id.parent)}
        errors = {
            0: unsupported(self._name, "rename a table", "it has no such operation"),
            1: missing_namespace(new_id.parent),
            4: missing_table(table),
            5: existing_table(new_id),
        }
        with self._raising(errors):
            self._post("table", table, "rename", request)
        return self.get_table(new_id)

    def deregister_table(self, table: Id) -> MountedTable:
        described = self.get_table(table)
        with self._raising({1: missing_table(table), 4: missing_table(table)}):
            self._post("table", table, "deregister", {})
        return described

    def vend_credentials(self, table: Id, *, writable: bool) -> StorageCredentials | None:
        """Return what the server vends to the mount's own principal, who may be allowed to write or not."""
        options = dict(self._describe(table, {"vend_credentials": True}).get("storage_options") or {})
        if not options:
            return None
        expiry = options.pop(_EXPIRY, None)
        return StorageCredentials(options, int(expiry) if expiry and expiry.isdecimal() else None)

    def close(self) -> None:
        self._client.close()

    def _default_location(self, table: Id) -> str | None:
        """Return a location below the mount's root, if it has one; the server decides otherwise."""
        if not self._settings.root:
            return None
        return location_below_root(self._settings.root, table)

    def _add(self, operation: str, table: Id, request: Mapping[str, object]) -> None:
        with self._raising({1: missing_namespace(table.parent), 5: existing_table(table)}):
            self._post("table", table, operation, request)

    def _register(self, table: Id, location: str, properties: Properties) -> MountedTable:
        """Add a table that may exist, for a server that declares tables at places of its own alone."""
        root = canonical_location(self._settings.relative_to) if self._settings.relative_to else ""
        relative = location[len(root.rstrip("/")) + 1 :] if root and is_below(location, root) else location
        self._add("register", table, {"location": relative, "properties": dict(properties)})
        described = self.get_table(table)
        if properties and described.properties != properties:
            self.deregister_table(table)
            raise unsupported(self._name, "keep properties of a table at a location of its own", "it drops them")
        return described

    def _describe(self, table: Id, request: Mapping[str, object]) -> _Description:
        """Return a table's description. Raises TableNotFoundError, NamespaceNotFoundError."""
        if not table or not all(map(self._can_be_name, table)):
            self.get_namespace(table.parent)
            raise missing_table(table)
        if self.levels is not None and len(table) > self.levels + 1:
            raise missing_namespace(table.parent)
        try:
            with self._raising({1: missing_namespace(table.parent), 4: missing_table(table)}):
                return self._post("table", table, "describe", {"check_declared": True, **request})
        except TableNotFoundError:
            self.get_namespace(table.parent)
            raise

    def _described(self, table: Id, response: _Description) -> MountedTable:
        location = response.get("location")
        if not location:
            raise MalformedAnswerError(f"{self._name} does not say where the table '{table}' is.")
        return MountedTable(
            table,
            normalized_location(location, is_encoded=True),
            dict(response.get("properties") or {}),
            is_declared=response.get("is_only_declared"),
        )

    def _list(
        self, key: str, namespace: Id, operation: str, limit: int | None, token: str | None
    ) -> tuple[tuple[str, ...], str | None]:
        """Return names; the last one of each, where the server lists whole ids."""

        def fetch(page: str, size: int | None) -> tuple[list[str], str | None]:
            query = {"limit": str(size)} if size else {}
            with self._raising({1: missing_namespace(namespace)}):
                response = self._get(namespace, operation, {**query, **({"page_token": page} if page else {})})
            return response.get(key) or [], response.get("page_token")

        names, following = collect_page(self._name, fetch, limit, token)
        return tuple(name.rpartition(self._settings.delimiter)[2] for name in names), following

    def _check_new(self, path: Id, most_names: int | None) -> None:
        """Raise InvalidInputError for an id with a name, or as many of them, as the server cannot have."""
        if most_names is not None and len(path) > most_names:
            raise InvalidInputError(f"{self._name} has {self.levels} levels of namespaces: '{path}' is below them.")
        for name in path:
            if not self._can_be_name(name) or any(character in "/\\%" for character in name):
                raise impossible_name(self._name, name, _NAME_RULE)

    def _check_existing(self, namespace: Id) -> None:
        """Raise NamespaceNotFoundError for an id that no namespace can have."""
        is_deep = self.levels is not None and len(namespace) > self.levels
        if is_deep or not all(map(self._can_be_name, namespace)):
            raise missing_namespace(namespace)

    def _can_be_name(self, name: str) -> bool:
        return name not in ("", ".", "..") and self._settings.delimiter not in name and name.isprintable()

    def _get(self, path: Id, operation: str, query: Mapping[str, str]) -> Any:
        url = f"{self._url('namespace', path, operation)}&{urlencode(query)}"
        return self._client.request("GET", url, expected=_Names)

    def _post(self, kind: str, path: Id, operation: str, request: Mapping[str, object]) -> _Description:
        description: _Description = self._client.request(
            "POST", self._url(kind, path, operation), body=request, expected=_Description
        )
        return description

    def _url(self, kind: str, path: Id, operation: str) -> str:
        delimiter = self._settings.delimiter
        segment = quote(delimiter.join(path) or delimiter, safe="")
        return f"{self._settings.uri.rstrip('/')}/v1/{kind}/{segment}/{operation}?{urlencode({'delimiter': delimiter})}"

    @contextmanager
    def _raising(self, errors: Mapping[int, LanceNamespaceError]) -> Iterator[None]:
        """Raise these errors for those of the server with these codes, and for others what they mean anywhere."""
        try:
            yield
        except ResponseError as error:
            code = _code(error)
            if code in errors:
                raise errors[code] from error
            raise self._translated(code, error) from error

    def _translated(self, code: int, error: ResponseError) -> LanceNamespaceError:
        if code == ErrorCode.INVALID_INPUT and (reason := _reason(error)):
            return InvalidInputError(f"{self._name} does not take this: {reason}")
        failure = _FAILURES.get(code)
        return failure.error(self._name) if failure else http_error(self._name, error.status)


def _code(error: ResponseError) -> int:
    """Return the code of an error; -1 where it has none. What Lance's own server does not have is an internal error."""
    code, text = error.content.get("code"), str(error.content.get("error", ""))
    if code == ErrorCode.INTERNAL and text.startswith("Not supported"):
        return ErrorCode.UNSUPPORTED
    return code if isinstance(code, int) else -1


def _reason(error: ResponseError) -> str:
    """Return the sentence in which the server says what is wrong with a request."""
    text = str(error.content.get("error", ""))
    return _SOURCE_LINE.sub("", text)[:_MAX_REASON_LENGTH] if text.isprintable() else ""
