"""One schema for files that differ: types that hold the values of all, or a refusal that names file and column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tiltyard.pipeline.task_errors import RefusedError

_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_DIGITS_128, _DIGITS_256 = 38, 76
_FLOAT32_BITS = 16
"""Integers of so many bits are float32 numbers, each of them; of wider ones that is for float64 to hold."""


class SchemaMode(StrEnum):
    """What becomes of files of one source whose schemas differ."""

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
    """Merge the schemas of files, in the order in which columns come up.

    `types` decide where they name a column, whatever the files say; columns that are not of `only` (empty: all) may
    differ. A column that a file lacks is nullable. Raises RefusedError where no type holds the values of all (union),
    for any difference (strict), for a name that a file has twice.
    """
    merged: dict[str, pa.Field] = {}
    origins: dict[str, str] = {}
    first: FileSchema | None = None
    seen: pa.Schema | None = None
    for file in files:
        if seen is not None and file.schema.equals(seen):
            continue
        seen = file.schema
        check_names(file)
        fields = {field.name: field for field in file.schema if not only or field.name in only}
        if first is None:
            first, merged, origins = file, fields, dict.fromkeys(fields, file.path)
            continue
        if mode is SchemaMode.STRICT:
            _check_same(first.path, merged, file.path, fields)
        merged = {name: field if name in fields else field.with_nullable(True) for name, field in merged.items()}
        if mode is SchemaMode.UNION:
            _check_case(merged, origins, file.path, fields)
            for name, field in fields.items():
                old = merged.get(name, field.with_nullable(True))
                merged[name] = _both(old, field, origins.setdefault(name, file.path), file.path, types or {})
    for name, dtype in (types or {}).items():
        if name in merged:
            merged[name] = merged[name].with_type(dtype)
    return pa.schema(merged.values())


def check_names(file: FileSchema) -> None:
    """Raise RefusedError for a name that a file has twice, or a column without one."""
    seen: set[str] = set()
    for name in file.schema.names:
        if not name:
            raise RefusedError(f"{file.path} has a column without a name: give it one there.")
        if name in seen:
            raise RefusedError(f"{file.path} has two columns called '{name}': give one of them another name there.")
        seen.add(name)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that values of both are cast to with nothing lost, checked value by value where need be.

    None where there is none.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for rule in (_common_number, _common_time, _common_text, _common_nested):
        if (found := rule(one, other) or rule(other, one)) is not None:
            return found
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return max(one, other, key=lambda dtype: dtype.bit_width)
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return _common_integer(one, other)
    if pa.types.is_integer(one) and pa.types.is_floating(other):
        return other if one.bit_width <= _FLOAT32_BITS and pa.types.is_float32(other) else pa.float64()
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return _decimal(max(one.precision - one.scale, other.precision - other.scale), max(one.scale, other.scale))
    if pa.types.is_decimal(one) and pa.types.is_integer(other):
        return _decimal(max(one.precision - one.scale, _INTEGER_DIGITS[other.bit_width]), one.scale)
    return None


def _common_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return max(one, other, key=lambda dtype: dtype.bit_width)
    signed, unsigned = (one, other) if pa.types.is_signed_integer(one) else (other, one)
    wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(unsigned.bit_width)
    return None if wider is None else max(signed, wider, key=lambda dtype: dtype.bit_width)


def _decimal(integers: int, scale: int) -> pa.DataType | None:
    digits = integers + scale
    if digits > _DIGITS_256:
        return None
    return pa.decimal128(digits, scale) if digits <= _DIGITS_128 else pa.decimal256(digits, scale)


def _common_time(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz == other.tz:
        return _finer(one, other)
    for is_kind in (pa.types.is_time, pa.types.is_duration):
        if is_kind(one) and is_kind(other):
            return _finer(one, other)
    if pa.types.is_date(one) and pa.types.is_date(other):
        return pa.date32()
    if pa.types.is_date(one) and pa.types.is_timestamp(other) and other.tz is None:
        return other
    return None


def _finer(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return max(one, other, key=lambda dtype: _UNITS.index(dtype.unit))


def _common_text(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if _is_text(one) and _is_text(other):
        return pa.large_string() if pa.large_string() in (one, other) else pa.string()
    if _is_bytes(one) and _is_bytes(other):
        return pa.large_binary() if pa.large_binary() in (one, other) else pa.binary()
    if pa.types.is_dictionary(one) and pa.types.is_dictionary(other):
        values = common_type(one.value_type, other.value_type)
        index = max(one.index_type, other.index_type, key=lambda dtype: dtype.bit_width)
        return None if values is None else pa.dictionary(index, values, one.ordered and other.ordered)
    return common_type(one.value_type, other) if pa.types.is_dictionary(one) else None


def _is_text(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(dtype) for is_kind in kinds)


def _is_bytes(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(is_kind(dtype) for is_kind in kinds)


def _common_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _common_struct(one, other)
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, item = common_type(one.key_type, other.key_type), _common_field(one.item_field, other.item_field)
        return None if key is None or item is None else pa.map_(key, item)
    if not (_is_list(one) and _is_list(other)):
        return None
    value = _common_field(one.value_field, other.value_field)
    if value is None:
        return None
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other) and one.list_size == other.list_size:
        return pa.list_(value, one.list_size)
    return pa.large_list(value) if any(map(pa.types.is_large_list, (one, other))) else pa.list_(value)


def _common_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    fields: dict[str, pa.Field] = {field.name: field for field in one}
    if len(fields) < one.num_fields or len({field.name for field in other}) < other.num_fields:
        return None
    theirs = {field.name for field in other}
    fields = {name: field if name in theirs else field.with_nullable(True) for name, field in fields.items()}
    for field in other:
        both = _common_field(fields.get(field.name, field.with_nullable(True)), field)
        if both is None:
            return None
        fields[field.name] = both
    return pa.struct(list(fields.values()))


def _common_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    dtype = common_type(one.type, other.type)
    return None if dtype is None else one.with_type(dtype).with_nullable(one.nullable or other.nullable)


def _is_list(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(dtype) for is_kind in kinds)


def _both(one: pa.Field, other: pa.Field, origin: str, path: str, types: Mapping[str, pa.DataType]) -> pa.Field:
    """A field for the values of both. Raises RefusedError."""
    if one.name in types:
        return one.with_nullable(one.nullable or other.nullable)
    found = _common_field(one, other)
    if found is None:
        raise RefusedError(
            f"Column '{one.name}' is {other.type} in {path} and {one.type} in {origin}: no type holds the values of "
            f"both. Name one that both are cast to (--cast {one.name}=TYPE), leave the column out, or take the first "
            "file's type (--schema first)."
        )
    return found


def _check_same(first: str, columns: Mapping[str, pa.Field], path: str, fields: Mapping[str, pa.Field]) -> None:
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
    """Raise RefusedError for a new column whose name is that of another one in other letters: `ID` beside `id`."""
    known = {name.casefold(): name for name in columns}
    for name in fields:
        other = known.get(name.casefold(), name)
        if name not in columns and other not in fields:
            raise RefusedError(
                f"{path} has a column '{name}' where {origins[other]} has '{other}': write both with the same letters, "
                "or take the first file's columns alone (--schema first)."
            )
