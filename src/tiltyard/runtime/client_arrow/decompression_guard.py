"""Refuse Arrow bodies that would become too large in memory, before pyarrow decompresses them.

A buffer may be compressed, and 33 kB of zstd are a gigabyte; a column of nulls has as many rows as it declares, without
a byte. pyarrow has no limit for that, so the metadata of the messages is read here as they come.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tiltyard.runtime.client_arrow.ipc_metadata import (
    CONTINUATION,
    DICTIONARY,
    I32,
    I64,
    PREFIX,
    RECORD_BATCH,
    U32,
    read_fields,
    read_message,
    read_reference,
    read_structs,
)

ALLOWED_BYTES = 64 << 20
"""Bytes that any body may become."""
MAX_RATIO = 100
"""How many times larger than it came a body may become beyond that."""

_MAGIC = b"ARROW1"
_MAX_HEADER_BYTES = 256 << 20
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_SIZE_BYTES = I64.size
"""A compressed buffer begins with its decompressed size."""
_INVALID_FOOTER = "its footer cannot be read"


@dataclass(frozen=True, slots=True)
class _Message:
    """The header of a message: its rows, the bytes of its body, and where compressed buffers begin in the body."""

    rows: int = 0
    body: int = 0
    compressed: tuple[int, ...] = ()

    @classmethod
    def parse(cls, header: bytes) -> _Message:
        """Read a header. Raises struct.error or IndexError for an invalid one."""
        kind, table, body = read_message(header)
        if table and kind == DICTIONARY:
            table = read_reference(header, read_fields(header, table)[1])
        elif kind != RECORD_BATCH:
            table = 0
        if not table:
            return cls(body=body)
        count, _, buffers, compression = read_fields(header, table)
        rows = I64.unpack_from(header, count)[0] if count else 0
        if not compression:
            return cls(rows, body)
        starts = (start for start, length in read_structs(header, buffers, _BUFFER) if length >= _SIZE_BYTES)
        return cls(rows, body, tuple(sorted(starts)))


class ExpansionCheck:
    """Adds up the decompressed size of one body's messages, as it is read; raises ValueError once it is too large."""

    def __init__(self, allowed_bytes: int = ALLOWED_BYTES, max_ratio: int = MAX_RATIO) -> None:
        """The body may become `allowed_bytes`, and `max_ratio` times as many as it has."""
        self._allowed_bytes, self._max_ratio = allowed_bytes, max_ratio
        self._received = self._expanded = 0
        self._partial = bytearray()
        self._needed_bytes, self._is_in_header = PREFIX.size, False
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
            end = len(data) - len(_MAGIC) - I32.size
            footer = data[end - I32.unpack_from(data, end)[0] : end]
            _, _, *blocks = read_fields(footer, U32.unpack_from(footer)[0])
            for field in blocks:
                for at, header_bytes, _ in read_structs(footer, field, _BLOCK):
                    self._add_block(data, at, header_bytes)
        except (struct.error, IndexError) as error:
            raise ValueError(_INVALID_FOOTER) from error

    def _add_block(self, data: bytes, at: int, header_bytes: int) -> None:
        """Read the message of a block in a file."""
        start = at + (PREFIX.size if data[at : at + 4] == b"\xff\xff\xff\xff" else 4)
        body = at + header_bytes
        message = _Message.parse(data[start:body])
        self._expand(message.rows)
        buffers = message.compressed
        if buffers and not (body + buffers[0] >= 0 and body + buffers[-1] < len(data)):
            raise ValueError(_INVALID_FOOTER)
        for buffer in buffers:
            self._expand(max(0, I64.unpack_from(data, body + buffer)[0]))

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
        first, length = PREFIX.unpack(prefix)
        if first != CONTINUATION:  # as Arrow did before 0.15: the prefix is the length alone
            length = first
            self._partial += prefix[U32.size :]
        if length > _MAX_HEADER_BYTES or 0 < length < len(self._partial):
            raise ValueError("the head of a message has a length that cannot be")
        if length:
            self._needed_bytes, self._is_in_header = length, True

    def _start_message(self, header: bytes) -> None:
        try:
            message = _Message.parse(header)
        except (struct.error, IndexError) as error:
            raise ValueError("the head of a message cannot be read") from error
        self._needed_bytes, self._is_in_header = PREFIX.size, False
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
            self._partial += body[start : start + _SIZE_BYTES - len(self._partial)]
            if len(self._partial) < _SIZE_BYTES:
                break
            self._expand(max(0, I64.unpack(self._partial)[0]))
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
        if self._expanded > self._allowed_bytes + self._max_ratio * self._received:
            raise ValueError(
                f"it would become more than {self._expanded >> 20} MiB in memory, out of {self._received} bytes:"
                " send it with less compression, or in smaller parts"
            )


def check_expansion(
    data: bytes, *, is_file: bool, allowed_bytes: int = ALLOWED_BYTES, max_ratio: int = MAX_RATIO
) -> None:
    """Check a body that is complete already. Raises ValueError as `ExpansionCheck` does."""
    check = ExpansionCheck(allowed_bytes, max_ratio)
    if is_file:
        check.add_file(data)
    else:
        check.add(memoryview(data))
