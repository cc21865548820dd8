"""Spans of a text, and how they are packed into chunks of a size that overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
