"""The types of files that differ, merged into types that hold the values of all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.nested_types import is_list

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
    if not (is_list(left) and is_list(right)):
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
