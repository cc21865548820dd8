"""Parse and format Arrow types as users write them: pyarrow's names, and those with parameters or nested types."""

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
    """Parse a type's name. Raises RefusedError for an invalid one.

    `int64`, `float32`, `string`, `bool`, `date32`, … are pyarrow's names; besides `float32[128]` (a vector),
    `decimal(10, 2)`, `timestamp[us, UTC]`, `list<string>`, `large_list<…>`, `struct<a: int64, b: string>`,
    `fixed_size_binary(16)`.
    """
    text = text.strip()
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        kind = pa.decimal256 if match[1] == "256" else pa.decimal128
        return kind(int(match[2]), int(match[3]))
    if match := _BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _LIST.fullmatch(text):
        return pa.large_list(parse_type(match[2])) if match[1] else pa.list_(parse_type(match[2]))
    if (match := _STRUCT.fullmatch(text)) and all(
        fields := [_FIELD.fullmatch(part.strip()) for part in _split_at_commas(match[1])]
    ):
        return pa.struct([(field[1], parse_type(field[2])) for field in fields if field])
    try:
        return pa.type_for_alias(text)
    except ValueError:
        if match := _VECTOR.fullmatch(text):
            return pa.list_(parse_type(match[1]), int(match[2]))
        raise RefusedError(
            f"'{text}' is not a type: write int64, float32, string, float32[128], decimal(10, 2), timestamp[us, UTC], "
            "list<string>, … (pyarrow's names)."
        ) from None


def format_type(dtype: pa.DataType) -> str:
    """Return a type as `parse_type` reads it."""
    if pa.types.is_list(dtype):
        return f"list<{format_type(dtype.value_type)}>"
    if pa.types.is_struct(dtype):
        return f"struct<{', '.join(f'{field.name}: {format_type(field.type)}' for field in dtype)}>"
    return str(dtype)


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
