"""Read the metadata of Arrow's IPC messages: the one reader of FlatBuffers.

Arrow's IPC format frames each message by its length and describes it in FlatBuffers
(https://arrow.apache.org/docs/format/Columnar.html). A table of FlatBuffers has its fields at offsets, by their number
(https://flatbuffers.dev/internals/); a position of 0 is that of an absent field. Positions come from the client, so
none is read that is not within the header, and a function follows one reference: no header makes it loop or recurse.
The package flatbuffers would be one more dependency, which neither verifies what it reads nor knows Arrow's tables.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTINUATION = 0xFFFFFFFF
PREFIX = struct.Struct("<II")
"""The prefix of a message: CONTINUATION and the length of its header, 0 at the end of the stream."""
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
"""Types of messages."""
I64, I32, U32, I16 = (struct.Struct(f"<{kind}") for kind in "qiIh")

Data: TypeAlias = bytes | memoryview
Positions: TypeAlias = tuple[int, int, int, int]

_read_i64, _read_i32, _read_u32, _read_u16 = (struct.Struct(f"<{kind}").unpack_from for kind in "qiIH")
_FIELDS = 4
_read_offsets = tuple(struct.Struct(f"<4x{fields}H").unpack_from for fields in range(_FIELDS + 1))
"""Read so many offsets, which follow their size and that of the table."""
_ABSENT = tuple((0,) * (_FIELDS - fields) for fields in range(_FIELDS + 1))


def read_message(header: Data) -> tuple[int, int, int]:
    """Return a message's type, the position of the table of that type (0 without one), and the bytes of its body.

    Raises struct.error or IndexError for an invalid header.
    """
    _, kind, table, body = read_fields(header, _read_u32(header)[0])
    return (
        header[kind] if kind else 0,
        table and table + _read_u32(header, table)[0],
        _read_i64(header, body)[0] if body else 0,
    )


def read_fields(data: Data, table: int) -> Positions:
    """Return the positions of a table's first four fields, 0 for absent ones. Raises struct.error."""
    start = table - _read_i32(data, table)[0]
    if start < 0:  # which struct would count from the end
        raise struct.error("a table's offsets are before the data")
    fields = _read_u16(data, start)[0] // 2 - 2
    if fields < 0:
        raise struct.error("a table's offsets are too short")
    fields = min(fields, _FIELDS)
    first, second, third, fourth = _read_offsets[fields](data, start) + _ABSENT[fields]
    return first and table + first, second and table + second, third and table + third, fourth and table + fourth


def read_reference(data: Data, position: int) -> int:
    """Return the position that a field refers to, 0 for an absent field. Raises struct.error."""
    return position and position + int(_read_u32(data, position)[0])


def read_structs(data: Data, position: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Iterate over the vector of structs that a field refers to; over none for an absent field. Raises struct.error."""
    if not position:
        return iter(())
    start = read_reference(data, position)
    size = _read_u32(data, start)[0] * kind.size
    start += U32.size
    if size > len(data) - start:
        raise struct.error("a vector continues behind the data")
    return kind.iter_unpack(memoryview(data)[start : start + size])
