"""The sentences that docs/troubleshooting.md quotes are those that the code gives."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
PAGE = (HOME / "docs/troubleshooting.md").read_text()
QUOTED = re.compile(r"\*\*`(.+?)`\*\*", re.DOTALL)
ELLIPSIS = "…"
"""Stands in the page for what differs from case to case."""
MIN_WORDS_LENGTH = 12
"""Characters of a part from which on it tells a sentence from others; each quotation has one part of them at least."""


@cache
def literals() -> str:
    """Return all texts of the source, one to a line, with the mark where an f-string has a value."""
    found: list[str] = []
    for file in (HOME / "src/tiltyard").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else ELLIPSIS for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def sentences() -> list[str]:
    """Return what the page quotes, each on one line."""
    return [" ".join(quoted.split()) for quoted in QUOTED.findall(PAGE)]


def is_given(part: str) -> bool:
    """Whether the code has a part of a sentence, or, where it puts that together, each of its clauses."""
    return part in literals() or all(
        clause in literals() for clause in re.split(r"[.:;,] ", part.rstrip(".:")) if len(clause) >= MIN_WORDS_LENGTH
    )


def test_quoted_sentences_are_given_by_the_code() -> None:
    unknown = [
        (sentence, part)
        for sentence in sentences()
        for part in map(str.strip, sentence.split(ELLIPSIS))
        if len(part) >= MIN_WORDS_LENGTH and not is_given(part)
    ]
    assert unknown == [], "docs/troubleshooting.md quotes what the code does not say any more"
    vague = [text for text in sentences() if max(map(len, text.split(ELLIPSIS))) < MIN_WORDS_LENGTH]
    assert vague == []
    assert len(sentences()) >= 40
