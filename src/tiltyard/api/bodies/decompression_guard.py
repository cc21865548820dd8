"""Refuse Arrow bodies that would become too large in memory, before pyarrow decompresses them.

A buffer may be compressed, and 33 kB of zstd are a gigabyte; a column of nulls has as many rows as it declares, without
a byte. pyarrow has no limit for that, so the messages are read here as they come: Arrow's IPC format frames each one by
its length and describes it in FlatBuffers (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

ALLOWED_BYTES = 64 << 20
"""Bytes that any body may become."""
MAX_RATIO = 100
"""How many times larger than it came a body may become beyond that."""

_PREFIX_BYTES = 8
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_MAGIC = b"ARROW1"
_MAX_HEADER = 256 << 20
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_PREFIX = struct.Struct("<II")
_I64, _I32, _U32, _U16 = (struct.Struct(f"<{kind}") for kind in "qiIH")


class _Table:
    """A FlatBuffers table: its fields by their number."""

    __slots__ = ("_at", "_data", "_size", "_start")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._start = at - _I32.unpack_from(data, at)[0]
        self._size: int = _U16.unpack_from(data, self._start)[0]

    def offset(self, field: int) -> int:
        """Return where a field is; 0 for one that is absent."""
        entry = 4 + 2 * field
        if entry >= self._size:
            return 0
        offset: int = _U16.unpack_from(self._data, self._start + entry)[0]
        return self._at + offset if offset else 0

    def number(self, field: int, kind: struct.Struct) -> int:
        """Return a number; 0 where it is absent."""
        at = self.offset(field)
        return int(kind.unpack_from(self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table | None:
        """Return a nested table; None where it is absent."""
        at = self.offset(field)
        return _Table(self._data, at + _U32.unpack_from(self._data, at)[0]) if at else None

    def structs(self, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Iterate over a vector of structs."""
        at = self.offset(field)
        if at:
            start = at + _U32.unpack_from(self._data, at)[0]
            count = int(_U32.unpack_from(self._data, start)[0])
            structs = memoryview(self._data)[start + 4 : start + 4 + count * kind.size]
            yield from kind.iter_unpack(structs)


@dataclass(frozen=True, slots=True)
class _Message:
    """The header of a message: its rows, the bytes of its body, and where compressed buffers begin in the body."""

    rows: int = 0
    body: int = 0
    compressed: tuple[int, ...] = ()

    @classmethod
    def parse(cls, header: bytes) -> _Message:
        """Read a header. Raises struct.error for an invalid one."""
        message = _Table(header, _U32.unpack_from(header)[0])
        body, at = message.number(3, _I64), message.offset(1)
        kind = header[at] if at else 0
        batch = message.table(2) if kind in (_DICTIONARY, _BATCH) else None
        if batch is not None and kind == _DICTIONARY:
            batch = batch.table(1)
        if batch is None:
            return cls(body=body)
        is_compressed = batch.offset(3) != 0
        buffers = batch.structs(2, _BUFFER) if is_compressed else ()
        starts = sorted(start for start, length in buffers if length >= _PREFIX_BYTES)
        return cls(batch.number(0, _I64), body, tuple(starts))


class ExpansionCheck:
    """Adds up the decompressed size of one body's messages, as it is read; raises ValueError once it is too large."""

    def __init__(self) -> None:
        self._received = self._expanded = 0
        self._partial = bytearray()
        self._needed_bytes, self._is_in_header = _PREFIX_BYTES, False
        self._message: _Message | None = None
        self._body_at = 0
        self._unread_sizes: list[int] = []

    def add(self, data: memoryview) -> None:
        """Read more bytes of a stream of messages. Raises ValueError for one that grows too large, or is invalid."""
        self._received += len(data)
        while len(data):
            data = self._read_body(data) if self._message is not None else self._read_header(data)

    def add_file(self, data: bytes) -> None:
        """Read a whole body in Arrow's file format, whose footer lists its messages. Raises ValueError."""
        self._received = len(data)
        try:
            end = len(data) - len(_MAGIC) - 4
            size = int(_I32.unpack_from(data, end)[0])
            footer = _Table(data[end - size : end], _U32.unpack_from(data, end - size)[0])
            for field in (2, 3):
                for at, header_bytes, _ in footer.structs(field, _BLOCK):
                    self._add_block(data, at, header_bytes)
        except (struct.error, IndexError) as error:
            raise ValueError("its footer cannot be read") from error

    def _add_block(self, data: bytes, at: int, header_bytes: int) -> None:
        """Read the message of a block in a file."""
        start = at + (_PREFIX_BYTES if data[at : at + 4] == b"\xff\xff\xff\xff" else 4)
        message = _Message.parse(data[start : at + header_bytes])
        self._expand(message.rows)
        for buffer in message.compressed:
            self._expand(max(0, _I64.unpack_from(data, at + header_bytes + buffer)[0]))

    def _read_header(self, data: memoryview) -> memoryview:
        """Read bytes of a message's prefix or header; return those behind it."""
        missing = self._needed_bytes - len(self._partial)
        if len(data) < missing:
            self._partial += data
            return data[:0]
        complete = bytes(self._partial + data[:missing])
        self._partial.clear()
        if self._is_in_header:
            self._start_message(complete)
        else:
            self._read_prefix(complete)
        return data[missing:]

    def _read_prefix(self, prefix: bytes) -> None:
        first, length = _PREFIX.unpack(prefix)
        if first != _CONTINUATION:  # as Arrow did before 0.15: the prefix is the length alone
            length = first
            self._partial += prefix[_U32.size :]
        if length > _MAX_HEADER or 0 < length < len(self._partial):
            raise ValueError("the head of a message has a length that cannot be")
        if length:
            self._needed_bytes, self._is_in_header = length, True

    def _start_message(self, header: bytes) -> None:
        try:
            message = _Message.parse(header)
        except (struct.error, IndexError) as error:
            raise ValueError("the head of a message cannot be read") from error
        self._needed_bytes, self._is_in_header = _PREFIX_BYTES, False
        self._expand(message.rows)
        if message.body > 0:
            self._message, self._body_at = message, 0
            self._unread_sizes = list(reversed(message.compressed))

    def _read_body(self, data: memoryview) -> memoryview:
        """Read the decompressed sizes in a message's body; return the bytes behind it."""
        message = self._message
        assert message is not None
        body = data[: message.body - self._body_at]
        while self._unread_sizes and self._unread_sizes[-1] < self._body_at + len(body):
            start = max(0, self._unread_sizes[-1] - self._body_at)
            self._partial += body[start : start + _PREFIX_BYTES - len(self._partial)]
            if len(self._partial) < _PREFIX_BYTES:
                break
            self._expand(max(0, _I64.unpack(self._partial)[0]))
            self._partial.clear()
            self._unread_sizes.pop()
        self._body_at += len(body)
        if self._body_at >= message.body:
            self._message = None
            self._partial.clear()
        return data[len(body) :]

    def _expand(self, size: int) -> None:
        """Add bytes to the decompressed size. Raises ValueError once it is too large."""
        self._expanded += size
        if self._expanded > ALLOWED_BYTES + MAX_RATIO * self._received:
            raise ValueError(
                f"it would become more than {self._expanded >> 20} MiB in memory, out of {self._received} bytes:"
                " send it with less compression, or in smaller parts"
            )


def check_expansion(data: bytes, *, is_file: bool) -> None:
    """Check a body that is complete already. Raises ValueError as `ExpansionCheck` does."""
    if is_file:
        ExpansionCheck().add_file(data)
    else:
        ExpansionCheck().add(memoryview(data))
