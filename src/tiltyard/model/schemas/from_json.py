"""Parse Arrow schemas and types from JSON, in either dialect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.schemas.type_names import EXTENSION_NAME, parse_leaf_type
from tiltyard.model.spec import models

Children = list[pa.Field]
Builder = Callable[[models.JsonArrowDataType], pa.DataType]

_BFLOAT16 = "lance.bfloat16"


def from_json(value: models.JsonArrowSchema | dict[str, Any]) -> pa.Schema:
    """Parse a schema in either dialect. Raises InvalidInputError."""
    model = _convert(value, models.JsonArrowSchema)
    return pa.schema([_field(field) for field in model.fields], metadata=model.metadata)


def parse_type(value: models.JsonArrowDataType | dict[str, Any] | str) -> pa.DataType:
    """Parse a type: an object in either dialect, its JSON text, or a plain name.

    `{"type": "int32"}`, `'{"type": "int32"}'`, `'"int32"'`, `"int32"`, `"float"`, `"fixed_size_list:float:128"`.
    Raises InvalidInputError.
    """
    if isinstance(value, str):
        value = _decode(value.strip())
    if isinstance(value, str):
        return _type(models.JsonArrowDataType(type=value.strip()))
    return _type(_convert(value, models.JsonArrowDataType))


def _decode(text: str) -> Any:
    if not text.startswith(("{", '"')):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"This data type is not JSON: {error}.") from error


def _convert(value: Any, kind: Any) -> Any:
    if isinstance(value, kind):
        return value
    try:
        return msgspec.convert(_with_nullability(value), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"This is no Arrow schema or type in JSON: {error}.") from error


def _with_nullability(value: Any) -> Any:
    """Return the JSON with `nullable` on all fields: true where it is absent, as in Arrow."""
    if isinstance(value, list):
        return [_with_nullability(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    inner = {name: item if name == "metadata" else _with_nullability(item) for name, item in value.items()}
    if "name" in inner and inner.get("nullable") is None:
        inner["nullable"] = True
    if "name" in inner and isinstance(inner.get("type"), str):
        inner["type"] = {"type": inner["type"]}
    return inner


def _field(field: models.JsonArrowField) -> pa.Field:
    try:
        arrow_field = pa.field(field.name, _type(field.type), field.nullable, metadata=field.metadata)
    except ValueError as error:
        raise InvalidInputError(f"The field '{field.name}' cannot be: {error}.") from error
    if EXTENSION_NAME in (field.metadata or {}):  # Arrow makes extension types while it reads IPC
        return pa.ipc.read_schema(pa.schema([arrow_field]).serialize()).field(0)
    return arrow_field


def _type(model: models.JsonArrowDataType) -> pa.DataType:
    try:
        return _build(model)
    except KeyError as error:
        raise InvalidInputError(
            f"Unknown data type '{model.type}': use a name such as int64, float32, utf8, timestamp:us:UTC,"
            f" decimal:128:10:2 or fixed_size_list:float:128, or an object such as {{'type': 'int64'}}."
        ) from error
    except TypeError as error:
        raise InvalidInputError(f"The data type '{model.type}' has too few or too many parameters.") from error
    except RecursionError as error:
        raise InvalidInputError("This data type is nested too deeply.") from error
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidInputError(f"The data type '{model.type}' cannot be: {str(error).rstrip('.')}.") from error


def _build(model: models.JsonArrowDataType) -> pa.DataType:
    """Build a type with its children. Raises KeyError for an unknown name, ValueError for invalid parameters."""
    name = model.type.lower()
    if builder := _NESTED.get(name):
        return builder(model)
    if name.startswith("dict:"):
        return _dictionary(model)
    if name.startswith("fixed_size_list:"):
        return _named_list(model)
    return parse_leaf_type(model.type, model.length)


def _children(model: models.JsonArrowDataType) -> Children:
    if model.fields is None:
        raise ValueError("it needs 'fields'")
    return [_field(child) for child in model.fields]


def _only_child(model: models.JsonArrowDataType) -> pa.Field:
    children = _children(model)
    if len(children) != 1:
        raise ValueError(f"it needs one field, not {len(children)}")
    return children[0]


def _length(length: int | None) -> int:
    if length is None or not 0 <= length < 1 << 31:
        raise ValueError("it needs a length")
    return length


def _named_list(model: models.JsonArrowDataType) -> pa.DataType:
    """Build `fixed_size_list:<items>:<length>`, Lance's own name; `fields` are those of the items, if they have any."""
    items, _, length = model.type.partition(":")[2].rpartition(":")
    if items == _BFLOAT16:
        item = pa.field("item", pa.binary(2), metadata={EXTENSION_NAME: _BFLOAT16})
        return pa.list_(item, _length(int(length)))
    inner = models.JsonArrowDataType(type=items, fields=model.fields, length=model.length)
    return pa.list_(pa.field("item", _type(inner)), _length(int(length)))


def _map(model: models.JsonArrowDataType, *, keys_sorted: bool) -> pa.DataType:
    """Build a map, whose fields are one field of entries (as upstream has it), or key and value."""
    children = _children(model)
    if len(children) == 1 and pa.types.is_struct(children[0].type):
        children = list(children[0].type)
    if len(children) != 2:
        raise ValueError("it needs the fields of a key and a value")
    key, item = children
    return pa.map_(key.with_nullable(False), item, keys_sorted=keys_sorted)


def _dictionary(model: models.JsonArrowDataType) -> pa.DataType:
    """Build `dict:<values>:<indices>:<ordered>`; the name of the values may have colons itself."""
    parts = model.type.partition(":")[2].rsplit(":", 2)
    if len(parts) != 3:
        raise ValueError("it is dict:VALUES:INDICES:ORDERED")
    values, indices, ordered = parts
    inner = models.JsonArrowDataType(type=values, fields=model.fields, length=model.length)
    return pa.dictionary(parse_leaf_type(indices, None), _type(inner), ordered=ordered.lower() == "true")


def _list(make: Callable[[pa.Field], pa.DataType]) -> Builder:
    return lambda model: make(_only_child(model))


def _fixed_size_list(model: models.JsonArrowDataType) -> pa.DataType:
    return pa.list_(_only_child(model), _length(model.length))


_NESTED: dict[str, Builder] = {
    "list": _list(pa.list_),
    "list.struct": _list(pa.list_),
    "large_list": _list(pa.large_list),
    "large_list.struct": _list(pa.large_list),
    "largelist": _list(pa.large_list),
    "list_view": _list(pa.list_view),
    "large_list_view": _list(pa.large_list_view),
    "fixed_size_list": _fixed_size_list,
    "fixedsizelist": _fixed_size_list,
    "struct": lambda model: pa.struct(_children(model)),
    "map": partial(_map, keys_sorted=False),
    "map:sorted": partial(_map, keys_sorted=True),
}
"""Builders of types with children, by the names of both dialects and of Java's and Rust's writers."""
