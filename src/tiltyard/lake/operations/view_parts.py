"""What a view declares besides its query, as a request has it: what cuts its rows, columns, indexes.

Functions are given themselves, or a ready-made one as text: `embed_text(model='wordllama') of chunk`. A column that a
ready-made function reads need not be named where the view has one of that kind alone, or calls it `text`.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.functions.ready_made import ReadyMade, Takes, is_ready_made, list_functions, parse_ready_made
from tiltyard.lake.errors import translate
from tiltyard.lake.functions import column_function, pickled_function
from tiltyard.lake.tables.arguments import json_type, list_names
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.model.views.definitions import DETERMINISTIC

Computed: TypeAlias = "str | Callable[..., Any] | Mapping[str, Any]"
"""What computes a column: a function, SQL, or a mapping of `function` with the `inputs`, `type` and `version` of
`add_column`."""

_OF = re.compile(r"(.*\S)\s+of\s+([A-Za-z_]\w{0,254})", re.DOTALL)
_KEYS = ("function", "inputs", "type", "version")
_TEXT = "text"
"""The name by which a column is taken for the text of a row, where others are texts, too."""
_INDEX_KEYS = {"column": "column", "type": "index_type", "name": "name", "metric": "distance_type"}


@dataclass(frozen=True, slots=True)
class _Part:
    """A function with what is said of it; of `inputs` and `kind`, None is what it says itself."""

    function: Any
    inputs: list[str] | None = None
    kind: pa.DataType | None = None
    version: str = "1"


@dataclass(frozen=True, slots=True)
class Chunker:
    """What cuts each row of a query into several: as a request has it, and the columns that the view has then."""

    spec: Mapping[str, Any]
    schema: pa.Schema
    made: tuple[str, ...]


def make_chunker(chunk: Computed, query: pa.Schema) -> Chunker:
    """Return what cuts the rows of a query by a function that returns a list of structs for each value of a column.

    The view has the columns of the query but for that one, and the fields of the structs. Raises InvalidInputError.
    """
    part = _parse("chunk", chunk)
    if isinstance(part.function, str):
        raise InvalidInputError(
            "chunk is a function: chunk_words(size=200), or another one that returns a list for each text."
        )
    inputs = part.inputs or _inputs_of("chunk", part.function, query, ())
    if len(inputs) != 1 or inputs[0] not in query.names:
        raise InvalidInputError(
            f"chunk reads one column of the query, and it is given {', '.join(inputs) or 'none'}: the query has "
            f"{', '.join(query.names)}."
        )
    with translate():
        kind = part.function.result_type if isinstance(part.function, ReadyMade) else part.kind
        code = pickled_function(part.function)
    if kind is None or not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise InvalidInputError(
            "chunk makes a list of structs of each value, whose fields are columns of the view: use a chunker such as "
            "chunk_words(), or give {'function': …, 'inputs': …, 'type': pa.list_(pa.struct([…]))}."
        )
    _check_type("chunk", part.function, query.field(inputs[0]))
    made = list(kind.value_type)
    kept = [field for field in query if field.name != inputs[0]]
    if twice := {field.name for field in made} & {field.name for field in kept}:
        name = min(twice)
        raise InvalidInputError(
            f"The query gives '{name}', and chunk makes a column of that name: write {name} AS page_{name}."
        )
    envelope = json.dumps(
        {
            "chunker_payload": code,
            "input_columns": inputs,
            "output_schema_bytes": base64.b64encode(pa.schema(made).serialize().to_pybytes()).decode(),
            DETERMINISTIC: True,
        }
    ).encode()
    spec = {
        "kind": "chunker",
        "udtf": base64.b64encode(envelope).decode(),
        "udtf_sha": hashlib.sha256(envelope).hexdigest(),
        "udtf_name": getattr(part.function, "__name__", "chunker"),
        "udtf_version": part.version,
        "input_columns": inputs,
    }
    return Chunker(spec, pa.schema([*kept, *made]), tuple(field.name for field in made))


def column_entries(columns: Mapping[str, Computed], view: pa.Schema, made: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the columns of a view as a request has them; `made` are those that its chunker makes.

    Raises InvalidInputError.
    """
    if not isinstance(columns, Mapping):
        raise InvalidInputError("columns is a mapping: the name of each column, and what computes it.")
    return [_column_entry(name, _parse(name, computed), view, made) for name, computed in columns.items()]


