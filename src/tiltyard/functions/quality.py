"""Measure texts as those who filter pages for training do: lengths, symbols, lines, repetitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.model.refusals import RefusedError

_MEASURES = pa.struct(
    [
        ("characters", pa.int64()),
        ("words", pa.int64()),
        ("mean_word_length", pa.float64()),
        ("alphabetic_words", pa.float64()),
        ("symbols_per_word", pa.float64()),
        ("capitals", pa.float64()),
        ("digits", pa.float64()),
        ("bullet_lines", pa.float64()),
        ("ellipsis_lines", pa.float64()),
        ("repeated_lines", pa.float64()),
        ("repeated_words", pa.float64()),
        ("passes", pa.bool_()),
    ]
)
_BULLETS = ("•", "-", "*", "‣", "◦", "\u2013", "\u2014")
_SYMBOLS = re.compile(r"#|\.\.\.|…")
_RUN = 4
"""Words of a run that is looked for again."""


def _measures_type(*, min_words: int, max_words: int) -> pa.DataType:
    if not 0 <= min_words <= max_words:
        raise RefusedError(f"min_words is {min_words} and max_words {max_words}: 0 ≤ min_words ≤ max_words.")
    return _MEASURES


@ready_made(version=1, takes=Takes.TEXT, result=_measures_type, result_text="measures, and whether they pass (passes)")
def measure_text(texts: pa.Array, *, min_words: int = 50, max_words: int = 100_000) -> pa.Array:
    """Measure texts: lengths, and the shares of words, characters and lines that are unlike prose.

    `passes` says whether there are `min_words` to `max_words` words, of 3 to 10 characters on average, of which 80 %
    have a letter; at most 0.1 symbols (#, …) for a word, 90 % of lines with a bullet, 30 % that end with dots, 30 % of
    lines and 20 % of words that only repeat earlier ones.
    """
    return map_values(texts, _MEASURES, lambda text: _measure(text, min_words, max_words))


def _measure(text: str, min_words: int, max_words: int) -> dict[str, Any]:
    words = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    letters = [character for character in text if character.isalpha()]
    measures: dict[str, Any] = {
        "characters": len(text),
        "words": len(words),
        "mean_word_length": _share(sum(map(len, words)), len(words)),
        "alphabetic_words": _share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "symbols_per_word": _share(len(_SYMBOLS.findall(text)), len(words)),
        "capitals": _share(sum(map(str.isupper, letters)), len(letters)),
        "digits": _share(sum(map(str.isdigit, text)), len(text)),
        "bullet_lines": _share(sum(line.startswith(_BULLETS) for line in lines), len(lines)),
        "ellipsis_lines": _share(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "repeated_lines": _share(sum(count - 1 for count in Counter(lines).values()), len(lines)),
        "repeated_words": _repeated_words(words),
    }
    return {**measures, "passes": min_words <= len(words) <= max_words and _passes(measures)}


def _passes(measures: dict[str, Any]) -> bool:
    return bool(
        3 <= measures["mean_word_length"] <= 10
        and measures["alphabetic_words"] >= 0.8
        and measures["symbols_per_word"] <= 0.1
        and measures["bullet_lines"] <= 0.9
        and measures["ellipsis_lines"] <= 0.3
        and measures["repeated_lines"] <= 0.3
        and measures["repeated_words"] <= 0.2
    )


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _repeated_words(words: Sequence[str]) -> float:
    """Return the share of words that are part of a run of four that the text has had before."""
    seen: set[int] = set()
    repeated = covered = 0
    for start in range(len(words) - _RUN + 1):
        run = hash(tuple(words[start : start + _RUN]))
        if run in seen:
            repeated += start + _RUN - max(covered, start)
            covered = start + _RUN
        seen.add(run)
    return _share(repeated, len(words))
