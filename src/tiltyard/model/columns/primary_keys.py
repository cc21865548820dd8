"""Enforced primary keys: a table's declaration, and the types that columns of a key may have."""

from __future__ import annotations

import re

import msgspec
import pyarrow as pa

from tiltyard.model.text.shown_text import shorten

PROPERTY = "tiltyard.primary_key"
"""The property of a table that shows the columns of its key, as a JSON list; only the server sets it."""
UNENFORCED = b"lance-schema:unenforced-primary-key"
"""The metadata by which Lance's schema says of a column that it belongs to the key, and no more: by one of `_YES`."""
UNENFORCED_POSITION = UNENFORCED + b":position"
"""The same, with the column's place in the key, from 1 on: what lancedb 0.41 sets. 0 is the key without a place."""
MAX_COLUMNS = 16
_YES = (b"true", b"1", b"yes", b"on", b"y")
_POSITION = re.compile(rb"\+?0*(\d{1,10})")
_MAX_POSITION = 2**32 - 1
_VALUE_CHARACTERS = 100
_ALLOWED = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
    pa.types.is_boolean,
)


class PrimaryKey(msgspec.Struct, frozen=True):
    """The declaration of a key, as the catalog keeps it.

    `token` tells it from every other declaration: a version that fulfilled an earlier one of the same columns need not
    fulfil this one. `checked` has the version of each branch whose rows were found to fulfil it when it was declared.
    """

    token: str
    columns: tuple[str, ...]
    checked: dict[str, int]

    @classmethod
    def from_json(cls, text: str) -> PrimaryKey:
        """Decode the text of the catalog."""
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """Encode for the catalog."""
        return msgspec.json.encode(self).decode()


def is_key_type(type_: pa.DataType) -> bool:
    """Return whether a column of this type can be in a key: integers, text, bytes, dates, timestamps, decimals, bools.

    Not floating-point numbers, whose NaN equals nothing, nor nested values.
    """
    return any(is_kind(type_) for is_kind in _ALLOWED)


def unenforced_key(schema: pa.Schema) -> list[str]:
    """Return the columns that Lance's schema declares as the key: those with a position first, in their order."""
    key = [(place, field.name) for field in schema if (place := _key_position(field)) is not None]
    return [name for _, name in sorted(key, key=lambda entry: entry[0] or _MAX_POSITION + 1)]


def _key_position(field: pa.Field) -> int | None:
    """Return a column's place in the key as Lance reads it, 0 for one without a place; None outside the key."""
    metadata = field.metadata or {}
    position = _POSITION.fullmatch(metadata.get(UNENFORCED_POSITION, b""))
    if position is not None and int(position[1]) <= _MAX_POSITION:
        return int(position[1])
    return 0 if metadata.get(UNENFORCED, b"").lower() in _YES else None


def format_key(columns: tuple[str, ...], values: tuple[object, ...]) -> str:
    """Format a key for a message, such as `id = 5, name = 'x'`; long values are cut."""
    texts = (shorten(_text(value), _VALUE_CHARACTERS) for value in values)
    return ", ".join(f"{column} = {text}" for column, text in zip(columns, texts, strict=True))


def _text(value: object) -> str:
    if isinstance(value, str | bytes | bool | int):
        return repr(value)
    return str(value)
