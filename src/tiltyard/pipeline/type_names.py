"""Types as people write them: pyarrow's names, and those that need numbers or other types."""

from __future__ import annotations

import re

import pyarrow as pa

from tiltyard.pipeline.task_errors import RefusedError

_VECTOR = re.compile(r"(.+)\[(\d+)\]")
_DECIMAL = re.compile(r"decimal(128|256)?\((\d+), *(-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, *(?:tz=)?([^\]]+))?\]")
_LIST = re.compile(r"(large_)?list<(?:(?:item|element): *)?(.+)>")
_STRUCT = re.compile(r"struct<(.+)>")
_FIELD = re.compile(r"([^:]+): *(.+)")
_OPEN, _CLOSE = "<([", ">)]"
_BINARY = re.compile(r"fixed_size_binary\((\d+)\)")


def parse_type(text: str) -> pa.DataType:
    """A type from its name. Raises RefusedError for one that is none.

    `int64`, `float32`, `string`, `bool`, `date32`, … are pyarrow's names; besides `float32[128]` (a vector),
    `decimal(10, 2)`, `timestamp[us, UTC]`, `list<string>`, `large_list<…>`, `struct<a: int64, b: string>`,
    `fixed_size_binary(16)`.
    """
    text = text.strip()
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _DECIMAL.fullmatch(text):
        kind = pa.decimal256 if found[1] == "256" else pa.decimal128
        return kind(int(found[2]), int(found[3]))
    if found := _BINARY.fullmatch(text):
        return pa.binary(int(found[1]))
    if found := _LIST.fullmatch(text):
        return pa.large_list(parse_type(found[2])) if found[1] else pa.list_(parse_type(found[2]))
    if (found := _STRUCT.fullmatch(text)) and all(
        fields := [_FIELD.fullmatch(part.strip()) for part in _split_at_commas(found[1])]
    ):
        return pa.struct([(one[1], parse_type(one[2])) for one in fields if one])
    try:
        return pa.type_for_alias(text)
    except ValueError:
        if found := _VECTOR.fullmatch(text):
            return pa.list_(parse_type(found[1]), int(found[2]))
        raise RefusedError(
            f"'{text}' is no type: write int64, float32, string, float32[128], decimal(10, 2), timestamp[us, UTC], "
            "list<string>, … (pyarrow's names)."
        ) from None


def format_type(dtype: pa.DataType) -> str:
    """A type as `parse_type` reads it."""
    if pa.types.is_list(dtype):
        return f"list<{format_type(dtype.value_type)}>"
    if pa.types.is_struct(dtype):
        return f"struct<{', '.join(f'{field.name}: {format_type(field.type)}' for field in dtype)}>"
    return str(dtype)


def _split_at_commas(text: str) -> list[str]:
    """Split at commas that are in no brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
