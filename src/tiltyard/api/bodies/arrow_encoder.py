"""Arrow answers as they go out: encoded in a thread, a few hundred kilobytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from tiltyard.model.arrow_bodies import ArrowAnswer
from tiltyard.model.spec import ARROW_FILE, ARROW_STREAM

CHUNK = 512 << 10
"""Bytes that go out at once. Three of them are held for a client that does not read: one that is sent, one that waits
for that, and one that was made meanwhile."""
_STREAM, _FILE = ARROW_STREAM.encode(), ARROW_FILE.encode()
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)


class _Outbox:
    """What pyarrow writes to: keeps the pieces until they are taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.held = 0

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        self.held += len(piece)
        return len(piece)

    def take(self) -> bytes:
        taken, self._pieces, self.held = b"".join(self._pieces), [], 0
        return taken

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The pieces outlive the writer."""

    def writable(self) -> bool:
        return True


def media_type(accept: bytes) -> str:
    """The Arrow file format, which QueryTable's contract names, unless only the stream format is asked for."""
    return ARROW_STREAM if _STREAM in accept and _FILE not in accept else ARROW_FILE


def encode(answer: ArrowAnswer, media: str) -> Iterator[bytes]:
    """The answer's bytes in chunks of about CHUNK bytes; the last one closes the file."""
    if isinstance(answer.batches, list):
        yield _encode_whole(answer.schema, answer.batches, media)
        return
    outbox = _Outbox()
    sink = pa.PythonFile(outbox, mode="w")
    writer = _writer(media)(sink, answer.schema)
    for batch in answer.batches:
        for part in _parts(batch):
            writer.write_batch(part)
            if outbox.held >= CHUNK:
                yield outbox.take()
    writer.close()
    yield outbox.take()


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices that fit into a chunk; a row that does not is one by itself."""
    rows = max(1, batch.num_rows * CHUNK // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        yield batch
        return
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _encode_whole(schema: pa.Schema, batches: list[pa.RecordBatch], media: str) -> bytes:
    """The bytes of a small answer.

    Arrow then never calls back into Python: under load each hand-over between threads costs more than the encoding.
    """
    sink = pa.BufferOutputStream()
    with _writer(media)(sink, schema, options=_PLAIN) as writer:
        for batch in batches:
            writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _writer(media: str) -> Callable[..., pa.RecordBatchWriter]:
    writer: Callable[..., pa.RecordBatchWriter] = pa.ipc.new_stream if media == ARROW_STREAM else pa.ipc.new_file
    return writer
