"""Functions on JSON texts that queries call: each takes arrays of arguments, and returns an array of results.

A null argument makes null. A JSON value is a text: `json_extract` and its like return texts that are JSON again.

Whether a value contains another one DuckDB's `json_contains` and PostgreSQL's `@>` say in different ways: `@>` compares
from the outermost value on, `json_contains` looks for the value at any depth. To PostgreSQL the numbers 1 and 1.0 are
equal, to DuckDB they are not. Comparisons of one pair of values are counted, so that two long lists do not take the
product of their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.sql.dialects.functions import FunctionError, SqlFunction
from tiltyard.sql.dialects.json_documents import (
    Document,
    Step,
    check,
    check_depths,
    elements,
    find,
    find_all,
    is_json,
    kind_of,
    members,
    parse_path,
    read,
    texts_at,
    to_json,
    to_text,
)

MAX_COMPARISONS = 100_000
"""Pairs of values that one containment compares."""
_KEPT = 64
"""Values that were looked for, which are mostly one for all rows."""

_read_exactly = msgspec.json.Decoder(float_hook=Decimal).decode


class _Comparison:
    """One containment, which may compare so many pairs of values."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise FunctionError(
                f"A JSON value is compared with another one in more than {MAX_COMPARISONS} pairs: compare less of it,"
                " as by -> 'key'."
            )

    def is_found(self, value: Any, wanted: Any) -> bool:
        """Return whether a value, or one within it, has all of another one."""
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if self._has_all(current, wanted):
                return True
            if isinstance(current, dict):
                waiting += current.values()
            elif isinstance(current, list):
                waiting += current
        return False

    def _has_all(self, value: Any, wanted: Any) -> bool:
        self.count()
        if type(value) is not type(wanted):
            return False
        if isinstance(value, dict):
            return all(key in value and self._has_all(value[key], each) for key, each in wanted.items())
        if isinstance(value, list):
            return all(any(self._has_all(own, each) for own in value) for each in wanted)
        return bool(value == wanted)

    def contains(self, value: Any, wanted: Any) -> bool:
        """Return whether a value has all of another one in the places where that has it."""
        self.count()
        if isinstance(wanted, dict):
            return isinstance(value, dict) and all(
                key in value and self.contains(value[key], each) for key, each in wanted.items()
            )
        if isinstance(wanted, list):
            return isinstance(value, list) and all(any(self.contains(own, each) for own in value) for each in wanted)
        return not isinstance(value, dict | list) and _is_bool(value) == _is_bool(wanted) and bool(value == wanted)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


@lru_cache(_KEPT)
def _read_wanted(text: str, *, exactly: bool) -> Any:
    return read(text, _read_exactly) if exactly else read(text)


def is_found(document: str, wanted: str) -> bool:
    """Return whether a JSON text has another one, at any depth (DuckDB's `json_contains`)."""
    return _Comparison().is_found(read(document), _read_wanted(wanted, exactly=False))


def contains(document: str, wanted: str) -> bool:
    """Return whether a JSON text contains another one from its outermost value on (PostgreSQL's `@>`)."""
    value, other = read(document, _read_exactly), _read_wanted(wanted, exactly=True)
    comparison = _Comparison()
    if isinstance(value, list) and not isinstance(other, dict | list):  # the one exception that PostgreSQL makes
        return any(comparison.contains(each, other) for each in value)
    return comparison.contains(value, other)


_TEXTS = pa.list_(pa.string())


def _values(array: pa.Array) -> list[Any]:
    """Return the values of an array; of texts in a third of the time that `to_pylist` takes."""
    if pa.types.is_string(array.type):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    return list(array.to_pylist())


def _by_document(function: Callable[..., Any], kind: pa.DataType, documents: pa.Array, *others: pa.Array) -> pa.Array:
    """Return the results of a function of a JSON text and other values, row by row."""
    texts = _values(documents)
    check_depths(texts)
    columns = [_values(other) for other in others]
    results = [
        None if text is None or None in rest else function(text, *rest)
        for text, rest in zip(texts, zip(*columns, strict=True) if columns else repeat(()), strict=bool(columns))
    ]
    return pa.array(results, kind)


