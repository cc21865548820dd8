"""Chunkers: parts of a text by words, tokens, sentences or the structure of Markdown, each with its position.

A chunk has its `number` (from 0), its text (`chunk`), and the positions of its characters: `text[start:end]` is the
chunk. Called with one text, a chunker returns a list of mappings: the code of a view that has a row for each chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tiltyard.functions.model_files import digest_tokenizer, find_tokenizer
from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.functions.spans import Span, counted_span, pack_spans, sentence_spans, split_large, word_spans
from tiltyard.model.refusals import RefusedError

MAX_CHUNK_SIZE = 100_000
"""Words or tokens that a chunk may be asked to have."""

_FIELDS = [("number", pa.int32()), ("chunk", pa.string()), ("start", pa.int32()), ("end", pa.int32())]
_CHUNKS = pa.list_(pa.struct(_FIELDS))
_MARKDOWN_CHUNKS = pa.list_(pa.struct([*_FIELDS, ("headings", pa.list_(pa.string()))]))
_TEXT = "list of number, chunk, start, end"

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def _chunks_type(*, size: int, overlap: int, **_: Any) -> pa.DataType:
    _check_size(size, overlap)
    return _CHUNKS


def _markdown_type(*, size: int, overlap: int) -> pa.DataType:
    _check_size(size, overlap)
    return _MARKDOWN_CHUNKS


def _check_size(size: int, overlap: int) -> None:
    if not 1 <= size <= MAX_CHUNK_SIZE:
        raise RefusedError(f"size is {size}: it is 1 to {MAX_CHUNK_SIZE}.")
    if not 0 <= overlap < size:
        raise RefusedError(f"overlap is {overlap}: it is 0 or more, and less than size, which is {size}.")


def _number(text: str, positions: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    filled = [(start, end) for start, end in positions if not text[start:end].isspace()]
    return [
        {"number": number, "chunk": text[start:end], "start": start, "end": end}
        for number, (start, end) in enumerate(filled)
    ]


@ready_made(version=1, takes=Takes.TEXT, result=_chunks_type, result_text=_TEXT)
def chunk_words(texts: pa.Array, *, size: int = 200, overlap: int = 0) -> pa.Array:
    """Cut texts into chunks of `size` words, each of which begins with the last `overlap` words of the one before."""
    return map_values(texts, _CHUNKS, lambda text: _number(text, pack_spans(word_spans(text), size, overlap)))


@ready_made(version=1, takes=Takes.TEXT, result=_chunks_type, result_text=_TEXT)
def chunk_sentences(texts: pa.Array, *, size: int = 200, overlap: int = 0) -> pa.Array:
    """Cut texts into chunks of whole sentences of `size` words at most; sentences of `overlap` words are repeated.

    A sentence of more words than that is cut by its words.
    """

    def cut(text: str) -> list[dict[str, Any]]:
        spans = list(split_large(text, sentence_spans(text), size))
        return _number(text, pack_spans(spans, size, overlap))

    return map_values(texts, _CHUNKS, cut)


@ready_made(
    version=1, takes=Takes.TEXT, result=_chunks_type, result_text=_TEXT, packages=("tokenizers",),
    fingerprint=lambda *, tokenizer, **_: digest_tokenizer(tokenizer),
)  # fmt: skip
def chunk_tokens(texts: pa.Array, *, tokenizer: str, size: int = 256, overlap: int = 0) -> pa.Array:
    """Cut texts into chunks of `size` tokens of a model's tokenizer: a folder that has tokenizer.json, or a package's.

    Tokens that the model adds at the beginning and the end are not counted.
    """
    encoder = find_tokenizer(tokenizer)

    def cut(text: str) -> list[dict[str, Any]]:
        offsets = encoder.encode(text, add_special_tokens=False).offsets
        return _number(text, pack_spans(_token_spans(offsets), size, overlap))

    return map_values(texts, _CHUNKS, cut)


def _token_spans(offsets: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the spans of tokens; those that are parts of one character are one span."""
    spans: list[Span] = []
    for start, end in offsets:
        if start == end:
            continue
        if spans and start < spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(end, spans[-1].end), spans[-1].size + 1)
        else:
            spans.append(Span(start, end))
    return spans


@ready_made(
    version=1, takes=Takes.TEXT, result=_markdown_type, result_text="list of number, chunk, start, end, headings"
)
def chunk_markdown(texts: pa.Array, *, size: int = 200, overlap: int = 0) -> pa.Array:
    """Cut Markdown into chunks of whole blocks of `size` words at most, none across a heading.

    A chunk has the headings above it. Blocks are paragraphs, lists, tables and fenced code, which is whole if it is not
    larger than a chunk. Blocks of `overlap` words are repeated within a section.
    """

    def cut(text: str) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        for headings, blocks in _sections(text):
            for start, end in pack_spans(list(split_large(text, blocks, size)), size, overlap):
                chunk = {"number": len(chunks), "chunk": text[start:end], "start": start, "end": end}
                chunks.append({**chunk, "headings": headings})
        return chunks

    return map_values(texts, _MARKDOWN_CHUNKS, cut)


def _sections(text: str) -> Iterator[tuple[list[str], list[Span]]]:
    """Yield the sections of Markdown: the headings above, and the blocks; a heading is the first block of its own."""
    headings: list[tuple[int, str]] = []
    blocks: list[Span] = []
    block_start: int | None = None
    fence = ""
    position = 0
    for line in text.splitlines(keepends=True):
        heading = None if fence else _HEADING.fullmatch(line.rstrip("\r\n"))
        opening = _FENCE.match(line)
        if heading is not None:
            blocks += _block(text, block_start, position)
            if blocks:
                yield [title for _, title in headings], blocks
            level = len(heading.group(1))
            headings = [each for each in headings if each[0] < level]
            headings.append((level, (heading.group(2) or "").strip().rstrip("#").rstrip()))
            blocks, block_start = list(counted_span(text, position, position + len(line))), None
        elif fence:
            if opening and opening.group(1).startswith(fence) and not line.strip().strip(fence[0]):
                blocks += _block(text, block_start, position + len(line))
                block_start, fence = None, ""
        elif opening:
            blocks += _block(text, block_start, position)
            block_start, fence = position, opening.group(1)
        elif not line.strip():
            blocks += _block(text, block_start, position)
            block_start = None
        elif block_start is None:
            block_start = position
        position += len(line)
    blocks += _block(text, block_start, position)
    if blocks:
        yield [title for _, title in headings], blocks


def _block(text: str, start: int | None, end: int) -> Iterator[Span]:
    return iter(()) if start is None else counted_span(text, start, end)
