"""Build /openapi.json: the specification as this server serves it, from the facts that also route its requests."""

from __future__ import annotations

from functools import cache

import msgspec

from tiltyard import __version__
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import Json, document, schemas, strict_schemas

SCHEMES: Json = {
    "OAuth2": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/oauth/token", "scopes": {}}}},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
    "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""How clients authenticate, as the specification has it."""


def openapi_json(requires_auth: bool) -> bytes:
    """Return the OpenAPI 3.1 document; without `requires_auth`, clients may be anonymous."""
    security: list[Json] = [*({name: []} for name in SCHEMES), *([] if requires_auth else [{}])]
    return msgspec.json.encode({**_document(), "security": security})


@cache
def _document() -> Json:
    """Return the document without what an operator chooses."""
    facts = document()["operations"]
    paths: dict[str, Json] = {}
    for name, (operation, handler) in bound_operations().items():
        if handler is not None:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
                name, facts[name], handler.function
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tiltyard: Lance REST Namespace", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": SCHEMES},
    }


def _schemas() -> dict[str, Json]:
    closed = {name: {"additionalProperties": False} for name in strict_schemas()}
    return {name: schema | closed.get(name, {}) for name, schema in schemas().items()}


def _operation(name: str, facts: Json, function: object) -> Json:
    description: Json = {
        "operationId": name,
        "tags": facts.get("tags", []),
        "summary": (function.__doc__ or name).strip().splitlines()[0],
        "parameters": list(facts["parameters"].values()),
        "responses": {
            status: {"description": "Success." if status.startswith("2") else "An error.", "content": content}
            for status, content in facts["responses"].items()
        },
    }
    if facts["request"]:
        description["requestBody"] = {"content": facts["request"]}
    return description
