"""Where in a query an error is: DataFusion's parser names the line and the column, its planner the name."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = re.compile(r",? at Line: (\d{1,6}), Column: (\d{1,6})")
_NAME = re.compile(
    r"No field named ([^\s,]+?)\.(?:\s|$)|There is no table '([^']+)'|Invalid function '(\w+)'"
    r"|(?:Table|Namespace) not found: (?:\S*\$)?([^\s$]+)"
)
_WORD = re.compile(r"\w+|\S")
MAX_BEFORE, MAX_BEHIND = 60, 40
"""Characters of the line that are shown before and behind the place."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text: its line and column, from 1, its offset, from 0; the word there, and what is around that."""

    line: int
    column: int
    offset: int
    before: str
    word: str
    behind: str


def find_place(text: str, sent: str, message: str) -> tuple[str, Place | None]:
    """Return the message of an error without the place that it names in what was sent, and the place in the text.

    What was sent ends with the text. None where the message names no place, or one that the text has not.
    """
    found = _PLACE.search(message)
    if found is None:
        return message, _find_name(text, message)
    line, column = int(found[1]), int(found[2])
    lines = sent.split("\n")
    if not 1 <= line <= len(lines) or not 1 <= column <= len(lines[line - 1]) + 1:
        return message, None
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1 - (len(sent) - len(text))
    if offset < 0:
        return message, None
    return _PLACE.sub("", message), _place(text, offset)


def _find_name(text: str, message: str) -> Place | None:
    """Return the place of the name that an error has, if the text has it once."""
    found = _NAME.search(message)
    name = found[found.lastindex or 0].lower() if found is not None else ""
    lower = text.lower()
    return _place(text, lower.index(name)) if name and lower.count(name) == 1 and len(lower) == len(text) else None


def _place(text: str, offset: int) -> Place:
    above = text[:offset].count("\n")
    at = offset - (text.rfind("\n", 0, offset) + 1)
    shown = text.split("\n")[above]
    before = ("…" if at > MAX_BEFORE else "") + shown[max(0, at - MAX_BEFORE) : at]
    behind = shown[at : at + MAX_BEHIND] + ("…" if len(shown) > at + MAX_BEHIND else "")
    word = _WORD.match(behind)
    end = word.end() if word is not None else 0
    return Place(above + 1, at + 1, offset, before, behind[:end], behind[end:])
