"""Thrift's structs as they are on the wire: every field by its number and type, those that nobody here knows too.

An entry of a metastore is read, changed in one field, and written back. Classes generated from one version's interface
would drop the fields of all other versions on the way; so there are none here, and the numbers of fields that are used
stand in `hive.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TType

DEEPEST = 32
"""Levels of structs and containers in one another; a table has six."""


class Struct(dict[int, tuple[int, Any]]):
    """Fields by number, each with its type. Texts are bytes, structs are this, containers the classes below."""

    def text(self, field: int) -> str | None:
        """Return a text; None where there is none. Bytes that are no UTF-8 are kept."""
        value = self._value(field, TType.STRING)
        return None if value is None else _decoded(value)

    def texts(self, field: int) -> list[str]:
        """Return a list of texts; without one an empty list."""
        items = self._value(field, TType.LIST)
        return [] if items is None else [_decoded(value) for value in items.values]

    def text_map(self, field: int) -> dict[str, str]:
        """Return a map of texts; without one an empty map."""
        entries = self._value(field, TType.MAP)
        return {} if entries is None else {_decoded(key): _decoded(value) for key, value in entries.pairs}

    def struct(self, field: int) -> Struct:
        """Return a struct; without one an empty one."""
        value: Struct | None = self._value(field, TType.STRUCT)
        return Struct() if value is None else value

    def structs(self, field: int) -> list[Struct]:
        """Return a list of structs; without one an empty list."""
        items = self._value(field, TType.LIST)
        return [] if items is None else [value for value in items.values if isinstance(value, Struct)]

    def _value(self, field: int, field_type: int) -> Any:
        found_type, value = self.get(field, (field_type, None))
        return value if found_type == field_type else None


@dataclass(slots=True)
class Items:
    """A list or a set."""

    element_type: int
    values: list[Any]


@dataclass(slots=True)
class Entries:
    """A map; as pairs, since its keys may be lists."""

    key_type: int
    value_type: int
    pairs: list[tuple[Any, Any]]


def text(value: str) -> tuple[int, bytes]:
    """Return a text as a field."""
    return TType.STRING, value.encode(errors="surrogateescape")


def boolean(value: bool) -> tuple[int, bool]:  # a value, no switch
    """Return a truth value as a field."""
    return TType.BOOL, value


def text_map(values: Mapping[str, str]) -> tuple[int, Entries]:
    """Return a map of texts as a field."""
    return TType.MAP, Entries(TType.STRING, TType.STRING, [(text(key)[1], text(values[key])[1]) for key in values])


def text_list(values: list[str]) -> tuple[int, Items]:
    """Return a list of texts as a field."""
    return TType.LIST, Items(TType.STRING, [text(value)[1] for value in values])


def struct(value: Struct) -> tuple[int, Struct]:
    """Return a struct as a field."""
    return TType.STRUCT, value


def struct_list(values: list[Struct]) -> tuple[int, Items]:
    """Return a list of structs as a field."""
    return TType.LIST, Items(TType.STRUCT, list(values))


def read_struct(protocol: TBinaryProtocol, depth: int = 0) -> Struct:
    """Read a struct with all of its fields. Raises ValueError for one that is nested too deeply, or is no struct."""
    fields = Struct()
    while True:
        _, field_type, number = protocol.readFieldBegin()
        if field_type == TType.STOP:
            return fields
        fields[number] = field_type, _read(protocol, field_type, depth + 1)


def write_struct(protocol: TBinaryProtocol, fields: Struct) -> None:
    """Write a struct with all of its fields."""
    for number, (field_type, value) in sorted(fields.items()):
        protocol.writeFieldBegin("", field_type, number)
        _write(protocol, field_type, value)
    protocol.writeFieldStop()


_SCALARS = {
    TType.BOOL: ("readBool", "writeBool"),
    TType.BYTE: ("readByte", "writeByte"),
    TType.DOUBLE: ("readDouble", "writeDouble"),
    TType.I16: ("readI16", "writeI16"),
    TType.I32: ("readI32", "writeI32"),
    TType.I64: ("readI64", "writeI64"),
    TType.STRING: ("readBinary", "writeBinary"),
}


def _read(protocol: TBinaryProtocol, value_type: int, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError("structs are nested too deeply")
    if value_type in _SCALARS:
        return getattr(protocol, _SCALARS[value_type][0])()
    match value_type:
        case TType.STRUCT:
            return read_struct(protocol, depth)
        case TType.LIST | TType.SET:
            element_type, size = protocol.readListBegin()
            return Items(element_type, [_read(protocol, element_type, depth + 1) for _ in range(size)])
        case TType.MAP:
            key_type, item_type, size = protocol.readMapBegin()
            pairs = [(_read(protocol, key_type, depth + 1), _read(protocol, item_type, depth + 1)) for _ in range(size)]
            return Entries(key_type, item_type, pairs)
        case _:
            raise ValueError(f"no type of Thrift: {value_type}")


def _write(protocol: TBinaryProtocol, value_type: int, value: Any) -> None:
    if value_type in _SCALARS:
        getattr(protocol, _SCALARS[value_type][1])(value)
    elif isinstance(value, Struct):
        write_struct(protocol, value)
    elif isinstance(value, Items):
        protocol.writeListBegin(value.element_type, len(value.values))  # a set is written the same
        for item in value.values:
            _write(protocol, value.element_type, item)
    else:
        protocol.writeMapBegin(value.key_type, value.value_type, len(value.pairs))
        for key, item in value.pairs:
            _write(protocol, value.key_type, key)
            _write(protocol, value.value_type, item)


def _decoded(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
