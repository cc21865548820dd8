"""Unity Catalog, as its published description has it: catalogs, schemas, tables, temporary credentials.

Written from the operations, parameters and fields of `api/all.yaml` of the Unity Catalog project (Apache License 2.0),
and the codes of errors in its server's source. No server of the project is behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import msgspec

from tests.services.checked_api import ApiError, Call, CheckedApi, Route, page_of
from tests.services.stub_catalog import Answer, StubCatalog, StubRequest, stub_catalog

API = "/api/2.1/unity-catalog"
TOKEN = "unity-token"
PAGING = frozenset(("max_results", "page_token"))
TYPES = (
    "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING",
    "BINARY", "DECIMAL", "INTERVAL", "ARRAY", "STRUCT", "MAP", "VARIANT", "CHAR", "NULL", "USER_DEFINED_TYPE",
    "TABLE_TYPE",
)  # fmt: skip


class CreateCatalog(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    comment: str | None = None
    properties: dict[str, str] = {}
    storage_root: str | None = None


class CreateSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    catalog_name: str
    comment: str | None = None
    properties: dict[str, str] = {}
    storage_root: str | None = None


class Update(msgspec.Struct, forbid_unknown_fields=True):
    comment: str | None = None
    new_name: str | None = None
    properties: dict[str, str] = {}


class ColumnInfo(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str | None = None
    type_text: str | None = None
    type_json: str | None = None
    type_name: Literal[TYPES] | None = None  # type: ignore[valid-type]  # made of the list above
    type_precision: int | None = None
    type_scale: int | None = None
    type_interval_type: str | None = None
    position: int | None = None
    comment: str | None = None
    nullable: bool = True
    partition_index: int | None = None


class CreateTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    catalog_name: str
    schema_name: str
    table_type: Literal["MANAGED", "EXTERNAL", "STREAMING_TABLE", "MATERIALIZED_VIEW", "METRIC_VIEW", "VIEW"]
    columns: list[ColumnInfo]
    data_source_format: Literal["DELTA", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"] | None = None
    storage_location: str | None = None
    comment: str | None = None
    properties: dict[str, str] = {}
    view_definition: str | None = None


class TableCredentialsRequest(msgspec.Struct, forbid_unknown_fields=True):
    table_id: str
    operation: Literal["UNKNOWN_TABLE_OPERATION", "READ", "READ_WRITE"]


def unity_error(status: int, code: str) -> ApiError:
    """Return an error in Unity's form."""
    return ApiError(status, {"error_code": code, "message": "internals", "details": [{"reason": code}]})


