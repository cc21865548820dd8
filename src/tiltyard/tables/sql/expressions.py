"""SQL that a request brings for Lance to run: filters, predicates, expressions.

Lance plans an expression by recursion, so one that is deep enough overflows the stack and takes the whole process
with it: seen from some 300 to 1,000 chained operators on (`id + 1 + 1 …`), and from some 10,000 to 40,000 of AND or
OR. Its parser bounds parentheses and nested calls itself, to some fifty, but not chains, and the two multiply.
It also reads one statement and drops what follows a semicolon. Whatever SQL of a client Lance is given has to be
checked here, or a request ends the process.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from lance_namespace.errors import InvalidInputError

from tiltyard.tables.sql.amplification import check_growth
from tiltyard.tables.sql.functions import check_functions

LONGEST_CHAIN = 100
"""Operators one after the other, across all levels of parentheses."""

MOST_VALUES = 100_000
"""Values of a list to compare with, by their commas: Lance takes 1.4 KB to plan each."""

_CONNECTIVES_PER_OPERATOR = 50
"""AND and OR are planned flat where Lance can: so many of them cost as much stack as one operator."""

_DEEPEST = LONGEST_CHAIN * _CONNECTIVES_PER_OPERATOR

_TOKEN = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)
    |(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)|(?P<end>;)
    |(?P<word>[^\W\d]\w*)
    |(?P<operator>::|\|\||[<>!=]=|<>|[-+*/%^|&<>=!~\#@?:])
    |[\w.]+|\s+|.""",
    re.VERBOSE | re.DOTALL,
)
_NUMBERS = re.compile(r"\(\s*\d+(?:\s*,\s*\d+)*+\s*\)")  # the ids of a take: long, and flat
_CONNECTIVES = frozenset({"and", "or"})
_WORD_OPERATORS = frozenset(
    {"is", "not", "in", "like", "ilike", "rlike", "between", "similar", "at", "collate", "div", "xor"}
)


class _Level:
    """What is seen so far between two brackets."""

    __slots__ = ("chain", "connectives", "deepest", "inner")

    def __init__(self) -> None:
        self.chain = self.connectives = self.inner = self.deepest = 0

    def close_term(self) -> None:
        self.deepest = max(self.deepest, self.chain * _CONNECTIVES_PER_OPERATOR + self.inner)
        self.chain = self.inner = 0

    @property
    def depth(self) -> int:
        self.close_term()
        return self.deepest + self.connectives


def checked_expression(text: str, what: str = "filter", also: Collection[str] = ()) -> str:
    """The same text, if it is one expression of known functions, not too deep to plan, and makes no row too large.

    `also` names functions that are replaced before Lance sees the text. Raises InvalidInputError. Whether it is valid
    SQL on a table's columns is Lance's to say.
    """
    if len(text) > MOST_VALUES and text.count(",") > MOST_VALUES:
        raise InvalidInputError(f"The {what} has more than {MOST_VALUES} commas: send its values in several requests.")
    check_functions(text, what, also)
    check_growth({what: text})
    if len(text) <= LONGEST_CHAIN and ";" not in text:
        return text
    if _depth(_NUMBERS.sub("()", text), what) > _DEEPEST:
        raise InvalidInputError(
            f"The {what} chains too many operators: {LONGEST_CHAIN} at most, and of AND or OR {_DEEPEST}."
            " To pick from a list of values, write `column IN (1, 2, …)`."
        )
    return text


def _depth(text: str, what: str) -> int:
    """How deep the tree of an expression can be, in units of one AND."""
    levels = [_Level()]
    for token in _TOKEN.finditer(text):
        level = levels[-1]
        match token.lastgroup:
            case "open":
                levels.append(_Level())
            case "close" if len(levels) > 1:
                _close(levels)
            case "comma":
                level.close_term()
            case "end" if text[token.end() :].strip(" ;\n\t\r"):
                raise InvalidInputError(f"The {what} is one expression: nothing may follow the semicolon.")
            case "word" if (word := token[0].lower()) in _CONNECTIVES:
                level.connectives += 1
                level.close_term()
            case "word" if word in _WORD_OPERATORS:
                level.chain += 1
            case "operator":
                level.chain += 1
    while len(levels) > 1:
        _close(levels)
    return levels[0].depth


def _close(levels: list[_Level]) -> None:
    """The last level ends: what is in it counts for the one around it."""
    closed = levels.pop().depth
    levels[-1].inner = max(levels[-1].inner, closed)
