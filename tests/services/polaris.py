"""Apache Polaris, as its published descriptions have it: Iceberg's namespaces, generic tables, tokens for clients.

Written from the operations, parameters and fields of `iceberg-rest-catalog-open-api.yaml`, `generic-tables-api.yaml`
and `oauth-tokens-api.yaml` of the Polaris project (Apache License 2.0). No server of the project is behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tests.services.checked_api import ApiError, Call, CheckedApi, Route, page_of
from tests.services.stub_catalog import Answer, StubCatalog, StubRequest, stub_catalog

CATALOG, PREFIX = "lake", "lake%20prefix"
CLIENT, CLIENT_SECRET, SCOPE = "mount", "mount-secret", "PRINCIPAL_ROLE:ALL"
PAGING = frozenset(("pageToken", "pageSize"))
VENDED = "polaris-generic-table-access-delegation"


class CreateNamespaceRequest(msgspec.Struct, forbid_unknown_fields=True):
    namespace: list[str]
    properties: dict[str, str] = {}


class UpdatePropertiesRequest(msgspec.Struct, forbid_unknown_fields=True):
    removals: list[str] = []
    updates: dict[str, str] = {}


class CreateGenericTableRequest(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    name: str
    format: str
    base_location: str | None = None
    doc: str | None = None
    properties: dict[str, str] = {}


def iceberg_error(status: int, exception: str) -> ApiError:
    """Return an error in Iceberg's form."""
    return ApiError(status, {"error": {"message": "internals", "type": exception, "code": status}})


