"""Check the text of a statement before it is planned, which cannot be interrupted: its length, depth and size.

What a statement may do is judged by its plan (`tiltyard.sql.plans`), not by its text. The text is checked because to
plan it may already take too much: chains of operators overflow the stack (5,000 of AND end the process), a common table
expression that is used twice doubles the plan, and constant calls such as `repeat('x', 1000000000)` are computed while
it is planned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lance_namespace.errors import InvalidInputError

from tiltyard.tables.sql.amplification import MAX_GROWTH, multiply_growth
from tiltyard.tables.sql.expressions import MAX_VALUES, check_depth
from tiltyard.tables.sql.lexer import TOKEN

MAX_CONNECTIVES = 500
"""AND and OR of one statement: Lance gets a filter as one chain of them."""
MAX_PLAN_SIZE = 500
"""SELECT, JOIN, UNION and the like of one statement, those of a common table expression counted at each of its uses."""
MAX_PLACEHOLDERS = 1_000

_LABEL = "query"
_PARTS = re.compile(
    r"""(?P<text>'[^']*+'(?:'[^']*+')*+)|(?P<name>"[^"]*"|`[^`]*`)|(?P<line>--[^\n]*)|(?P<block>/\*)
    |(?P<question>\?)|(?P<dollar>\$(?!\d))""",
    re.VERBOSE,
)
_SIZES = frozenset({"select", "join", "union", "intersect", "except", "over", "values", "from", "lateral", "unnest"})
_CONNECTIVES = frozenset({"and", "or"})
_CONCATENATING = frozenset(
    {"concat", "array_concat", "array_cat", "list_concat", "list_cat", "make_array", "make_list"}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without comments, its placeholders numbered (`$1`, `$2`, …); `placeholders` is how many it has.

    `names` has its keywords and names in lower case, without quotes.
    """

    text: str
    placeholders: int
    names: frozenset[str] = frozenset()


def parse_statement(text: str, max_length: int) -> Statement:
    """Check the text of a statement of up to `max_length` characters. Raises InvalidInputError."""
    if len(text) > max_length:
        raise InvalidInputError(f"The query has {len(text)} characters: {max_length} at most (sql_max_length).")
    if "\0" in text:
        raise InvalidInputError("The query has the character U+0000: leave it out.")
    if text.count(",") > MAX_VALUES:
        raise InvalidInputError(f"The query has more than {MAX_VALUES} commas: join a table of the values instead.")
    statement = _normalize(text)
    if not statement.text.strip(" \t\r\n;"):
        raise InvalidInputError("The query is empty.")
    if "\\'" in statement.text:
        raise InvalidInputError("The query has a \\', which parsers of SQL read differently: double the quote instead.")
    check_depth(statement.text, _LABEL)
    tokens = [match for match in TOKEN.finditer(statement.text) if match.lastgroup != "space"]
    _check_size(statement.text, tokens)
    names = frozenset(_name(token) for token in tokens if token.lastgroup in ("word", "quoted"))
    return replace(statement, names=names)


def _normalize(text: str) -> Statement:
    """Remove comments and number the placeholders written as `?`. Raises InvalidInputError."""
    parts: list[str] = []
    questions = position = 0
    while match := _PARTS.search(text, position):
        parts.append(text[position : match.start()])
        position = match.end()
        match match.lastgroup:
            case "line":
                parts.append(" ")
            case "block":
                position = _comment_end(text, position)
                parts.append(" ")
            case "question":
                questions += 1
                parts.append(f"${questions}")
            case "dollar":
                raise InvalidInputError("The query has a $ without a number: write texts as 'x', parameters as $1.")
            case _:
                parts.append(match[0])
    parts.append(text[position:])
    normalized = "".join(parts)
    numbers = {int(number) for number in re.findall(r"\$(\d{1,9})", normalized)}
    placeholders = max(numbers, default=0)
    if placeholders > MAX_PLACEHOLDERS:
        raise InvalidInputError(f"The query has parameter ${placeholders}: {MAX_PLACEHOLDERS} at most.")
    return Statement(normalized, placeholders)