def _by_path(
    function: Callable[[Sequence[Document | None], Sequence[Step]], Sequence[Any]],
    kind: pa.DataType,
    steps_of: Callable[[str | int], Sequence[Step]],
    documents: pa.Array,
    paths: pa.Array,
) -> pa.Array:
    """Return what a function of documents and of the steps of a path returns: mostly it is one path for all of them."""
    texts = _values(documents)
    check_depths(texts)
    path = paths[0].as_py() if len(paths) else None
    if path is not None and pc.all(pc.equal(paths, path), skip_nulls=False).as_py():
        return pa.array(function(texts, steps_of(path)), kind)
    results = [
        None if text is None or each is None else function((text,), steps_of(each))[0]
        for text, each in zip(texts, _values(paths), strict=True)
    ]
    return pa.array(results, kind)


def _steps_of(path: str | int) -> tuple[Step, ...]:
    return (path,) if isinstance(path, int) else parse_path(path)


def _one_step(key: str | int) -> tuple[Step]:
    """Return the step that a key as such is, or a position."""
    return (key,)


def _of_each(
    function: Callable[[Document], Any], documents: Sequence[Document | None], steps: Sequence[Step]
) -> Sequence[Any]:
    return [None if value is None else function(value) for value in find_all(documents, steps)]


def _json_or_none(value: Document | None) -> str | None:
    return None if value is None else to_json(value)


def _text_or_none(value: Document | None) -> str | None:
    return None if value is None else to_text(value)


def _walk(document: str, names: Sequence[str]) -> Document | None:
    """Return the value at some names, which are positions in lists: PostgreSQL's path, and Lance's."""
    value: Document | None = document
    if not names:
        check(document)
    for name in names:
        if value is None or name is None:
            return None
        step: Step = name
        if kind_of(value) == "array":
            digits = name.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
                check(value)
                return None
            step = int(name)
        value = find(value, (step,))
    return value


def _walked(document: str, names: Sequence[str]) -> str | None:
    return _json_or_none(_walk(document, names))


def _walked_as_text(document: str, names: Sequence[str]) -> str | None:
    return _text_or_none(_walk(document, names))


def _got(document: str, name: str) -> str | None:
    return _json_or_none(_walk(document, (name,)))


def _got_as_text(document: str, name: str) -> str | None:
    return _text_or_none(_walk(document, (name,)))


def _exist(documents: Sequence[Document | None], steps: Sequence[Step]) -> Sequence[bool | None]:
    found = find_all(documents, steps)
    return [None if text is None else value is not None for text, value in zip(documents, found, strict=True)]


def _length(value: Document) -> int:
    found = elements(value)
    return 0 if found is None else len(found)


def _length_of_list(document: str) -> int:
    return len(_listed(document, "jsonb_array_length"))


def _listed(document: str, function: str) -> list[Any]:
    found = elements(document)
    if found is None:
        raise FunctionError(f"{function} takes lists alone, and a row has another value (see json_typeof).")
    return found


def _keys(value: Document) -> list[str]:
    return list(members(value) or ())


def _keys_of_object(document: str) -> list[str]:
    found = members(document)
    if found is None:
        raise FunctionError("json_object_keys takes objects alone, and a row has another value (see json_typeof).")
    return list(found)


def _elements(document: str) -> list[str]:
    return [to_json(value) for value in _listed(document, "json_array_elements")]


def _elements_as_texts(document: str) -> list[str | None]:
    return [to_text(value) for value in _listed(document, "json_array_elements_text")]


_DUCKDB_KINDS = {"object": "OBJECT", "array": "ARRAY", "string": "VARCHAR", "boolean": "BOOLEAN", "null": "NULL"}


def _duckdb_kind(value: Document) -> str:
    kind = kind_of(value)
    if kind != "number":
        return _DUCKDB_KINDS[kind]
    written = (value if isinstance(value, str) else bytes(value).decode()).strip()
    if any(mark in written for mark in ".eE"):
        return "DOUBLE"
    return "BIGINT" if written[0] == "-" else "UBIGINT"


def _checked_kind(document: str) -> str:
    check(document)
    return kind_of(document)


def _checked(document: str) -> str:
    check(document)
    return to_json(document)


