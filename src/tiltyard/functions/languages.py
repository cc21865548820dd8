"""Name the language of texts by rules: the script, and in scripts of several languages their most frequent words.

Sentences are told apart well, single words are not: a text that says too little has no language.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pyarrow as pa

from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.model.refusals import RefusedError

MAX_READ_LENGTH = 20_000
"""Characters of a text that its language is told by."""


@cache
def _frequent_words() -> Mapping[str, tuple[str, ...]]:
    """Return the languages of each frequent word, from the lines of a file: `en: the of and …`."""
    languages: dict[str, tuple[str, ...]] = {}
    for line in (Path(__file__).parent / "frequent_words.txt").read_text("utf-8").splitlines():
        language, _, words = line.partition(": ")
        for word in dict.fromkeys(words.split()):
            languages[word] = (*languages.get(word, ()), language)
    return languages


_SCRIPTS: Mapping[str, re.Pattern[str]] = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af\u1100-\u11ff]"),
    "zh": re.compile("[\u4e00-\u9fff\u3400-\u4dbf]"),
    "el": re.compile("[\u0370-\u03ff]"),
    "he": re.compile("[\u0590-\u05ff]"),
    "ar": re.compile("[\u0600-\u06ff]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "bn": re.compile("[\u0980-\u09ff]"),
    "ta": re.compile("[\u0b80-\u0bff]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "ka": re.compile("[\u10a0-\u10ff]"),
    "hy": re.compile("[\u0530-\u058f]"),
}
"""Scripts that tell a language; Han and kana together are Japanese."""
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)?")
_MIN_WORDS = 2
"""Frequent words of a language that a text has to have."""
_KANA_SHARE = 0.05


def _language_type(*, min_share: float) -> pa.DataType:
    if not 0 <= min_share <= 1:
        raise RefusedError(f"min_share is {min_share}: it is 0 to 1.")
    return pa.string()


@ready_made(version=1, takes=Takes.TEXT, result=_language_type, result_text="text: a code of ISO 639-1")
def detect_language(texts: pa.Array, *, min_share: float = 0.15) -> pa.Array:
    """Name the language of texts, of 31: en, de, fr, es, it, pt, nl, sv, da, pl, cs, fi, hu, tr, ro, id, ru, uk, bg …

    A language is named if `min_share` of the words are frequent ones of it, and more than of any other; else none is.
    """
    return map_values(texts, pa.string(), lambda text: find_language(text, min_share))


def find_language(text: str, min_share: float = 0.15) -> str | None:
    """Return the language of a text as a code of ISO 639-1; None where it does not say enough."""
    read = text[:MAX_READ_LENGTH]
    letters = len(_LETTER.findall(read))
    if not letters:
        return None
    counts = {language: len(script.findall(read)) for language, script in _SCRIPTS.items()}
    if counts["ja"] >= _KANA_SHARE * letters and counts["ja"] + counts["zh"] > letters / 2:
        return "ja"
    scripted = max(counts, key=lambda language: counts[language])
    if counts[scripted] > letters / 2:
        return scripted
    return _by_words(_WORD.findall(read.lower()), min_share)


def _by_words(words: list[str], min_share: float) -> str | None:
    """Return the language of frequent words; a word of several languages counts for each of them less."""
    frequent = _frequent_words()
    scores: defaultdict[str, float] = defaultdict(float)
    hits: Counter[str] = Counter()
    for word in words:
        languages = frequent.get(word, ())
        for language in languages:
            scores[language] += 1 / len(languages)
            hits[language] += 1
    ranked = sorted(scores.items(), key=lambda each: each[1], reverse=True)
    if not ranked:
        return None
    best = ranked[0][0]
    if hits[best] < _MIN_WORDS or hits[best] < min_share * len(words):
        return None
    return best if len(ranked) == 1 or ranked[0][1] > ranked[1][1] else None
