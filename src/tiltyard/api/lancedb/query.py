"""Translate the query body of lancedb's remote protocol to the specification's request.

It is flat where the specification nests (`vector`, `columns`), and its full-text query is the serialized form of
Lance's own. The tests have a recorded corpus of bodies, which shows what a field means. An unknown field is refused
unless it is null: a query never runs without a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.spec import models
from tiltyard.tables.query.full_text import AUTOMATIC, MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Fields = dict[str, Any]

_SPECIFIED = frozenset(info.encode_name for info in msgspec.structs.fields(models.QueryTableRequest))


def query_request(body: Fields) -> models.QueryTableRequest:
    """Return the request of a body. Raises InvalidInputError, UnsupportedOperationError (an unknown field)."""
    fields = _non_null(body, {*_SPECIFIED, "use_lsm"}, "a query")
    if "use_lsm" in fields:
        fields["use_rte"] = fields.pop("use_lsm")
    if "vector" in fields:
        fields["vector"] = _vector(fields["vector"])
    if "columns" in fields:
        fields["columns"] = _columns(fields["columns"])
    if "full_text_query" in fields:
        fields["full_text_query"] = _full_text(fields["full_text_query"])
    try:
        return msgspec.convert({"vector": None} | fields, models.QueryTableRequest)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The query does not fit: {error}.") from error


def _non_null(fields: Any, allowed: Collection[str], part: str) -> Fields:
    """Return the fields that are not null. Raises UnsupportedOperationError for one that is not allowed."""
    if not isinstance(fields, dict):
        raise InvalidInputError(f"The JSON of {part} is an object.")
    non_null = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(non_null.keys() - allowed):
        raise UnsupportedOperationError(f"This server does not know the field '{unknown[0]}' of {part}.")
    return non_null


def _vector(vector: Any) -> Any:
    """Translate a vector: numbers are one vector, lists of numbers several; an empty list is none."""
    if not isinstance(vector, list):
        return vector
    is_multi = bool(vector) and isinstance(vector[0], list)
    return {"multi_vector" if is_multi else "single_vector": vector}


def _columns(columns: Any) -> Any:
    """Translate columns: a list of names, or expressions by alias."""
    if isinstance(columns, list):
        return {"column_names": columns}
    if isinstance(columns, dict) and all(isinstance(value, str) for value in columns.values()):
        return {"column_aliases": columns}
    return _non_null(columns, ("column_names", "column_aliases"), "the columns")


def _full_text(body: Any) -> Fields:
    """Translate `{"query": {…}}`, or `{"query": "words", "columns": […]}` as clients of older servers send it."""
    fields = _non_null(body, ("query", "columns", "string_query", "structured_query"), "a full-text query")
    query = fields.get("query")
    if query is None:
        return fields
    if isinstance(query, str):
        return {"string_query": fields}
    if fields.get("columns"):
        raise InvalidInputError("A structured full-text query names its columns inside.")
    return {"structured_query": {"query": _node(query, 1)}}


def _node(query: Any, depth: int) -> Fields:
    """Translate a node of a structured query: its kind, and the fields of that."""
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"The full-text query nests deeper than {MAX_DEPTH} levels.")
    fields = _non_null(query, (*_LEAVES, *_BRANCHES), "a full-text query")
    return {
        kind: _LEAVES[kind](inner) if kind in _LEAVES else _BRANCHES[kind](inner, depth + 1)
        for kind, inner in fields.items()
    }


def _match(query: Any) -> Fields:
    """Translate a match query; an explicit null for the fuzziness means: by the length of each term."""
    fields = _non_null(query, _names(models.MatchQuery), "a match query")
    if "fuzziness" in query and query["fuzziness"] is None:
        fields["fuzziness"] = AUTOMATIC
    return fields


def _phrase(query: Any) -> Fields:
    return _non_null(query, _names(models.PhraseQuery), "a phrase query")


def _boost(query: Any, depth: int) -> Fields:
    fields = _non_null(query, _names(models.BoostQuery), "a boost query")
    return fields | {part: _node(fields[part], depth) for part in ("positive", "negative") if part in fields}


def _multi_match(query: Any) -> Fields:
    """Translate a query for the same terms in several columns, each with its boost."""
    fields = _non_null(query, ("query", "columns", "boost", "operator", "match_queries"), "a multi_match query")
    if "match_queries" in fields:
        return {"match_queries": [_match(part) for part in _list(fields["match_queries"], "match_queries")]}
    columns = _list(fields.get("columns", []), "columns")
    boosts = _list(fields.get("boost", [1.0] * len(columns)), "boost")
    if len(boosts) != len(columns):
        raise InvalidInputError(f"A multi_match query of {len(columns)} columns has as many boosts, not {len(boosts)}.")
    common = {"terms": fields.get("query")} | {name: fields[name] for name in ("operator",) if name in fields}
    return {
        "match_queries": [
            common | {"column": column, "boost": boost} for column, boost in zip(columns, boosts, strict=True)
        ]
    }


def _combined_fields(query: Any) -> Fields:
    """Translate a query for the same terms in several columns as if they were one."""
    fields = _non_null(query, ("query", "columns", "boost", "operator"), "a combined_fields query")
    names = {"query": "terms", "boost": "boosts"}
    return {names.get(name, name): value for name, value in fields.items()}


def _boolean(query: Any, depth: int) -> Fields:
    occurrences = ("must", "should", "must_not")
    fields = _non_null(query, occurrences, "a boolean query")
    return {name: [_node(part, depth) for part in _list(fields.get(name, []), name)] for name in occurrences}


_LEAVES: Mapping[str, Callable[[Any], Fields]] = {
    "match": _match,
    "phrase": _phrase,
    "multi_match": _multi_match,
    "combined_fields": _combined_fields,
}
_BRANCHES: Mapping[str, Callable[[Any, int], Fields]] = {"boost": _boost, "boolean": _boolean}


def _names(model: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(model))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputError(f"'{name}' is a list.")
    return value
