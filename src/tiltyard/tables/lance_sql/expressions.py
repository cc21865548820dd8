"""Check the SQL of requests before Lance plans it: filters, predicates, expressions.

Lance plans an expression by recursion, so one that is deep enough overflows the stack and crashes the whole process:
observed from some 300 to 1,000 chained operators on (`id + 1 + 1 …`), and from some 10,000 to 40,000 of AND or OR. Its
parser bounds parentheses and nested calls itself, to some fifty, but not chains, and the two multiply. It also parses
one statement and drops what follows a semicolon. Every SQL text of a client has to be checked here before Lance gets
it, or a request ends the process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.allowed_functions import check_functions
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.lexer import AMBIGUOUS, TOKEN, Token, tokenize

MAX_CHAIN = 100
"""Operators in one chain, across all levels of parentheses."""

MAX_VALUES = 100_000
"""Values of an IN list, counted by their commas: Lance takes 1.4 KB to plan each."""

_CONNECTIVES_PER_OPERATOR = 50
"""Lance plans AND and OR flat where it can: so many of them take as much stack as one operator."""

_MAX_DEPTH = MAX_CHAIN * _CONNECTIVES_PER_OPERATOR

_VOLATILE = frozenset(
    {"now", "today", "random", "uuid", "current_date", "current_time", "current_timestamp", "localtime"}
)
"""Functions whose result is another one each time."""
_POSITIONS = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"})
"""Columns that Lance computes: where a row is in one version of one table, and since when."""

_NUMBER_LIST = re.compile(r"\(\s*\d+(?:\s*,\s*\d+)*+\s*\)")  # the ids of a take: a long list, but flat
_CONNECTIVES = frozenset({"and", "or"})
_WORD_OPERATORS = frozenset(
    {"is", "not", "in", "like", "ilike", "rlike", "between", "similar", "at", "collate", "div", "xor"}
)


class _Level:
    """The operators counted so far between two brackets."""

    __slots__ = ("chain", "connectives", "deepest", "inner")

    def __init__(self) -> None:
        self.chain = self.connectives = self.inner = self.deepest = 0

    def add_word(self, word: str) -> None:
        if word in _CONNECTIVES:
            self.connectives += 1
            self.close_term()
        elif word in _WORD_OPERATORS:
            self.chain += 1

    def close_term(self) -> None:
        self.deepest = max(self.deepest, self.chain * _CONNECTIVES_PER_OPERATOR + self.inner)
        self.chain = self.inner = 0

    @property
    def depth(self) -> int:
        self.close_term()
        return self.deepest + self.connectives


def check_expression(text: str, label: str = "filter", replaced: Collection[str] = ()) -> str:
    """Return the text if it is one expression of known functions, not too deep to plan, that makes no row too large.

    `label` names the text in error messages; `replaced` are functions that are replaced before Lance gets the text.
    Raises InvalidInputError. Whether the text is valid SQL on a table's columns is for Lance to check.
    """
    if len(text) > MAX_VALUES and text.count(",") > MAX_VALUES:
        raise InvalidInputError(f"The {label} has more than {MAX_VALUES} commas: send its values in several requests.")
    check_functions(text, label, replaced)
    check_growth({label: text})
    check_depth(text, label)
    return text


def check_condition(text: str, label: str) -> str:
    """Return the text if it is one expression, as `check_expression` does, whose brackets are closed within it.

    So it means the same wherever it is written: Lance drops what follows a bracket that was never opened. Comments and
    backslashes before quotes are refused, about which parsers differ. Raises InvalidInputError.
    """
    if re.search(AMBIGUOUS, text):
        raise InvalidInputError(f"The {label} has a comment, or a backslash before a quote: leave it out.")
    depth = 0
    for token in TOKEN.finditer(text):
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth < 0:
            break
    if depth:
        raise InvalidInputError(f"The {label} has brackets that are not closed, or not opened: {text[:_MAX_SHOWN]}")
    return check_expression(text, label)


_MAX_SHOWN = 100
"""Characters of a text in a message about it."""


def find_volatile_call(tokens: Sequence[Token]) -> str | None:
    """Return the first call whose result is another one each time, as it is written; None without one."""
    for token, next_token in pairwise([*tokens, Token("end", "", 0, 0)]):
        name = token.text.strip('"`').lower()
        if name in _VOLATILE and (next_token.kind == "open" or token.word.startswith("current_")):
            return token.text
    return None


def check_values_alone(text: str, label: str) -> str:
    """Return the text if it selects a row by its values alone: the same rows, each time and in each copy of them.

    Raises InvalidInputError for what differs from call to call (`random()`), or with where a row is (`_rowid`).
    """
    tokens = tokenize(text)
    call = find_volatile_call(tokens)
    position = next((each.text for each in tokens if each.text.strip("`").lower() in _POSITIONS), None)
    if found := call or position:
        raise InvalidInputError(
            f"The {label} selects rows by values alone, the same ones in each version and copy: leave {found} out."
        )
    return text


def check_depth(text: str, label: str) -> None:
    """Raise InvalidInputError for SQL whose chains of operators are too long to plan, or that has several statements.

    `label` names the text in error messages.
    """
    if len(text) <= MAX_CHAIN and ";" not in text:
        return
    if _depth(_NUMBER_LIST.sub("()", text), label) > _MAX_DEPTH:
        raise InvalidInputError(
            f"The {label} chains too many operators: {MAX_CHAIN} at most, and of AND or OR {_MAX_DEPTH}."
            " To pick from a list of values, write `column IN (1, 2, …)`."
        )


def _depth(text: str, label: str) -> int:
    """Return how deep the tree of an expression can be, in units of one AND."""
    levels = [_Level()]
    for token in TOKEN.finditer(text):
        level = levels[-1]
        match token.lastgroup:
            case "open":
                levels.append(_Level())
            case "close" if len(levels) > 1:
                _close_level(levels)
            case "comma":
                level.close_term()
            case "semicolon" if text[token.end() :].strip(" ;\n\t\r"):
                raise InvalidInputError(f"The {label} is one expression: nothing may follow the semicolon.")
            case "word" if text[token.start() - 1 : token.start()] != ".":  # else the name of a struct's field
                level.add_word(token[0].lower())
            case "operator":
                level.chain += 1
    while len(levels) > 1:
        _close_level(levels)
    return levels[0].depth


def _close_level(levels: list[_Level]) -> None:
    """End the innermost level: its depth counts for the term around it."""
    closed = levels.pop().depth
    levels[-1].inner = max(levels[-1].inner, closed)
