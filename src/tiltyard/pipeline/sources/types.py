"""Types of columns: as users write them, and of files that differ, merged into types that hold the values of all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tiltyard.model.columns.blob_columns import BLOB_TYPE
from tiltyard.model.refusals import RefusedError

_VECTOR = re.compile(r"(.+)\[(\d+)\]")
_SQL_VECTOR = re.compile(r"vector\((\d+)\)", re.IGNORECASE)
_DECIMAL = re.compile(r"(?:decimal|numeric)(128|256)?\((\d+), *(-?\d+)\)", re.IGNORECASE)
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, *(?:tz=)?([^\]]+))?\]")
_LIST = re.compile(r"(large_)?list<(?:(?:item|element): *)?(.+)>")
_STRUCT = re.compile(r"struct<(.+)>")
_FIELD = re.compile(r"([^:]+): *(.+)")
_KEY_AND_VALUE = 2
_OPEN, _CLOSE = "<([", ">)]"
_BINARY = re.compile(r"fixed_size_binary[(\[](\d+)[)\]]")
_FIXED_LIST = re.compile(r"fixed_size_list<(?:(?:item|element): *)?(.+)>\[(\d+)\]")
_MAP = re.compile(r"map<(.+)>")
_DICTIONARY = re.compile(r"dictionary<values=(.+), *indices=(\w+), *ordered=([01])>")


BLOB = "blob"
"""The name of Lance's type of blobs."""
_SQL_NAMES = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "real": "float32",
    "text": "string",
    "varchar": "string",
    "bytea": "binary",
    "date": "date32[day]",
    "time": "time64[us]",
    "timestamp": "timestamp[us]",
    "timestamptz": "timestamp[us, UTC]",
}
"""SQL's names of types, in any case, where pyarrow has others."""


def parse_type(text: str | pa.DataType) -> pa.DataType:
    """Return a type, which is given by its name or itself. Raises RefusedError for what is none.

    `int64`, `float32`, `string`, `bool`, `date32`, … are pyarrow's names; besides `float32[128]` (a vector),
    `decimal(10, 2)`, `timestamp[us, UTC]`, `list<string>`, `large_list<…>`, `struct<a: int64, b: string>`,
    `fixed_size_binary(16)`, `map<string, int64>`, `blob` (bytes that Lance stores apart from their rows), and what
    pyarrow prints of its types. SQL's names mean what they mean in a query (`bigint`, `text`, `timestamp`), and
    `vector(128)` is `float32[128]`.
    """
    if isinstance(text, pa.DataType):
        return text
    if not isinstance(text, str):
        raise RefusedError(f"{text!r} is no type: give a type of pyarrow's (pa.int64()), or its name ('int64').")
    text = text.strip()
    text = _SQL_NAMES.get(text.lower(), text)
    if text == BLOB:
        return _blob_type()
    if (sized := _parse_sized(text)) is not None:
        return sized
    if (nested := _parse_nested(text)) is not None:
        return nested
    try:
        return pa.type_for_alias(text)
    except ValueError:
        if match := _VECTOR.fullmatch(text):
            return pa.list_(parse_type(match[1]), int(match[2]))
        raise RefusedError(
            f"'{text}' is not a type: write int64, float32, string, float32[128], decimal(10, 2), timestamp[us, UTC], "
            "list<string>, … (pyarrow's names), or SQL's: bigint, text, timestamp, vector(128), …"
        ) from None


def _parse_sized(text: str) -> pa.DataType | None:
    """Return a type whose name has a number or a unit; None for a name of another form."""
    if match := _SQL_VECTOR.fullmatch(text):
        return pa.list_(pa.float32(), int(match[1]))
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        kind = pa.decimal256 if match[1] == "256" else pa.decimal128
        return kind(int(match[2]), int(match[3]))
    if match := _BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    return None


def _parse_nested(text: str) -> pa.DataType | None:
    """Return a type that has others inside it; None for a name of another form. Raises RefusedError."""
    if match := _FIXED_LIST.fullmatch(text):
        return pa.list_(parse_type(match[1]), int(match[2]))
    if (match := _MAP.fullmatch(text)) and len(parts := _split_at_commas(match[1])) == _KEY_AND_VALUE:
        return pa.map_(parse_type(parts[0]), parse_type(parts[1]))
    if match := _DICTIONARY.fullmatch(text):
        return pa.dictionary(parse_type(match[2]), parse_type(match[1]), match[3] == "1")
    if match := _LIST.fullmatch(text):
        return pa.large_list(parse_type(match[2])) if match[1] else pa.list_(parse_type(match[2]))
    if (match := _STRUCT.fullmatch(text)) and all(
        fields := [_FIELD.fullmatch(part.strip()) for part in _split_at_commas(match[1])]
    ):
        return pa.struct([(field[1], parse_type(field[2])) for field in fields if field])
    return None