@dataclass
class Polaris:
    """What it has: namespaces with their properties, generic tables; and `tokens` that it accepts."""

    root: str
    api: CheckedApi = field(default_factory=CheckedApi)
    namespaces: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    tables: dict[tuple[tuple[str, ...], str], dict[str, Any]] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    token_seconds: int | None = 3600
    vended: list[dict[str, object]] = field(default_factory=list)
    catalog: StubCatalog | None = None

    def __post_init__(self) -> None:
        """Make the routes."""
        v1, generic = f"/api/catalog/v1/{PREFIX}", f"/api/catalog/polaris/v1/{PREFIX}/namespaces/{{namespace}}"
        namespace = f"{v1}/namespaces/{{namespace}}"
        self.api.routes = (
            Route("GET", "/api/catalog/v1/config", self._config, query=frozenset(("warehouse",))),
            Route("GET", f"{v1}/namespaces", self._list_namespaces, query=PAGING | {"parent"}),
            Route("POST", f"{v1}/namespaces", self._create_namespace, CreateNamespaceRequest),
            Route("GET", namespace, self._get_namespace),
            Route("DELETE", namespace, self._drop_namespace),
            Route("POST", f"{namespace}/properties", self._update_properties, UpdatePropertiesRequest),
            Route("GET", f"{namespace}/tables", lambda call: (200, {"identifiers": []}), query=PAGING),
            Route("GET", f"{generic}/generic-tables", self._list_tables, query=PAGING),
            Route("POST", f"{generic}/generic-tables", self._create_table, CreateGenericTableRequest),
            Route("GET", f"{generic}/generic-tables/{{table}}", self._get_table),
            Route("DELETE", f"{generic}/generic-tables/{{table}}", self._drop_table),
        )

    def answer(self, request: StubRequest) -> Answer:
        """Answer a request: for a token, or with one."""
        if request.path == "/api/catalog/v1/oauth/tokens":
            return self._issue(request)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return 401, {"error": {"message": "internals", "type": "NotAuthorizedException", "code": 401}}
        return self.api.answer(request)

    def add_other(self, namespace: tuple[str, ...], name: str) -> None:
        """Add a table of another format."""
        self.tables[namespace, name] = {"name": name, "format": "delta", "base-location": f"{self.root}/{name}"}

    def _issue(self, request: StubRequest) -> Answer:
        form = {key: values[0] for key, values in parse_qs(request.body.decode(), strict_parsing=True).items()}
        expected = {
            "grant_type": "client_credentials", "client_id": CLIENT, "client_secret": CLIENT_SECRET, "scope": SCOPE,
        }  # fmt: skip
        if form != expected or request.headers.get("content-type") != "application/x-www-form-urlencoded":
            return 401, {"error": "invalid_client"}
        token = f"token-{len(self.tokens)}-{len(self.catalog.requests) if self.catalog else 0}"
        self.tokens.append(token)
        life = {} if self.token_seconds is None else {"expires_in": self.token_seconds}
        return 200, {"access_token": token, "token_type": "bearer", **life}

    def _config(self, call: Call) -> Answer:
        if call.query.get("warehouse") != CATALOG:
            raise iceberg_error(404, "NotFoundException")
        return 200, {"defaults": {}, "overrides": {"prefix": PREFIX}}

    def _namespace(self, call: Call) -> tuple[str, ...]:
        namespace = tuple(call.names["namespace"].split("\x1f"))
        if namespace not in self.namespaces:
            raise iceberg_error(404, "NoSuchNamespaceException")
        return namespace

    def _list_namespaces(self, call: Call) -> Answer:
        parent = tuple(call.query["parent"].split("\x1f")) if "parent" in call.query else ()
        if parent and parent not in self.namespaces:
            raise iceberg_error(404, "NoSuchNamespaceException")
        names = [namespace[-1] for namespace in self.namespaces if namespace[:-1] == parent]
        page, token = page_of(names, call.query.get("pageSize"), call.query.get("pageToken"))
        return 200, {"namespaces": [[*parent, name] for name in page], "next-page-token": token}

    def _create_namespace(self, call: Call) -> Answer:
        namespace = tuple(call.body.namespace)
        if namespace[:-1] and namespace[:-1] not in self.namespaces:
            raise iceberg_error(404, "NoSuchNamespaceException")
        if namespace in self.namespaces:
            raise iceberg_error(409, "AlreadyExistsException")
        self.namespaces[namespace] = {"location": "/".join((self.root, *namespace)), **call.body.properties}
        return 200, {"namespace": namespace, "properties": self.namespaces[namespace]}

    def _get_namespace(self, call: Call) -> Answer:
        namespace = self._namespace(call)
        return 200, {"namespace": namespace, "properties": self.namespaces[namespace]}

    def _drop_namespace(self, call: Call) -> Answer:
        namespace = self._namespace(call)
        if any(other[:-1] == namespace for other in self.namespaces) or any(key[0] == namespace for key in self.tables):
            raise iceberg_error(409, "NamespaceNotEmptyException")
        del self.namespaces[namespace]
        return 204, None

    def _update_properties(self, call: Call) -> Answer:
        properties = self.namespaces[self._namespace(call)]
        properties.update(call.body.updates)
        for key in call.body.removals:
            properties.pop(key, None)
        return 200, {"updated": list(call.body.updates), "removed": call.body.removals, "missing": None}

    def _list_tables(self, call: Call) -> Answer:
        namespace = self._namespace(call)
        names = [name for other, name in self.tables if other == namespace]
        page, token = page_of(names, call.query.get("pageSize"), call.query.get("pageToken"))
        return 200, {
            "identifiers": [{"namespace": namespace, "name": name} for name in page], "next-page-token": token,
        }  # fmt: skip

    def _create_table(self, call: Call) -> Answer:
        key = self._namespace(call), call.body.name
        if key in self.tables:
            raise iceberg_error(409, "AlreadyExistsException")
        self.tables[key] = msgspec.to_builtins(call.body)
        return 200, {"table": self.tables[key]}

    def _get_table(self, call: Call) -> Answer:
        table = self.tables.get((self._namespace(call), call.names["table"]))
        if table is None:
            raise iceberg_error(404, "NoSuchTableException")
        wants_credentials = call.headers.get(VENDED) == "vended-credentials"
        return 200, {"table": table, **({"storage-access-configs": self.vended} if wants_credentials else {})}

    def _drop_table(self, call: Call) -> Answer:
        if self.tables.pop((self._namespace(call), call.names["table"]), None) is None:
            raise iceberg_error(404, "NoSuchTableException")
        return 204, None


@contextmanager
def polaris_stub(root: str) -> Iterator[Polaris]:
    """Run one whose tables lie below a root, as a URI. Each request has to be one that the descriptions allow."""
    polaris = Polaris(root)
    with stub_catalog(polaris.answer) as polaris.catalog:
        yield polaris
    assert polaris.api.violations == []
