"""Calls of the cases by the generated client (U) and the Rust client (R)."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import lance.namespace as rust
import lance_namespace as models
import lance_namespace_urllib3_client as generated
import lance_namespace_urllib3_client.api as apis

from tiltyard.model.spec import Shape, operations
from tiltyard_conformance.cases import Case, Fields

API_CLASSES = [getattr(apis, name) for name in dir(apis) if name.endswith("Api")]
REQUEST_MODELS = {"CreateTableScalarIndex": "CreateTableIndexRequest", "ListAllTables": "ListTablesRequest"}
QUERY_PARAMETERS = {
    "ListNamespaces",
    "ListTables",
    "ListAllTables",
    "DropTable",
    "DropTableIndex",
    "ListTableVersions",
    "ListTableTags",
    "ListTableBranches",
    "CreateTable",
    "InsertIntoTable",
    "MergeInsertIntoTable",
}


TAKES_MAPPINGS = {"CreateTableVersion", "DescribeTableVersion", "BatchDeleteTableVersions"}
"""Calls of the Rust client that take a mapping, and no model."""


class NoSuchCallError(Exception):
    """This client has no call for the operation."""


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def model(operation: str, fields: Fields) -> Any:
    """The request model of an operation, filled."""
    name = REQUEST_MODELS.get(operation, f"{operation}Request")
    request_model = getattr(generated, name, None) or getattr(models, name, None)
    if request_model is None:
        raise NoSuchCallError(name)
    return request_model.from_dict(fields)


def call_generated(client: generated.ApiClient, case: Case, fields: Fields) -> Any:
    """Through `lance_namespace_urllib3_client`."""
    method = next(
        (getattr(api(client), snake(case.operation)) for api in API_CLASSES if hasattr(api, snake(case.operation))),
        None,
    )
    if method is None:
        raise NoSuchCallError(case.operation)
    path_arguments = ["$".join(fields["id"]) or "$"] if "id" in fields else []
    if case.operation == "UpdateTableSchemaMetadata":
        return method(*path_arguments, fields["metadata"])
    if case.operation in QUERY_PARAMETERS:
        options = {name: value for name, value in fields.items() if name != "id"}
        return method(*path_arguments, **options, **({"body": case.body} if case.body is not None else {}))
    if case.operation == "DescribeTableIndexStats":
        return method(*path_arguments, fields["index_name"], generated.DescribeTableIndexStatsRequest())
    if case.operation == "RefreshMaterializedView":  # its body may be missing, so it comes after the delimiter
        return method(*path_arguments, refresh_materialized_view_request=model(case.operation, fields))
    return method(*path_arguments, model(case.operation, fields))


class Answer(dict[str, Any]):
    """A JSON object whose fields are attributes too, under the names that the generated models give them."""

    def __getattr__(self, name: str) -> Any:
        return self[name.removeprefix("var_")]


def call_http(client: httpx.Client, case: Case, fields: Fields) -> Any:
    """By plain HTTP, as the specification describes the route."""
    facts = operations()[case.operation]
    path = facts.path.replace("{id}", quote("$".join(fields.get("id") or ()) or "$", safe=""))
    path = path.replace("{index_name}", quote(str(fields.get("index_name", "")), safe=""))
    fields_of_request = {name: value for name, value in fields.items() if name not in ("id", "index_name")}
    if case.body is not None:
        response = client.request(facts.method, path, params=fields_of_request, content=case.body)
    elif facts.request_shape is Shape.MAP:
        response = client.request(facts.method, path, json=fields_of_request["metadata"])
    elif facts.request_shape is Shape.EMPTY:
        response = client.request(facts.method, path, params=fields_of_request)
    else:
        response = client.request(facts.method, path, json=fields_of_request)
    assert response.status_code == facts.status, response.text
    if not response.content:
        return None
    if facts.response_shape is Shape.ARROW:
        return response.content
    return json.loads(response.content, object_hook=Answer)


def call_twin(namespace: Any, case: Case, fields: Fields) -> Any:
    """Through `tiltyard.Namespace`, in this process."""
    method = getattr(namespace, snake(case.operation))
    try:
        request = model(case.operation, fields)
    except NoSuchCallError:
        request = fields
    return method(request) if case.body is None else method(request, case.body)


def call_rust(client: rust.RestNamespace, case: Case, fields: Fields) -> Any:
    """Through `lance.namespace.RestNamespace`."""
    method = getattr(client, snake(case.operation), None)
    if method is None or snake(case.operation) not in vars(rust.RestNamespace):
        raise NoSuchCallError(case.operation)
    request = model(case.operation, fields)
    if case.operation in TAKES_MAPPINGS:
        request = request.model_dump(exclude_none=True)
    return method(request) if case.body is None else method(request, case.body)
