"""Parse Arrow schemas and types from JSON, and serialize schemas to it, in two dialects (see the package)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_DATA = "ARROW:extension:metadata"

PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "utf8": pa.utf8(),
    "large_utf8": pa.large_utf8(),
    "utf8_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32": pa.time32("s"),
    "time64": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "duration": pa.duration("us"),
}
"""The specification's names, each with the type that readers of the specification use for it."""

LOGICAL: dict[str, pa.DataType] = {
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "large_string": pa.large_utf8(),
    "string_view": pa.string_view(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
}
"""Lance's names where they differ from the specification's and have no parameters."""

SYNONYMS: dict[str, pa.DataType] = LOGICAL | {
    "boolean": pa.bool_(),
    "largeutf8": pa.large_utf8(),
    "largestring": pa.large_utf8(),
    "largebinary": pa.large_binary(),
    "half_float": pa.float16(),
}

_PLAIN_NAMES = {kind: name for name, kind in PLAIN.items()}
_LOGICAL_NAMES = {kind: name for name, kind in LOGICAL.items()}
_DECIMALS = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
_DEFAULT_DECIMALS = {128: pa.decimal128(38, 18), 256: pa.decimal256(76, 18)}
"""The types that Java's reader uses for a decimal, whatever its length says."""
_SCALE_STEP = 1000
"""Upstream packs precision and scale of a decimal into `length`: precision * 1000 + scale."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect's names of types without children."""

    remote: bool

    def name(self, kind: pa.DataType) -> tuple[str, int | None]:
        """Return the name and the length of a type. Raises KeyError for one that has no name."""
        if self.remote and kind in _LOGICAL_NAMES:
            return _LOGICAL_NAMES[kind], None
        if (plain := _PLAIN_NAMES.get(kind)) and not (self.remote and _has_unit(kind)):
            return plain, None
        if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
            return "fixed_size_binary", kind.byte_width
        if kind in _DEFAULT_DECIMALS.values() and not self.remote:
            return f"decimal{kind.bit_width}", kind.precision * _SCALE_STEP + kind.scale
        return _parametric(kind), None


def _has_unit(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def _parametric(kind: pa.DataType) -> str:
    """Return Lance's name of a type with parameters. Raises KeyError for other types."""
    if pa.types.is_timestamp(kind):
        return f"timestamp:{kind.unit}:{kind.tz or '-'}"
    if pa.types.is_time(kind):
        return f"time{kind.bit_width}:{kind.unit}"
    if pa.types.is_duration(kind):
        return f"duration:{kind.unit}"
    if pa.types.is_decimal(kind):
        return f"decimal:{kind.bit_width}:{kind.precision}:{kind.scale}"
    raise KeyError(kind)


def parse_leaf_type(name: str, length: int | None) -> pa.DataType:
    """Return the type without children of a name in either dialect.

    Raises KeyError for an unknown name; ValueError, TypeError or pyarrow's errors for invalid parameters.
    """
    lower = name.lower()
    if kind := PLAIN.get(lower) or SYNONYMS.get(lower):
        return kind
    head, *parameters = name.split(":")
    if not parameters and (with_length := _WITH_LENGTH.get(lower)):
        return with_length(length)
    return _WITH_PARAMETERS[head.lower()](*parameters)


def _binary(width: int | None) -> pa.DataType:
    if width is None or width < 0:
        raise ValueError("fixed_size_binary needs a length")
    return pa.binary(width)


def _packed_decimal(width: int, length: int | None) -> pa.DataType:
    if length is None:
        if (default := _DEFAULT_DECIMALS.get(width)) is None:
            raise ValueError("it needs a length: precision * 1000 + scale")
        return default
    precision = (length + 128) // _SCALE_STEP  # the scale may be negative, down to -128
    return _DECIMALS[width](precision, length - precision * _SCALE_STEP)


def _timestamp(unit: str, *zone: str) -> pa.DataType:
    text = ":".join(zone)
    return pa.timestamp(unit, tz=None if text in ("", "-") else text)


def _decimal(width: str, precision: str, scale: str) -> pa.DataType:
    if int(width) not in _DECIMALS:
        raise ValueError(f"a decimal has {', '.join(map(str, _DECIMALS))} bits")
    return _DECIMALS[int(width)](int(precision), int(scale))


_WITH_LENGTH: dict[str, Callable[[int | None], pa.DataType]] = {
    "fixed_size_binary": _binary,
    "fixedsizebinary": _binary,
} | {f"decimal{width}": partial(_packed_decimal, width) for width in _DECIMALS}

_WITH_PARAMETERS: dict[str, Callable[..., pa.DataType]] = {
    "fixed_size_binary": lambda width: _binary(int(width)),
    "timestamp": _timestamp,
    "time32": pa.time32,
    "time64": pa.time64,
    "duration": pa.duration,
    "decimal": _decimal,
}


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
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(f"This data type is not JSON: {error}.") from error


def _convert(value: Any, kind: Any) -> Any:
    if isinstance(value, kind):
        return value
    try:
        return msgspec.convert(_with_nullability(value), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"This is no Arrow schema or type in JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidInputError("This data type is nested too deeply.") from error


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
        try:
            return pa.ipc.read_schema(pa.schema([arrow_field]).serialize()).field(0)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(f"The field '{field.name}' is not of its extension type: {error}.") from error
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


_LISTS = {
    pa.lib.Type_LIST: "list",
    pa.lib.Type_LARGE_LIST: "large_list",
    pa.lib.Type_FIXED_SIZE_LIST: "fixed_size_list",
    pa.lib.Type_LIST_VIEW: "list_view",
    pa.lib.Type_LARGE_LIST_VIEW: "large_list_view",
}
_SPECIFICATION = Dialect(remote=False)
_REMOTE = Dialect(remote=True)


def to_json(schema: pa.Schema) -> models.JsonArrowSchema:
    """Serialize a schema in the specification's dialect; `from_json` returns the same schema for it.

    Raises UnsupportedOperationError for types that Lance cannot store either (unions, run-end encoding, intervals).
    """
    return _schema_json(schema, _SPECIFICATION)


def to_remote_json(schema: pa.Schema) -> dict[str, Any]:
    """Serialize a schema in the remote dialect; lancedb reads the same schema from it.

    Two kinds of types are exceptions, for which lancedb 0.40 has no name: a map is written as the list of structs that
    it consists of, and a dictionary whose values have parameters (decimals, timestamps, nested) as its values, so that
    such a table can be opened at all. Raises what `to_json` raises.
    """
    document: dict[str, Any] = msgspec.to_builtins(_schema_json(schema, _REMOTE))
    return document


def _schema_json(schema: pa.Schema, dialect: Dialect) -> models.JsonArrowSchema:
    return models.JsonArrowSchema(
        fields=[_field_json(field, dialect) for field in schema], metadata=_text(schema.metadata) or None
    )


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Decode metadata; bytes that are not UTF-8, which JSON cannot hold, are escaped."""
    return {
        key.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
        for key, value in (metadata or {}).items()
    }


def _field_json(field: pa.Field, dialect: Dialect) -> models.JsonArrowField:
    kind, metadata = field.type, _text(field.metadata)
    if isinstance(kind, pa.BaseExtensionType):
        metadata |= _extension(kind)
        kind = kind.storage_type
    return models.JsonArrowField(
        name=field.name, nullable=field.nullable, type=_type_json(kind, dialect), metadata=metadata or None
    )


def _extension(kind: pa.BaseExtensionType) -> dict[str, str]:
    """Return the metadata by which an extension type differs from its storage type."""
    if isinstance(kind, pa.FixedShapeTensorType):  # pyarrow does not expose the serialization of Arrow's own types
        parts = {"shape": kind.shape, "dim_names": kind.dim_names, "permutation": kind.permutation}
        data = msgspec.json.encode({name: part for name, part in parts.items() if part is not None})
    elif isinstance(kind, pa.OpaqueType):
        data = msgspec.json.encode({"type_name": kind.type_name, "vendor_name": kind.vendor_name})
    elif isinstance(kind, pa.ExtensionType):
        data = kind.__arrow_ext_serialize__()
    else:
        data = b""
    return {EXTENSION_NAME: kind.extension_name, EXTENSION_DATA: data.decode(errors="backslashreplace")}


def _type_json(kind: pa.DataType, dialect: Dialect) -> models.JsonArrowDataType:
    if pa.types.is_struct(kind):
        return models.JsonArrowDataType(type="struct", fields=[_field_json(child, dialect) for child in kind])
    if name := _LISTS.get(kind.id):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return models.JsonArrowDataType(type=name, fields=[_field_json(kind.value_field, dialect)], length=length)
    if pa.types.is_map(kind):
        return _map_json(kind, dialect)
    if pa.types.is_dictionary(kind):
        return _dictionary_json(kind, dialect)
    try:
        name, length = dialect.name(kind)
    except KeyError as error:
        raise UnsupportedOperationError(f"Arrow's type {kind} cannot be stored in a Lance table.") from error
    return models.JsonArrowDataType(type=name, length=length)


def _map_json(kind: pa.MapType, dialect: Dialect) -> models.JsonArrowDataType:
    pair = models.JsonArrowDataType(
        type="struct", fields=[_field_json(kind.key_field, dialect), _field_json(kind.item_field, dialect)]
    )
    entries = models.JsonArrowField(name="entries", nullable=False, type=pair)
    name = "list" if dialect.remote else "map:sorted" if kind.keys_sorted else "map"
    return models.JsonArrowDataType(type=name, fields=[entries])


def _dictionary_json(kind: pa.DictionaryType, dialect: Dialect) -> models.JsonArrowDataType:
    """Serialize `dict:<values>:<indices>:<ordered>`, with the values' own fields and length."""
    values = _type_json(kind.value_type, dialect)
    if dialect.remote and (":" in values.type or values.fields or values.length is not None):
        return values
    indices, _ = dialect.name(kind.index_type)
    values.type = f"dict:{values.type}:{indices}:{str(kind.ordered).lower()}"
    return values