def _comment_end(text: str, start: int) -> int:
    end = text.find("*/", start)
    if end < 0:
        raise InvalidInputError("The query has a comment that does not end.")
    if "/*" in text[start:end]:
        raise InvalidInputError("The query has a comment inside a comment: leave it out.")
    return end + 2


def _name(token: re.Match[str]) -> str:
    return token[0].strip('"`').lower()


def _check_size(text: str, tokens: Sequence[re.Match[str]]) -> None:
    """Raise InvalidInputError for a statement that is too large to plan, or that makes too much of each row."""
    words = [match[0].lower() if match.lastgroup == "word" else "" for match in tokens]
    connectives = sum(word in _CONNECTIVES for word in words)
    if connectives > MAX_CONNECTIVES:
        raise InvalidInputError(
            f"The query has {connectives} of AND and OR: {MAX_CONNECTIVES} at most. To pick from a list of values,"
            " write `column IN (1, 2, …)`, or join a table of them."
        )
    size = _plan_size(tokens, words)
    if size > MAX_PLAN_SIZE:
        raise InvalidInputError(
            f"The query has too many SELECTs and JOINs, with those of each use of a WITH: {MAX_PLAN_SIZE} at most."
        )
    growth = multiply_growth(text, _LABEL) * _concatenations(tokens, words)
    if growth > MAX_GROWTH:
        raise InvalidInputError(
            f"The query may make values {growth:.0f} times as large as those it reads: {MAX_GROWTH} times at most."
        )


def _plan_size(tokens: Sequence[re.Match[str]], words: Sequence[str]) -> int:
    """Return how many SELECTs and the like the plan has, once each common table expression is put where it is used."""
    sizes: dict[str, int] = {}
    open_names: list[tuple[str, int]] = []
    counts = [0]
    for at, token in enumerate(tokens):
        match token.lastgroup:
            case "open":
                open_names.append((_defined_name(tokens, words, at), len(counts)))
                counts.append(0)
            case "close" if open_names:
                name, level = open_names.pop()
                inside = min(sum(counts[level:]), MAX_PLAN_SIZE + 1)
                del counts[level:]
                if name:
                    sizes[name] = sizes.get(name, 0) + inside
                counts[-1] += inside
            case "word" | "quoted":
                name = _name(token)
                is_qualifier = at + 1 < len(tokens) and tokens[at + 1][0] == "."
                counts[-1] += (name in _SIZES) + (0 if is_qualifier else sizes.get(name, 0))
                counts[-1] = min(counts[-1], MAX_PLAN_SIZE + 1)
    return sum(counts)


def _defined_name(tokens: Sequence[re.Match[str]], words: Sequence[str], bracket: int) -> str:
    """Return the name that a common table expression gives to what is in this bracket: `name [(columns)] AS (`."""
    at = bracket - 1
    while at >= 0 and words[at] in ("materialized", "not"):
        at -= 1
    if at < 1 or words[at] != "as":
        return ""
    at -= 1
    if tokens[at].lastgroup == "close":  # the names of its columns
        while at >= 0 and tokens[at].lastgroup != "open":
            at -= 1
        at -= 1
    return _name(tokens[at]) if at >= 0 and tokens[at].lastgroup in ("word", "quoted") else ""


def _concatenations(tokens: Sequence[re.Match[str]], words: Sequence[str]) -> float:
    """Return by how much the concatenations of all SELECTs together may enlarge a value.

    Those of one SELECT add up; what one SELECT returns, another one may concatenate again, so those multiply.
    """
    total, count = 1.0, 0
    calls: list[bool] = []
    for at, token in enumerate(tokens):
        before = _name(tokens[at - 1]) if at else ""
        match token.lastgroup:
            case "word" if words[at] == "select":
                total, count = total * (1 + count), 0
            case "open":
                calls.append(before in _CONCATENATING or (token[0] == "[" and not before.isidentifier()))
            case "close" if calls:
                calls.pop()
            case "comma" if calls and calls[-1]:
                count += 1
            case "operator" if token[0] == "||":
                count += 1
    return total * (1 + count)
