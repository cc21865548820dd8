"""Validate events against OpenLineage's own schemas, each facet against the one that it names, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"


@cache
def registry() -> Registry[Any]:
    """Return the schemas of this folder, by their ids; there are no others."""
    schemas = [json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "schema").glob("*.json"))]
    return Registry().with_resources([(schema["$id"], Resource.from_contents(schema)) for schema in schemas])


def check_event(event: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError for an invalid event, an error of `referencing` for an unknown schema."""
    assert event["schemaURL"] == EVENT
    validate(event, EVENT)
    for facet in facets(event):
        validate(facet, facet["_schemaURL"])


def validate(value: Any, schema: str) -> None:
    Draft202012Validator({"$ref": schema}, registry=registry(), format_checker=FormatChecker()).validate(value)


def facets(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all facets in an event."""
    if isinstance(value, dict):
        if "_schemaURL" in value:
            yield value
        for each in value.values():
            yield from facets(each)
    elif isinstance(value, list):
        for each in value:
            yield from facets(each)
