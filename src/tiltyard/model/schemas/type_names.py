"""The names of Arrow types without children, in both dialects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

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