def format_type(dtype: pa.DataType) -> str:
    """Return a type as `parse_type` reads it."""
    if pa.types.is_list(dtype):
        return f"list<{format_type(dtype.value_type)}>"
    if pa.types.is_large_list(dtype):
        return f"large_list<{format_type(dtype.value_type)}>"
    if pa.types.is_fixed_size_list(dtype):
        return f"{format_type(dtype.value_type)}[{dtype.list_size}]"
    if pa.types.is_map(dtype):
        return f"map<{format_type(dtype.key_type)}, {format_type(dtype.item_type)}>"
    if pa.types.is_struct(dtype):
        return f"struct<{', '.join(f'{field.name}: {format_type(field.type)}' for field in dtype)}>"
    if getattr(dtype, "extension_name", None) == BLOB_TYPE:
        return BLOB
    return str(dtype)


def type_name(value: str | pa.DataType) -> str:
    """Return the name of a type, which is given by its name or itself, as jobs take it.

    Raises RefusedError for what is no type, and for a type that has no name.
    """
    dtype = parse_type(value)
    if isinstance(value, str):
        return value
    name = format_type(dtype)
    try:
        is_named = parse_type(name) == dtype
    except RefusedError:
        is_named = False
    if not is_named:
        raise RefusedError(
            f"{dtype} has no name by which a job could be given it: take one whose inner fields are nullable."
        )
    return name


def _blob_type() -> pa.DataType:
    from lance.blob import BlobType  # noqa: PLC0415  # imported late: commands that only parse do not need Lance

    return BlobType()


def _split_at_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_DIGITS_128, _DIGITS_256 = 38, 76
_FLOAT32_BITS = 16
"""Every integer of up to so many bits is exact in a float32; wider ones need a float64."""


class SchemaMode(StrEnum):
    """How the differing schemas of a source's files are handled."""

    UNION = "union"
    FIRST = "first"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The schema of a file."""

    path: str
    schema: pa.Schema


def merge_schemas(
    files: Iterable[FileSchema],
    mode: SchemaMode = SchemaMode.UNION,
    types: Mapping[str, pa.DataType] | None = None,
    only: Collection[str] = (),
) -> pa.Schema:
    """Merge the schemas of files; columns are in the order of their first appearance.

    `types` override the files' types; columns that are not in `only` (empty: all) may differ. A column that a file
    lacks is nullable. Raises RefusedError where no type holds the values of all (union), for any difference (strict),
    for a name that a file has twice.
    """
    merged: dict[str, pa.Field] = {}
    origins: dict[str, str] = {}
    first: FileSchema | None = None
    previous: pa.Schema | None = None
    for file in files:
        if previous is not None and file.schema.equals(previous):
            continue
        previous = file.schema
        check_column_names(file)
        fields = {field.name: field for field in file.schema if not only or field.name in only}
        if first is None:
            first, merged, origins = file, fields, dict.fromkeys(fields, file.path)
            continue
        if mode is SchemaMode.STRICT:
            _check_same_schema(first.path, merged, file.path, fields)
        merged = {name: field if name in fields else field.with_nullable(True) for name, field in merged.items()}
        if mode is SchemaMode.UNION:
            _check_case(merged, origins, file.path, fields)
            for name, field in fields.items():
                old = merged.get(name, field.with_nullable(True))
                merged[name] = _merge_fields(old, field, origins.setdefault(name, file.path), file.path, types or {})
    for name, dtype in (types or {}).items():
        if name in merged:
            merged[name] = merged[name].with_type(dtype)
    return pa.schema(merged.values())


def check_column_names(file: FileSchema) -> None:
    """Raise RefusedError for a column name that a file has twice, or an empty one."""
    names: set[str] = set()
    for name in file.schema.names:
        if not name:
            raise RefusedError(f"{file.path} has a column without a name: give it one there.")
        if name in names:
            raise RefusedError(f"{file.path} has two columns called '{name}': give one of them another name there.")
        names.add(name)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds all values of both, or None.

    Some values have to be checked one by one when they are cast to it.
    """
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    for rule in (_common_number, _common_time, _common_text, _common_nested):
        if (dtype := rule(left, right) or rule(right, left)) is not None:
            return dtype
    return None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_floating(left) and pa.types.is_floating(right):
        return max(left, right, key=lambda dtype: dtype.bit_width)
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return _common_integer(left, right)
    if pa.types.is_integer(left) and pa.types.is_floating(right):
        return right if left.bit_width <= _FLOAT32_BITS and pa.types.is_float32(right) else pa.float64()
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return _decimal(max(left.precision - left.scale, right.precision - right.scale), max(left.scale, right.scale))
    if pa.types.is_decimal(left) and pa.types.is_integer(right):
        return _decimal(max(left.precision - left.scale, _INTEGER_DIGITS[right.bit_width]), left.scale)
    return None


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
        return max(left, right, key=lambda dtype: dtype.bit_width)
    signed, unsigned = (left, right) if pa.types.is_signed_integer(left) else (right, left)
    wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(unsigned.bit_width)
    return None if wider is None else max(signed, wider, key=lambda dtype: dtype.bit_width)


