"""Types of columns by their names, as users write them, and as pyarrow prints them."""

from __future__ import annotations

import re

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


MAX_ECHO = 80
"""How many characters of a name a message repeats."""
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
    try:
        return _parse_name(text.strip())
    except (ValueError, OverflowError, RecursionError) as error:  # sizes that no type can have, too many brackets
        raise _no_type(text) from error


def _parse_name(text: str) -> pa.DataType:
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
        raise _no_type(text) from None


def _no_type(text: str) -> RefusedError:
    return RefusedError(
        f"'{text[:MAX_ECHO]}' is not a type: write int64, float32, string, float32[128], decimal(10, 2), "
        "timestamp[us, UTC], list<string>, … (pyarrow's names), or SQL's: bigint, text, timestamp, vector(128), …"
    )


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
