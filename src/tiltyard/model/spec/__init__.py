"""The specification as data: every operation with its route, parameters, models and wire shapes.

`facts.json` is made from the Lance REST Namespace specification by `make spec`; `patch.json` holds what Tiltyard
adds or corrects (routes of the lancedb remote protocol, our own one-line summaries). Nothing else in the code
knows a route, a verb or a content type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

Json = dict[str, Any]

ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
JSON = "application/json"
OCTET_STREAM = "application/octet-stream"


class Shape(StrEnum):
    """The kind of a body on the wire."""

    EMPTY = "empty"
    OBJECT = "object"
    ARROW = "arrow"
    INTEGER = "integer"
    STRING = "string"
    MAP = "map"
    BYTES = "bytes"
    """Bytes of one value, of which a client may ask for ranges."""


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """One query parameter; a `repeated` one may occur several times."""

    name: str
    required: bool
    repeated: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the specification.

    `request` and `response` name models of `tiltyard.model.spec.models`; they are None where the wire holds no model.
    `also` are the other methods, and `earlier_paths` the other paths, by which older clients call it.
    """

    name: str
    method: str
    path: str
    tags: tuple[str, ...]
    parameters: tuple[QueryParameter, ...]
    request: str | None
    request_shape: Shape
    response: str | None
    response_shape: Shape
    status: int
    in_contract: bool
    also: tuple[str, ...]
    earlier_paths: tuple[str, ...]

    @property
    def function(self) -> str:
        """The name of the function that implements it: CreateTable → create_table."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @property
    def is_own(self) -> bool:
        """Whether it is Tiltyard's own, which neither the specification nor lancedb has."""
        return self.path.startswith("/tiltyard/")

    @property
    def object(self) -> str | None:
        """What `{id}` in the path identifies: namespace, table, transaction, materialized_view; None without one."""
        parts = self.path.split("/")
        return parts[parts.index("{id}") - 1] if "{id}" in parts else None


def merge_patch(facts: Any, patch: Any) -> Any:
    """Apply a patch by RFC 7386: objects merge by key, null removes, anything else replaces."""
    if not (isinstance(facts, dict) and isinstance(patch, dict)):
        return patch
    unpatched = {key: value for key, value in facts.items() if patch.get(key, value) is not None}
    return unpatched | {
        key: merge_patch(facts.get(key, {}), value) for key, value in patch.items() if value is not None
    }


@cache
def document() -> Json:
    """Return facts.json, patched by patch.json."""
    folder = files(__name__)
    facts = json.loads((folder / "facts.json").read_text())
    patch = json.loads((folder / "patch.json").read_text())
    result: Json = merge_patch(facts, patch)
    return result


def schemas() -> dict[str, Json]:
    """Return the schemas by name."""
    by_name: dict[str, Json] = document()["schemas"]
    return by_name


@cache
def strict_schemas() -> frozenset[str]:
    """Return the schemas whose objects may have no other fields: the requests of our own operations, and their parts.

    Nobody but clients of ours sends those, so a field that the server does not know was mistyped, or it is of a newer
    version: to ignore it could leave a mask out of a policy, or the end out of a key. Requests of the specification and
    of lancedb are another matter: newer versions of stock clients send fields that are new, with their defaults, in
    every request (`block_size` of a full-text index), and have to work.
    """
    own = {operation.request for operation in operations().values() if operation.is_own and operation.request}
    parts = {part for name in own for part in re.findall(r"schemas/(\w+)", json.dumps(schemas()[name]))}
    return frozenset(own | parts) - {"Context", "Identity"}


@cache
def operations() -> Mapping[str, Operation]:
    """Return the operations by name (operationId)."""
    return {name: _operation(name, facts) for name, facts in document()["operations"].items()}


@cache
def operations_by_function() -> Mapping[str, Operation]:
    """Return the operations by the names of the functions that implement them."""
    return {operation.function: operation for operation in operations().values()}


def _operation(name: str, facts: Json) -> Operation:
    status = min(int(code) for code in facts["responses"] if code.startswith("2"))
    request_shape, request = _shape(facts["request"])
    response_shape, response = _shape(facts["responses"][str(status)])
    if request is None and f"{name}Request" in schemas():
        request = f"{name}Request"
    if (
        response is None
        and response_shape not in (Shape.ARROW, Shape.BYTES)
        and "properties" in schemas().get(f"{name}Response", {})
    ):
        response = f"{name}Response"
    return Operation(
        name=name,
        method=facts["method"].upper(),
        path=facts["path"],
        tags=tuple(facts.get("tags", ())),
        parameters=tuple(
            QueryParameter(p["name"], p["required"], p["schema"].get("type") == "array")
            for p in facts["parameters"].values()
            if p["in"] == "query"
        ),
        request=request,
        request_shape=request_shape,
        response=response,
        response_shape=response_shape,
        status=status,
        in_contract=facts.get("in_contract", False),
        also=tuple(facts.get("also", ())),
        earlier_paths=tuple(facts.get("earlier_paths", ())),
    )


def _shape(content: Json) -> tuple[Shape, str | None]:
    """Return the wire shape of a body and the model in it."""
    if not content:
        return Shape.EMPTY, None
    mime, body = next(iter(content.items()))
    if mime == OCTET_STREAM:
        return Shape.BYTES, None
    if mime != JSON:
        return Shape.ARROW, None
    schema = body["schema"]
    name = schema["$ref"].rsplit("/", 1)[-1] if "$ref" in schema else None
    target = schemas()[name] if name else schema
    match target.get("type"):
        case "integer":
            return Shape.INTEGER, None
        case "string":
            return Shape.STRING, None
        case "object" if "additionalProperties" in target:
            return Shape.MAP, None
    return Shape.OBJECT, name