def _decimal(integers: int, scale: int) -> pa.DataType | None:
    digits = integers + scale
    if digits > _DIGITS_256:
        return None
    return pa.decimal128(digits, scale) if digits <= _DIGITS_128 else pa.decimal256(digits, scale)


def _common_time(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right) and left.tz == right.tz:
        return _finer_unit(left, right)
    for is_kind in (pa.types.is_time, pa.types.is_duration):
        if is_kind(left) and is_kind(right):
            return _finer_unit(left, right)
    if pa.types.is_date(left) and pa.types.is_date(right):
        return pa.date32()
    if pa.types.is_date(left) and pa.types.is_timestamp(right) and right.tz is None:
        return right
    return None


def _finer_unit(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return max(left, right, key=lambda dtype: _UNITS.index(dtype.unit))


def _common_text(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if _is_text(left) and _is_text(right):
        return pa.large_string() if pa.large_string() in (left, right) else pa.string()
    if _is_bytes(left) and _is_bytes(right):
        return pa.large_binary() if pa.large_binary() in (left, right) else pa.binary()
    if pa.types.is_dictionary(left) and pa.types.is_dictionary(right):
        values = common_type(left.value_type, right.value_type)
        index = max(left.index_type, right.index_type, key=lambda dtype: dtype.bit_width)
        return None if values is None else pa.dictionary(index, values, left.ordered and right.ordered)
    return common_type(left.value_type, right) if pa.types.is_dictionary(left) else None


def _is_text(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(dtype) for is_kind in kinds)


def _is_bytes(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(is_kind(dtype) for is_kind in kinds)


def _common_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return _common_struct(left, right)
    if pa.types.is_map(left) and pa.types.is_map(right):
        key, item = common_type(left.key_type, right.key_type), _common_field(left.item_field, right.item_field)
        return None if key is None or item is None else pa.map_(key, item)
    if not (_is_list(left) and _is_list(right)):
        return None
    value = _common_field(left.value_field, right.value_field)
    if value is None:
        return None
    if pa.types.is_fixed_size_list(left) and pa.types.is_fixed_size_list(right) and left.list_size == right.list_size:
        return pa.list_(value, left.list_size)
    return pa.large_list(value) if any(map(pa.types.is_large_list, (left, right))) else pa.list_(value)


def _common_struct(left: pa.StructType, right: pa.StructType) -> pa.DataType | None:
    fields: dict[str, pa.Field] = {field.name: field for field in left}
    if len(fields) < left.num_fields or len({field.name for field in right}) < right.num_fields:
        return None
    right_names = {field.name for field in right}
    fields = {name: field if name in right_names else field.with_nullable(True) for name, field in fields.items()}
    for field in right:
        merged = _common_field(fields.get(field.name, field.with_nullable(True)), field)
        if merged is None:
            return None
        fields[field.name] = merged
    return pa.struct(list(fields.values()))


def _common_field(left: pa.Field, right: pa.Field) -> pa.Field | None:
    dtype = common_type(left.type, right.type)
    return None if dtype is None else left.with_type(dtype).with_nullable(left.nullable or right.nullable)


def _is_list(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(dtype) for is_kind in kinds)


def _merge_fields(
    left: pa.Field, right: pa.Field, origin: str, path: str, types: Mapping[str, pa.DataType]
) -> pa.Field:
    """Return a field that holds the values of both. Raises RefusedError."""
    if left.name in types:
        return left.with_nullable(left.nullable or right.nullable)
    merged = _common_field(left, right)
    if merged is None:
        raise RefusedError(
            f"Column '{left.name}' is {right.type} in {path} and {left.type} in {origin}: no type holds the values of "
            f"both. Name one that both are cast to (--cast {left.name}=TYPE), leave the column out, or take the first "
            "file's type (--schema first)."
        )
    return merged


def _check_same_schema(first: str, columns: Mapping[str, pa.Field], path: str, fields: Mapping[str, pa.Field]) -> None:
    """Raise RefusedError for any difference in names or types."""
    for name, field in columns.items():
        if name not in fields:
            raise RefusedError(f"{path} has no column '{name}', which {first} has, and --schema is strict.")
        if fields[name].type != field.type:
            there = f"{fields[name].type} in {path} and {field.type} in {first}"
            raise RefusedError(f"Column '{name}' is {there}, and --schema is strict.")
    for name in fields:
        if name not in columns:
            raise RefusedError(f"{path} has a column '{name}', which {first} lacks, and --schema is strict.")


def _check_case(
    columns: Mapping[str, pa.Field], origins: Mapping[str, str], path: str, fields: Mapping[str, pa.Field]
) -> None:
    """Raise RefusedError for a new column whose name differs from another only in case: `ID` and `id`."""
    names_by_casefold = {name.casefold(): name for name in columns}
    for name in fields:
        existing = names_by_casefold.get(name.casefold(), name)
        if name not in columns and existing not in fields:
            raise RefusedError(
                f"{path} has a column '{name}' where {origins[existing]} has '{existing}': write both with the same "
                "letters, or take the first file's columns alone (--schema first)."
            )
