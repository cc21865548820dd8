"""How large an Arrow body would become in memory, told before pyarrow unpacks it.

A buffer may be compressed, and 33 kB of zstd are a gigabyte; a column of nulls has as many rows as it says, without any
byte. pyarrow knows no bound for that, so the messages are looked at here as they come: Arrow's IPC format frames each
one by its length and describes it in FlatBuffers (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

ROOM = 64 << 20
"""Bytes that any body may become."""
TIMES = 100
"""How many times larger than it came a body may become beyond that."""

_HEADED = 8
_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_MAGIC = b"ARROW1"
_LONGEST_HEAD = 256 << 20
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_PREFIX = struct.Struct("<II")
_I64, _I32, _U32, _U16 = (struct.Struct(f"<{kind}") for kind in "qiIH")


class _Table:
    """A table of FlatBuffers: its fields by their number."""

    __slots__ = ("_at", "_data", "_size", "_start")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._start = at - _I32.unpack_from(data, at)[0]
        self._size: int = _U16.unpack_from(data, self._start)[0]

    def place(self, field: int) -> int:
        """Where a field is; 0 for one that is left out."""
        inside = 4 + 2 * field
        if inside >= self._size:
            return 0
        offset: int = _U16.unpack_from(self._data, self._start + inside)[0]
        return self._at + offset if offset else 0

    def number(self, field: int, kind: struct.Struct) -> int:
        """A number; 0 where it is left out."""
        place = self.place(field)
        return int(kind.unpack_from(self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table | None:
        """A table inside this one."""
        place = self.place(field)
        return _Table(self._data, place + _U32.unpack_from(self._data, place)[0]) if place else None

    def structs(self, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        """A vector of structs."""
        place = self.place(field)
        if place:
            start = place + _U32.unpack_from(self._data, place)[0]
            count = int(_U32.unpack_from(self._data, start)[0])
            whole = memoryview(self._data)[start + 4 : start + 4 + count * kind.size]
            yield from kind.iter_unpack(whole)


@dataclass(frozen=True, slots=True)
class _Message:
    """What the head of a message says: its rows, the bytes behind it, and where its compressed buffers begin there."""

    rows: int = 0
    body: int = 0
    packed: tuple[int, ...] = ()

    @classmethod
    def of(cls, head: bytes) -> _Message:
        """Read it. Raises struct.error for what is none."""
        message = _Table(head, _U32.unpack_from(head)[0])
        body, place = message.number(3, _I64), message.place(1)
        kind = head[place] if place else 0
        batch = message.table(2) if kind in (_DICTIONARY, _BATCH) else None
        if batch is not None and kind == _DICTIONARY:
            batch = batch.table(1)
        if batch is None:
            return cls(body=body)
        packed = batch.place(3) != 0
        places = sorted(at for at, length in batch.structs(2, _BUFFER) if length >= _HEADED) if packed else ()
        return cls(batch.number(0, _I64), body, tuple(places))


class Swelling:
    """What the messages of one body come to, as it is read: ValueError as soon as that is too much."""

    def __init__(self) -> None:
        self._came = self._grown = 0
        self._held = bytearray()
        self._need, self._reading_head = _HEADED, False
        self._skip = 0
        self._message: _Message | None = None
        self._at = 0
        self._waiting: list[int] = []

    def take(self, data: memoryview) -> None:
        """More bytes of a stream of messages. Raises ValueError for what grows too large, or is no such stream."""
        self._came += len(data)
        while len(data):
            data = self._body(data) if self._message is not None else self._head(data)

    def take_file(self, data: bytes) -> None:
        """A whole body in Arrow's file format, whose footer says where its messages are. Raises ValueError."""
        self._came = len(data)
        try:
            end = len(data) - len(_MAGIC) - 4
            size = int(_I32.unpack_from(data, end)[0])
            footer = _Table(data[end - size : end], _U32.unpack_from(data, end - size)[0])
            for field in (2, 3):
                for at, head, _ in footer.structs(field, _BLOCK):
                    self._block(data, at, head)
        except (struct.error, IndexError) as error:
            raise ValueError("its footer cannot be read") from error

    def _block(self, data: bytes, at: int, head: int) -> None:
        start = at + (_HEADED if data[at : at + 4] == b"\xff\xff\xff\xff" else 4)
        message = _Message.of(data[start : at + head])
        self._grow(message.rows)
        for place in message.packed:
            self._grow(max(0, _I64.unpack_from(data, at + head + place)[0]))

    def _head(self, data: memoryview) -> memoryview:
        """Bytes of a message's length, or of its head."""
        missing = self._need - len(self._held)
        if len(data) < missing:
            self._held += data
            return data[:0]
        held = bytes(self._held + data[:missing])
        self._held.clear()
        if self._reading_head:
            self._begin(held)
        else:
            self._measure(held)
        return data[missing:]

    def _measure(self, held: bytes) -> None:
        first, length = _PREFIX.unpack(held)
        if first != _CONTINUES:  # as Arrow did before 0.15: the length is all there is in front
            length = first
            self._held += held[_U32.size :]
        if length > _LONGEST_HEAD or 0 < length < len(self._held):
            raise ValueError("the head of a message has a length that cannot be")
        if length:
            self._need, self._reading_head = length, True

    def _begin(self, head: bytes) -> None:
        try:
            message = _Message.of(head)
        except (struct.error, IndexError) as error:
            raise ValueError("the head of a message cannot be read") from error
        self._need, self._reading_head = _HEADED, False
        self._grow(message.rows)
        if message.body > 0:
            self._message, self._at, self._waiting = message, 0, list(reversed(message.packed))

    def _body(self, data: memoryview) -> memoryview:
        """Bytes behind a head: only those are looked at that say how large a buffer becomes."""
        message = self._message
        assert message is not None
        taken = data[: message.body - self._at]
        while self._waiting and self._waiting[-1] < self._at + len(taken):
            inside = max(0, self._waiting[-1] - self._at)
            self._held += taken[inside : inside + _HEADED - len(self._held)]
            if len(self._held) < _HEADED:
                break
            self._grow(max(0, _I64.unpack(self._held)[0]))
            self._held.clear()
            self._waiting.pop()
        self._at += len(taken)
        if self._at >= message.body:
            self._message = None
            self._held.clear()
        return data[len(taken) :]

    def _grow(self, bytes_: int) -> None:
        self._grown += bytes_
        if self._grown > ROOM + TIMES * self._came:
            raise ValueError(
                f"it would become more than {self._grown >> 20} MiB in memory, out of {self._came} bytes:"
                " send it with less compression, or in smaller parts"
            )


def check_whole(data: bytes, *, file: bool) -> None:
    """Look at a body that is here already. Raises ValueError as `Swelling` does."""
    if file:
        Swelling().take_file(data)
    else:
        Swelling().take(memoryview(data))