@dataclass
class Unity:
    """What it has: catalogs and schemas by their full names, tables too; `vended` is what it vends."""

    api: CheckedApi = field(default_factory=CheckedApi)
    namespaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    vended: dict[str, object] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    catalog: StubCatalog | None = None

    def __post_init__(self) -> None:
        """Make the routes."""
        in_schema = frozenset(("catalog_name", "schema_name"))
        force = frozenset(("force",))
        self.api.routes = (
            Route("POST", f"{API}/catalogs", self._create_catalog, CreateCatalog),
            Route("GET", f"{API}/catalogs", self._list_catalogs, query=PAGING),
            Route("GET", f"{API}/catalogs/{{name}}", self._get_namespace),
            Route("PATCH", f"{API}/catalogs/{{name}}", self._update_namespace, Update),
            Route("DELETE", f"{API}/catalogs/{{name}}", self._drop_namespace, query=force),
            Route("POST", f"{API}/schemas", self._create_schema, CreateSchema),
            Route("GET", f"{API}/schemas", self._list_schemas, query=PAGING, required=frozenset(("catalog_name",))),
            Route("GET", f"{API}/schemas/{{name}}", self._get_namespace),
            Route("PATCH", f"{API}/schemas/{{name}}", self._update_namespace, Update),
            Route("DELETE", f"{API}/schemas/{{name}}", self._drop_namespace, query=force),
            Route("POST", f"{API}/tables", self._create_table, CreateTable),
            Route("GET", f"{API}/tables", self._list_tables, query=PAGING, required=in_schema),
            Route("GET", f"{API}/tables/{{name}}", self._get_table),
            Route("DELETE", f"{API}/tables/{{name}}", self._drop_table),
            Route("POST", f"{API}/temporary-table-credentials", self._vend, TableCredentialsRequest),
        )

    def answer(self, request: StubRequest) -> Answer:
        """Answer a request with a token."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"error_code": "UNAUTHENTICATED", "message": "internals"}
        return self.api.answer(request)

    def add_other(self, schema: str, name: str) -> None:
        """Add a table of another format."""
        full_name = f"{schema}.{name}"
        self.tables[full_name] = {
            "name": name, "table_type": "MANAGED", "data_source_format": "DELTA", "properties": {"delta": "1"},
            "table_id": "other", "storage_location": "file:///other",
        }  # fmt: skip

    def _children(self, name: str) -> list[str]:
        return [other for other in self.namespaces if other.rpartition(".")[0] == name]

    def _create_catalog(self, call: Call) -> Answer:
        if call.body.name in self.namespaces:
            raise unity_error(400, "CATALOG_ALREADY_EXISTS")
        self.namespaces[call.body.name] = msgspec.to_builtins(call.body)
        return 200, self.namespaces[call.body.name]

    def _create_schema(self, call: Call) -> Answer:
        name = f"{call.body.catalog_name}.{call.body.name}"
        if call.body.catalog_name not in self.namespaces:
            raise unity_error(404, "CATALOG_NOT_FOUND")
        if name in self.namespaces:
            raise unity_error(400, "SCHEMA_ALREADY_EXISTS")
        self.namespaces[name] = {**msgspec.to_builtins(call.body), "full_name": name}
        return 200, self.namespaces[name]

    def _listed(self, call: Call, key: str, entries: dict[str, dict[str, Any]], names: list[str]) -> Answer:
        page, token = page_of(names, call.query.get("max_results"), call.query.get("page_token"))
        return 200, {key: [entries[name] for name in page], "next_page_token": token}

    def _list_catalogs(self, call: Call) -> Answer:
        return self._listed(call, "catalogs", self.namespaces, self._children(""))

    def _list_schemas(self, call: Call) -> Answer:
        self._namespace(call.query["catalog_name"])
        return self._listed(call, "schemas", self.namespaces, self._children(call.query["catalog_name"]))

    def _namespace(self, name: str) -> dict[str, Any]:
        if name not in self.namespaces:
            raise unity_error(404, "SCHEMA_NOT_FOUND" if "." in name else "CATALOG_NOT_FOUND")
        return self.namespaces[name]

    def _get_namespace(self, call: Call) -> Answer:
        return 200, self._namespace(call.names["name"])

    def _update_namespace(self, call: Call) -> Answer:
        namespace = self._namespace(call.names["name"])
        if call.body.properties:
            namespace["properties"] = call.body.properties
        return 200, namespace

    def _drop_namespace(self, call: Call) -> Answer:
        name = call.names["name"]
        self._namespace(name)
        if self._children(name) or any(table.rpartition(".")[0] == name for table in self.tables):
            raise unity_error(400, "FAILED_PRECONDITION")
        del self.namespaces[name]
        return 200, None

    def _create_table(self, call: Call) -> Answer:
        schema = f"{call.body.catalog_name}.{call.body.schema_name}"
        self._namespace(schema)
        name = f"{schema}.{call.body.name}"
        if name in self.tables:
            raise unity_error(400, "TABLE_ALREADY_EXISTS")
        extra = {"table_id": f"id-{next(self.numbers)}", "updated_at": 1, "a_field_of_tomorrow": {}}
        self.tables[name] = {**msgspec.to_builtins(call.body), **extra}
        return 200, self.tables[name]

    def _list_tables(self, call: Call) -> Answer:
        schema = f"{call.query['catalog_name']}.{call.query['schema_name']}"
        self._namespace(schema)
        names = [name for name in self.tables if name.rpartition(".")[0] == schema]
        return self._listed(call, "tables", self.tables, names)

    def _get_table(self, call: Call) -> Answer:
        if call.names["name"] not in self.tables:
            raise unity_error(404, "TABLE_NOT_FOUND")
        return 200, self.tables[call.names["name"]]

    def _drop_table(self, call: Call) -> Answer:
        if self.tables.pop(call.names["name"], None) is None:
            raise unity_error(404, "TABLE_NOT_FOUND")
        return 200, None

    def _vend(self, call: Call) -> Answer:
        if not any(table["table_id"] == call.body.table_id for table in self.tables.values()):
            raise unity_error(404, "TABLE_NOT_FOUND")
        self.operations.append(call.body.operation)
        return 200, self.vended


@contextmanager
def unity_stub() -> Iterator[Unity]:
    """Run one. Each request has to be one that the description allows."""
    unity = Unity()
    with stub_catalog(unity.answer) as unity.catalog:
        yield unity
    assert unity.api.violations == []
