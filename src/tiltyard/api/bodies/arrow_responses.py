"""Answers in Arrow: made in a thread, and of no more bytes than they may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies.arrow_encoder import encode
from tiltyard.model.arrow_bodies import ArrowAnswer

MADE_AHEAD = 16 << 20
"""Bytes of a limited answer that are made before its head is sent: up to here an answer that is too large is 400."""


class TooLargeError(InvalidInputError):
    """An answer has more bytes than a query may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The answer has more than {most} bytes: ask for fewer rows or columns, or in pages (offset).")


class Download:
    """An Arrow answer on its way out: made in a thread, the first chunks at once."""

    def __init__(self, answer: ArrowAnswer, media: str, most: int = 0) -> None:
        """`most` is how many bytes it may have, 0 for any number. Raises TooLargeError, as `more` does."""
        self.media = media
        self._batches = answer.batches
        self._chunks: Iterator[bytes] = encode(answer, media)
        self._most = most
        self._made = 0
        try:
            self.first = self._next() or b""
            self._ahead = self._next()
            while self._most and self._ahead is not None and self._made < min(self._most, MADE_AHEAD):
                self.first += self._ahead
                self._ahead = self._next()
        except BaseException:
            self.close()
            raise
        self.complete = self._ahead is None

    def more(self) -> bytes | None:
        """The next chunk, None after the last."""
        chunk, self._ahead = self._ahead, None
        return chunk if chunk is not None else self._next()

    def close(self) -> None:
        """Stop reading the table."""
        for source in (self._chunks, self._batches):
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _next(self) -> bytes | None:
        chunk = next(self._chunks, None)
        if chunk is not None:
            self._made += len(chunk)
            if self._most and self._made > self._most:
                raise TooLargeError(self._most)
        return chunk


def outgoing(result: Any, media: str, most: int) -> Any:
    """What an operation answers; Arrow as a Download. Raises what that raises."""
    return Download(result, media, most) if isinstance(result, ArrowAnswer) else result
