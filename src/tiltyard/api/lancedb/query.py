"""The query body of lancedb's remote protocol, as the specification's request.

It is flat where the specification nests (`vector`, `columns`), and its full-text query is the serialized form of
Lance's own. What a field means here is in the tests' recorded corpus of bodies. A field that is not known is refused
unless it is null: a query is never run without a part of it.
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

_AS_IS = frozenset(info.encode_name for info in msgspec.structs.fields(models.QueryTableRequest))


def query_request(body: Fields) -> models.QueryTableRequest:
    """The request of a body. Raises InvalidInputError, UnsupportedOperationError (a field we do not know)."""
    fields = _given(body, {*_AS_IS, "use_lsm"}, "a query")
    if fields.pop("use_lsm", False):
        raise UnsupportedOperationError("use_lsm reads rows that are not in the table yet: this server keeps none.")
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


def _given(fields: Any, known: Collection[str], what: str) -> Fields:
    """The fields that are not null. Raises UnsupportedOperationError for one that is not known."""
    if not isinstance(fields, dict):
        raise InvalidInputError(f"The JSON of {what} is an object.")
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(given.keys() - known):
        raise UnsupportedOperationError(f"This server does not know the field '{unknown[0]}' of {what}.")
    return given


def _vector(vector: Any) -> Any:
    """Numbers are one vector, lists of numbers several; an empty list is none."""
    if not isinstance(vector, list):
        return vector
    several = bool(vector) and isinstance(vector[0], list)
    return {"multi_vector" if several else "single_vector": vector}


def _columns(columns: Any) -> Any:
    """A list of names, or expressions by alias."""
    if isinstance(columns, list):
        return {"column_names": columns}
    if isinstance(columns, dict) and all(isinstance(value, str) for value in columns.values()):
        return {"column_aliases": columns}
    return _given(columns, ("column_names", "column_aliases"), "the columns")


def _full_text(asked: Any) -> Fields:
    """`{"query": {…}}`, or `{"query": "words", "columns": […]}` as clients of older servers send it."""
    fields = _given(asked, ("query", "columns", "string_query", "structured_query"), "a full-text query")
    query = fields.get("query")
    if query is None:
        return fields
    if isinstance(query, str):
        return {"string_query": fields}
    if fields.get("columns"):
        raise InvalidInputError("A structured full-text query names its columns inside.")
    return {"structured_query": {"query": _node(query, 1)}}


def _node(query: Any, depth: int) -> Fields:
    """One node of a structured query: one kind, and what is in it."""
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"The full-text query nests deeper than {MAX_DEPTH} levels.")
    fields = _given(query, (*_LEAVES, *_BRANCHES), "a full-text query")
    return {
        kind: _LEAVES[kind](inner) if kind in _LEAVES else _BRANCHES[kind](inner, depth + 1)
        for kind, inner in fields.items()
    }


def _match(query: Any) -> Fields:
    """A fuzziness that is there and null is chosen by the length of each term."""
    fields = _given(query, _names(models.MatchQuery), "a match query")
    if "fuzziness" in query and query["fuzziness"] is None:
        fields["fuzziness"] = AUTOMATIC
    return fields


def _phrase(query: Any) -> Fields:
    return _given(query, _names(models.PhraseQuery), "a phrase query")


def _boost(query: Any, depth: int) -> Fields:
    fields = _given(query, _names(models.BoostQuery), "a boost query")
    return fields | {part: _node(fields[part], depth) for part in ("positive", "negative") if part in fields}


def _multi_match(query: Any) -> Fields:
    """The same terms in several columns, each with its boost."""
    fields = _given(query, ("query", "columns", "boost", "operator", "match_queries"), "a multi_match query")
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


def _boolean(query: Any, depth: int) -> Fields:
    occurrences = ("must", "should", "must_not")
    fields = _given(query, occurrences, "a boolean query")
    return {name: [_node(part, depth) for part in _list(fields.get(name, []), name)] for name in occurrences}


_LEAVES: Mapping[str, Callable[[Any], Fields]] = {"match": _match, "phrase": _phrase, "multi_match": _multi_match}
_BRANCHES: Mapping[str, Callable[[Any, int], Fields]] = {"boost": _boost, "boolean": _boolean}


def _names(model: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(model))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputError(f"'{name}' is a list.")
    return value
