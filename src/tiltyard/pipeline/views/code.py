"""The code of a view, as its definition has it: nothing of it is loaded here.

Its envelope is the one that Lance's own clients send: JSON with the pickled callable (`chunker_payload`,
`udtf_payload`, base64) and the schema of what it makes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.view_definitions import ViewDefinition, ViewKind
from tiltyard.pipeline.user_functions import PickledFunction
from tiltyard.pipeline.views.tasks import Chunker, TableFunction


def code_of(definition: ViewDefinition, view: pa.Schema, query: Sequence[str]) -> Chunker | TableFunction:
    """The code of a view whose query gives these columns; nothing of it is loaded. Raises InvalidInputError."""
    told = json.loads(definition.udtf)
    kind, name = definition.kind, told["udtf_name"]
    envelope = _envelope(told["udtf"], f"{kind}_payload")
    code = PickledFunction(envelope[f"{kind}_payload"])
    given = told.get("input_columns")
    inputs = tuple(given if given is not None else envelope.get("input_columns") or ())
    if kind is ViewKind.UDTF:
        if told.get("partition_by_indexed_column"):
            raise InvalidInputError("Name the column to group by as 'partition_by': any column will do.")
        return TableFunction(name, code, inputs, told.get("partition_by") or envelope.get("partition_by"))
    if not inputs:
        raise InvalidInputError(f"The chunker '{name}' reads no column: name its input_columns.")
    made = _made(envelope, view, query)
    batches = told.get("batch")
    return Chunker(name, code, inputs, made, view, bool(envelope.get("batch") if batches is None else batches))


def _made(envelope: Mapping[str, Any], view: pa.Schema, query: Sequence[str]) -> tuple[str, ...]:
    """The columns that a chunker makes: those of its schema, else those of the view that the query has not."""
    if "output_schema_bytes" in envelope:
        names = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(envelope["output_schema_bytes"]))).names
        if unknown := [name for name in names if name not in view.names]:
            raise InvalidInputError(f"The view has no column '{unknown[0]}' for what its chunker makes.")
        return tuple(names)
    return tuple(name for name in view.names if name not in query)


def _envelope(text: str, payload: str) -> Mapping[str, Any]:
    """What an envelope holds. Raises InvalidInputError for one of another form."""
    try:
        told = json.loads(base64.b64decode(text))
    except ValueError as error:
        raise InvalidInputError(f"The udtf is no JSON in base64: {error}.") from error
    if not isinstance(told, dict) or not isinstance(told.get(payload), str):
        raise InvalidInputError(f"The udtf is JSON with the pickled callable, in base64, as '{payload}'.")
    return told