def _column_entry(name: str, part: _Part, view: pa.Schema, made: Sequence[str]) -> dict[str, Any]:
    if isinstance(part.function, str):
        if part.inputs is not None or part.kind is not None:
            raise InvalidInputError(
                f"The column '{name}' is computed by SQL, which names its columns and has a type of its own: leave "
                "inputs and type out."
            )
        return {"name": name, "computed": part.function}
    with translate():
        function, inputs, kind = column_function(part.function, part.inputs, part.kind)
        if inputs is None and isinstance(function, ReadyMade):
            inputs = _inputs_of(name, function, view, made)
        if kind is None or not inputs:
            raise InvalidInputError(
                f"The function of the column '{name}' needs inputs, the columns that it reads, and the type of its "
                "values: {'function': …, 'inputs': …, 'type': …}, or hints that name them, as in def letters(title: "
                "str) -> int."
            )
        for column in inputs:
            if column in view.names:
                _check_type(name, function, view.field(column))
        code = pickled_function(function)
    return {
        "name": name,
        "virtual_column": {
            "input_columns": inputs,
            "data_type": json_type(kind),
            "image": "",
            "udf": code,
            "udf_name": getattr(part.function, "__name__", "function"),
            "udf_version": part.version,
        },
    }


def _parse(name: str, computed: Computed) -> _Part:
    """Return a function or SQL with what is said of it. Raises InvalidInputError."""
    if isinstance(computed, Mapping):
        unknown = [key for key in computed if key not in _KEYS]
        if unknown or "function" not in computed:
            raise InvalidInputError(f"'{name}' is a function, or a mapping of {', '.join(_KEYS)}; function is needed.")
        part = _parse(name, computed["function"])
        given = computed.get("type")
        with translate():
            kind = parse_type(given) if isinstance(given, str) else given
        inputs = list_names(computed.get("inputs"), "inputs")
        version = computed.get("version")
        return _Part(part.function, inputs or part.inputs, kind, "1" if version is None else str(version))
    if isinstance(computed, str):
        return _parse_text(computed)
    if not callable(computed):
        raise InvalidInputError(f"'{name}' is computed by {type(computed).__name__}: give a function, or SQL as text.")
    return _Part(computed)


def _parse_text(text: str) -> _Part:
    """Return a ready-made function that is written as text, or the text as SQL. Raises InvalidInputError."""
    match = _OF.fullmatch(text.strip())
    function, inputs = (match[1], [match[2]]) if match else (text.strip(), None)
    name = re.split(r"[@(]", function, maxsplit=1)[0]
    if is_ready_made(function) and any(each.name == name for each in list_functions()):
        with translate():
            return _Part(parse_ready_made(function), inputs)
    return _Part(text)


def _inputs_of(name: str, function: Any, view: pa.Schema, made: Iterable[str]) -> list[str]:
    """Return the column that a function reads where none is named: the only one of its kind, first of those `made`.

    Of several, the one that is called `text`. Of a function of the user's own, its parameters are. Raises
    InvalidInputError.
    """
    if not isinstance(function, ReadyMade):
        return list(inspect.signature(function).parameters)
    is_text = function.takes is Takes.TEXT
    fits = (pa.types.is_string, pa.types.is_large_string) if is_text else (pa.types.is_binary, pa.types.is_large_binary)
    fitting = [field.name for field in view if any(is_kind(field.type) for is_kind in fits)]
    chosen = [column for column in fitting if column in set(made)] or fitting
    chosen = [_TEXT] if _TEXT in chosen else chosen
    if len(chosen) != 1:
        has = f"several: {', '.join(chosen)}" if chosen else f"none: {', '.join(view.names)}"
        example = chosen[-1] if chosen else "…"
        raise InvalidInputError(
            f"'{name}': {function.name} reads one column of {'text' if is_text else 'images'}, and the view has {has}. "
            f"Name it: {{'function': {function.name}(…), 'inputs': '{example}'}}, or as text, "
            f"'{function.name}(…) of {example}'."
        )
    return chosen


def _check_type(name: str, function: Any, field: pa.Field) -> None:
    """Raise InvalidInputError for a column of a type that a ready-made function does not take."""
    if isinstance(function, ReadyMade):
        with translate():
            try:
                function.check_type(field.type)
            except Exception as error:
                error.args = (f"'{name}': {error}",)
                raise


def index_requests(indexes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the indexes of a view as a request has them. Raises InvalidInputError."""
    requests = []
    for index in indexes:
        if not (isinstance(index, Mapping) and {"column", "type"} <= index.keys()):
            raise InvalidInputError(
                "indexes is a list of mappings: {'column': 'vector', 'type': 'IVF_PQ'}, with name, metric and "
                "parameters where they are wanted."
            )
        if unknown := [key for key in index if key not in (*_INDEX_KEYS, "parameters")]:
            raise InvalidInputError(
                f"An index has no '{unknown[0]}': it has {', '.join(_INDEX_KEYS)}, and parameters as a mapping."
            )
        named = {_INDEX_KEYS[key]: value for key, value in index.items() if key in _INDEX_KEYS and value is not None}
        parameters = index.get("parameters") or {}
        if overlap := named.keys() & parameters.keys():
            raise InvalidInputError(f"parameters of an index have no '{min(overlap)}': it is given beside them.")
        requests.append({**named, **parameters})
    return requests