def _checked_or_none(document: str) -> str | None:
    return to_json(document) if is_json(document) else None


def _valid(documents: pa.Array) -> pa.Array:
    return pa.array([None if text is None else is_json(text) for text in _values(documents)], pa.bool_())


def _tried(documents: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _checked_or_none(text) for text in _values(documents)], pa.string())


def _is_contained(document: str, outer: str) -> bool:
    return contains(outer, document)


def _has_key(document: str, key: str) -> bool:
    """Return whether a key, or a text of a list, exists (PostgreSQL's `?`)."""
    match kind_of(document):
        case "object":
            return find(document, (key,)) is not None
        case "array":
            return key in (read(value) for value in elements(document) or () if kind_of(value) == "string")
    return bool(read(document) == key)


def _has_any_key(document: str, keys: Sequence[str | None]) -> bool:
    return any(key is not None and _has_key(document, key) for key in keys)


def _has_all_keys(document: str, keys: Sequence[str | None]) -> bool:
    return all(key is None or _has_key(document, key) for key in keys)


def _list_has(document: str, path: str, value: str) -> bool:
    """Return whether the list at a path has a text, a number or another value that is written like this (Lance's)."""
    found = find(document, parse_path(path))
    listed = None if found is None else elements(found)
    return any(value in (to_json(each), to_text(each)) for each in listed or ())


def _function(name: str, results: pa.DataType, function: Callable[..., Any], *others: pa.DataType) -> SqlFunction:
    return SqlFunction(name, (pa.string(), *others), results, partial(_by_document, function, results))


def _path_function(name: str, results: pa.DataType, function: Callable[..., Any]) -> SqlFunction:
    return SqlFunction(name, (pa.string(), pa.string()), results, partial(_by_path, function, results, _steps_of))


def _key_function(name: str, key: pa.DataType, function: Callable[..., Any]) -> SqlFunction:
    return SqlFunction(name, (pa.string(), key), pa.string(), partial(_by_path, function, pa.string(), _one_step))


JSON_FUNCTIONS = (
    _path_function("json_extract", pa.string(), partial(_of_each, to_json)),
    _path_function("json_extract_string", pa.string(), texts_at),
    _path_function("json_array_length", pa.int64(), partial(_of_each, _length)),
    _path_function("json_keys", _TEXTS, partial(_of_each, _keys)),
    _path_function("json_type", pa.string(), partial(_of_each, _duckdb_kind)),
    _path_function("json_exists", pa.bool_(), _exist),
    _key_function("json_key", pa.string(), partial(_of_each, to_json)),
    _key_function("json_key_text", pa.string(), texts_at),
    _key_function("json_position", pa.int64(), partial(_of_each, to_json)),
    _key_function("json_position_text", pa.int64(), texts_at),
    _function("json_walk", pa.string(), _walked, _TEXTS),
    _function("json_walk_text", pa.string(), _walked_as_text, _TEXTS),
    _function("json_get", pa.string(), _got, pa.string()),
    _function("json_get_string", pa.string(), _got_as_text, pa.string()),
    _function("jsonb_array_length", pa.int64(), _length_of_list),
    _function("json_object_keys", _TEXTS, _keys_of_object),
    _function("json_array_elements", _TEXTS, _elements),
    _function("json_array_elements_text", _TEXTS, _elements_as_texts),
    _function("json_typeof", pa.string(), _checked_kind),
    _function("json", pa.string(), _checked),
    SqlFunction("json_try", (pa.string(),), pa.string(), _tried),
    SqlFunction("json_valid", (pa.string(),), pa.bool_(), _valid),
    _function("json_contains", pa.bool_(), is_found, pa.string()),
    _function("jsonb_contains", pa.bool_(), contains, pa.string()),
    _function("jsonb_contained", pa.bool_(), _is_contained, pa.string()),
    _function("jsonb_exists", pa.bool_(), _has_key, pa.string()),
    _function("jsonb_exists_any", pa.bool_(), _has_any_key, _TEXTS),
    _function("jsonb_exists_all", pa.bool_(), _has_all_keys, _TEXTS),
    _function("json_array_contains", pa.bool_(), _list_has, pa.string(), pa.string()),
)
