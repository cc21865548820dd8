"""Write `src/tiltyard/model/spec/facts.json` from the Lance REST Namespace specification.

    python scripts/make_spec.py SPEC_FOLDER [--check]

SPEC_FOLDER holds `rest.yaml` (1.0.0, the contract) and `upstream-0.11.1.yaml` (what today's clients send).
Only facts are taken: paths, operations, parameters, schemas, types, defaults, bounds. Prose, examples and
licence text stay behind. The two are merged so that one server serves both:

* an operation, parameter, schema or property of either is kept; where both name it, rest.yaml's form wins;
* a field is required only if both say so, since a client of either may leave it out;
* every optional field may also be null, since stock clients send nulls for what they do not set.

Corrections to the specification do not belong here but in `src/tiltyard/model/spec/patch.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).resolve().parent.parent / "src/tiltyard/model/spec/facts.json"
KEPT = ("type", "format", "default", "minimum", "maximum", "enum", "required", "nullable", "$ref")
METHODS = ("get", "post", "put", "delete")

Json = dict[str, Any]


def schema_facts(schema: Json) -> Json:
    """One schema without prose, its nested schemas included."""
    facts: Json = {key: schema[key] for key in KEPT if key in schema}
    if isinstance(facts.get("type"), list):
        facts["nullable"] = True
        facts["type"] = next(kind for kind in facts["type"] if kind != "null")
    if "properties" in schema:
        facts["properties"] = {name: schema_facts(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        facts["items"] = schema_facts(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        facts["additionalProperties"] = schema_facts(schema["additionalProperties"])
    for union in ("oneOf", "anyOf", "allOf"):
        members = [schema_facts(inner) for inner in schema.get(union, ()) if inner.get("type") != "null"]
        if len(members) == 1:
            facts.update(members[0])
        elif members:
            facts[union] = members
    return facts


def merged_schema(contract: Json | None, upstream: Json | None) -> Json:
    """The union of two versions of one object schema."""
    if contract is None or upstream is None:
        return dict(contract or upstream or {})
    if "properties" not in contract or "properties" not in upstream:
        return contract
    merged = dict(contract)
    merged["properties"] = upstream["properties"] | contract["properties"]
    both = [name for name in contract.get("required", ()) if name in upstream.get("required", ())]
    merged.pop("required", None)
    if both:
        merged["required"] = both
    return merged


def resolve(document: Json, node: Json) -> Json:
    """What a local `$ref` points to."""
    while "$ref" in node:
        target: Any = document
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


def content_facts(content: Json) -> Json:
    return {mime: {"schema": schema_facts(body.get("schema", {}))} for mime, body in content.items()}


def operations(document: Json) -> dict[str, Json]:
    """Each operation by its id: path, method, parameters, request and response content."""
    found = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method not in item:
                continue
            operation = item[method]
            parameters = {}
            for raw in [*item.get("parameters", ()), *operation.get("parameters", ())]:
                parameter = resolve(document, raw)
                parameters[parameter["name"]] = {
                    "name": parameter["name"],
                    "in": parameter["in"],
                    "required": bool(parameter.get("required")),
                    "schema": schema_facts(parameter["schema"]),
                }
            responses = {}
            for status, raw in operation["responses"].items():
                response = resolve(document, raw)
                responses[str(status)] = content_facts(response.get("content", {}))
            found[operation["operationId"]] = {
                "path": path.rstrip("/"),
                "method": method,
                "tags": operation.get("tags", []),
                "parameters": parameters,
                "request": content_facts(resolve(document, operation.get("requestBody", {})).get("content", {})),
                "responses": responses,
            }
    return found


def merged_operation(contract: Json | None, upstream: Json | None) -> Json:
    if contract is None or upstream is None:
        return dict(contract or upstream or {})
    return contract | {"parameters": upstream["parameters"] | contract["parameters"]}


def merge(contract: Json, upstream: Json) -> Json:
    """The facts file: operations and schemas of both documents, sorted by name."""
    ours, theirs = operations(contract), operations(upstream)
    shapes = [
        {name: schema_facts(schema) for name, schema in document["components"]["schemas"].items()}
        for document in (contract, upstream)
    ]
    return {
        "contract": contract["info"]["version"],
        "upstream": upstream["info"]["version"],
        "operations": {
            name: merged_operation(ours.get(name), theirs.get(name)) | {"in_contract": name in ours}
            for name in sorted(ours | theirs)
        },
        "schemas": {
            name: merged_schema(shapes[0].get(name), shapes[1].get(name)) for name in sorted(shapes[0] | shapes[1])
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the compact specification.", epilog="Example: python scripts/make_spec.py ../shared/spec"
    )
    parser.add_argument("spec", type=Path, help="folder of rest.yaml and upstream-0.11.1.yaml")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    arguments = parser.parse_args()
    documents = [yaml.safe_load((arguments.spec / name).read_text()) for name in ("rest.yaml", "upstream-0.11.1.yaml")]
    text = json.dumps(merge(*documents), indent=1, sort_keys=False) + "\n"
    if arguments.check:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET.name} is not current: run `make spec`")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
