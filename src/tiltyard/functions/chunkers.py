"""Chunkers: parts of a text by words, tokens, sentences or the structure of Markdown, each with its position.

A chunk has its `number` (from 0), its text (`chunk`), and the positions of its characters: `text[start:end]` is the
chunk. Called with one text, a chunker returns a list of mappings: the code of a view that has a row for each chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tiltyard.functions.model_files import digest_tokenizer, find_tokenizer
from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.model.refusals import RefusedError

MAX_CHUNKS = 100_000
"""Chunks of a text: the row fails for one that has more."""

_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'\u201d\u2019»)\]]*+(?=\s)"  # Latin and like scripts: before a space
    r"|(?<![\u3002\uff01\uff1f])[\u3002\uff01\uff1f]++[\u300d\u300f\u201d\u2019]*+"  # of Chinese and Japanese
    r"|\n[ \t\r]*\n"  # a paragraph ends
)
_ABBREVIATIONS: frozenset[str] = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "vs", "etc", "e.g", "i.e", "cf", "no", "nr", "bzw", "z.b"),
        *("d.h", "u.a", "ca", "inc", "ltd", "co", "corp", "dept", "approx", "fig", "vol", "al", "jan", "feb", "mar"),
        *("apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    )
)
_STOPS = ".!?…"
_LAST_WORD_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text by the positions of its characters, and how many words or tokens it counts as."""

    start: int
    end: int
    size: int = 1


def word_spans(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """Return the words: what stands between spaces."""
    return [
        Span(match.start(), match.end()) for match in _WORD.finditer(text, start, len(text) if end is None else end)
    ]


def sentence_spans(text: str) -> Iterator[Span]:
    """Yield the sentences without the space around them, with the number of their words.

    A full stop after an abbreviation or an initial ends none, and no mark does before a small letter.
    """
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if match.group()[0] in _STOPS and not _ends_sentence(text, start, match):
            continue
        yield from counted_span(text, start, match.end())
        start = match.end()
    yield from counted_span(text, start, len(text))


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    following = text[match.end() : match.end() + 64].lstrip()[:1]
    if following.islower():
        return False
    if match.group() != ".":
        return True
    words = text[max(start, match.start() - _LAST_WORD_LENGTH) : match.start()].split()
    last = words[-1].lstrip("(\"'“„") if words else ""
    is_initial = len(last) == 1 and last.isupper()
    return not (is_initial or last.lower() in _ABBREVIATIONS)


def counted_span(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield a part of a text without the space around it, with the number of its words; none if it is empty."""
    part = text[start:end]
    stripped = part.strip()
    if stripped:
        first = start + len(part) - len(part.lstrip())
        yield Span(first, first + len(stripped), len(stripped.split()))


def split_large(text: str, spans: Iterable[Span], size: int) -> Iterator[Span]:
    """Yield spans of at most `size` words: a larger one by its words."""
    for span in spans:
        if span.size <= size:
            yield span
        else:
            yield from word_spans(text, span.start, span.end)


def pack_spans(spans: Sequence[Span], size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of chunks, each of whole spans that count `size` at most, or of one that counts more.

    A chunk begins with the last spans of the one before it that count `overlap` at most together. Raises ValueError
    for more than MAX_CHUNKS.
    """
    first = count = 0
    while first < len(spans):
        last, total = first, spans[first].size
        while last + 1 < len(spans) and total + spans[last + 1].size <= size:
            last += 1
            total += spans[last].size
        count += 1
        if count > MAX_CHUNKS:
            raise ValueError(f"the text has more than {MAX_CHUNKS} chunks: make them larger")
        yield spans[first].start, max(spans[last].end, spans[first].end)
        if last + 1 == len(spans):
            return
        following, repeated = last + 1, 0
        while following - 1 > first and repeated + spans[following - 1].size <= overlap:
            following -= 1
            repeated += spans[following].size
        first = following


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
