"""SQL of those whom policies bind, read closely enough to put it beside a policy's own.

Lance takes a filter as text alone, so `(policy) AND (request)` has to be made of texts; and Lance reads one expression
and drops what follows, so that `id = 1) OR (true` is a filter to it. What is let through here is made of tokens that no
parser of SQL reads in two ways (no comments, no double quotes, no backslash, no prefixed strings), its parentheses pair
up and never close one that it has not opened, and each name in it is known.

A **filter** meets hidden rows as well, since Lance may try it before the policy. So it may not fail on a row: whether
it fails would tell of that row, and Lance's message even quotes the value. That leaves comparisons of one column with
constants of its own kind, some predicates about text and lists, and AND, OR, NOT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<text>'(?:[^'\\\0]|'')*')
    |(?P<name>(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.\\\0]+`)(?:\.(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.\\\0]+`))*)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<open>\()|(?P<close>\))|(?P<comma>,)
    |(?P<compare><=|>=|<>|!=|=|<|>)
    |(?P<sign>-(?!-)|\+)|(?P<other>\|\||/(?!\*)|[*%\[\]])""",
    re.VERBOSE,
)

_WORDY = re.compile(r"[\w'`]")

_WORDS = frozenset(["and", "or", "not", "in", "is", "null", "between", "like", "ilike", "true", "false"])
_TIMES = frozenset({"date", "timestamp"})
_FUNCTIONS = frozenset(["lower", "upper", "starts_with", "ends_with", "contains", "array_has", "array_contains"])
_ADVICE = "compare a column with constants of its type, and join such terms by AND, OR and NOT"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL: its kind is the name of a group of the pattern."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """The name as a keyword or a function's; "" for what is neither."""
        return self.text.lower() if self.kind == "name" and self.text[0] != "`" else ""

    @property
    def parts(self) -> list[str]:
        """The names on a path, without their quotes."""
        return [part.strip("`") for part in self.text.split(".")]


def tokens(text: str, what: str) -> list[Token]:
    """The tokens of SQL that can be put into parentheses. Raises InvalidInputError."""
    found: list[Token] = []
    place = depth = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise InvalidInputError(
                f"The {what} has a sign that is not taken on a table with policies, at {place + 1}:"
                " write 'x' for text and `x` for a name, and no comments."
            )
        place = match.end()
        if match.lastgroup == "text" and _WORDY.fullmatch(text, max(0, match.start() - 1), match.start()):
            raise InvalidInputError(f"The {what} has a text right behind a word: put a space between them.")
        if match.lastgroup not in (None, "space"):
            found.append(Token(str(match.lastgroup), match[0]))
            depth += {"open": 1, "close": -1}.get(found[-1].kind, 0)
            if depth < 0:
                break
    if depth or not found:
        raise InvalidInputError(f"The parentheses of the {what} do not pair up." if found else f"The {what} is empty.")
    return found


def names_in(found: list[Token]) -> Iterator[Token]:
    """All that may name a column: every word but a function's."""
    for token, following in zip(found, [*found[1:], Token("end", "")], strict=True):
        if token.kind == "name" and following.kind != "open":
            yield token


def check_value(text: str, what: str, columns: Mapping[str, str], masked: frozenset[str]) -> str:
    """An expression that is computed of rows that one may see: any, without masked columns. Gives it back.

    `columns` are the kinds of the table's columns by name. Raises InvalidInputError, PermissionDeniedError.
    """
    found = tokens(text, what)
    edges = [Token("open", "("), *found, Token("close", ")")]
    for before, token, behind in zip(edges, edges[1:], edges[2:], strict=False):
        if token.text == "*" and (before.kind in ("open", "comma") or behind.kind in ("close", "comma")):
            raise InvalidInputError(f"The {what} names all columns by '*': name them one by one.")
        if token.kind == "name":
            check_unmasked(token, what, columns, masked)
    return text


def check_unmasked(token: Token, what: str, columns: Mapping[str, str], masked: frozenset[str]) -> None:
    """Raise PermissionDeniedError for a masked column's name, InvalidInputError for a quoted one that no column has."""
    whole = ".".join(token.parts)
    hit = {part.casefold() for part in (*token.parts, whole)} & masked
    if hit:
        raise PermissionDeniedError(f"The {what} names a column that is masked for you: '{whole}'.")
    if token.text[0] == "`" and token.parts[0] not in columns:
        raise InvalidInputError(f"The {what} names no column of this table: '{whole}'.")


@dataclass(slots=True)
class _Level:
    """What is between two parentheses: the column and the constants of the term under way."""

    column: str = ""
    kind: str = ""
    constants: set[str] = field(default_factory=set)
    betweens: int = 0
    split: bool = False


class _Filter:
    """One pass over a filter's tokens."""

    def __init__(self, what: str, columns: Mapping[str, str], masked: frozenset[str]) -> None:
        self._what, self._columns, self._masked = what, columns, masked
        self._levels = [_Level()]

    def run(self, found: list[Token]) -> None:
        """Raises InvalidInputError, PermissionDeniedError."""
        before = Token("open", "(")
        for token, behind in zip(found, [*found[1:], Token("close", ")")], strict=True):
            self._take(before, token, behind)
            before = token
        self._end_term(self._levels[0])

    def _take(self, before: Token, token: Token, behind: Token) -> None:
        level = self._levels[-1]
        match token.kind:
            case "open":
                self._levels.append(_Level())
            case "close":
                self._close()
            case "text" | "number":
                level.constants.add(token.kind)
            case "sign" if behind.kind == "number" and _begins(before):
                pass
            case "name":
                self._name(level, token, behind)
            case "compare" | "comma":
                pass
            case _:
                self._refuse(f"'{token.text}'")

    def _name(self, level: _Level, token: Token, behind: Token) -> None:
        word = token.word
        if behind.kind == "open" and word not in _WORDS:
            if word not in _FUNCTIONS:
                self._refuse(f"'{token.text}()'")
        elif word in ("and", "or"):
            if word == "and" and level.betweens:
                level.betweens -= 1
            else:
                self._end_term(level)
                level.split = True
        elif word == "between":
            level.betweens += 1
        elif word in ("true", "false"):
            level.constants.add("boolean")
        elif word in _TIMES and behind.kind == "text":
            level.constants.add("time")
        elif word not in _WORDS:
            self._column(level, token)

    def _column(self, level: _Level, token: Token) -> None:
        check_unmasked(token, self._what, self._columns, self._masked)
        path = ".".join(token.parts)
        kind = self._columns.get(path)
        if kind is None:
            raise InvalidInputError(f"The {self._what} names no column of this table: '{path}'.")
        if not kind:
            self._refuse(f"the column '{path}', whose type is not compared there")
        self._join(level, path, kind)

    def _join(self, level: _Level, path: str, kind: str) -> None:
        if level.column and level.column != path:
            self._refuse("one column beside another")
        level.column, level.kind = path, kind

    def _close(self) -> None:
        """A group ends: it belongs to the term around it; what AND or OR joined is a truth value, and nothing else."""
        inner = self._levels.pop()
        outer = self._levels[-1]
        if inner.split:
            self._end_term(inner)
            self._join(outer, "(…)", "boolean")
        elif inner.column:
            self._join(outer, inner.column, inner.kind)
        outer.constants |= inner.constants

    def _end_term(self, level: _Level) -> None:
        if level.kind == "text" and level.constants - {"text"}:
            self._refuse(f"the text '{level.column}' beside what is no text")
        if "time" in level.constants and level.kind not in ("time", ""):
            self._refuse(f"'{level.column}' beside a time")
        level.column, level.kind, level.constants = "", "", set()

    def _refuse(self, found: str) -> NoReturn:
        raise InvalidInputError(f"On a table with policies, the {self._what} may not have {found}: {_ADVICE}.")


def _begins(before: Token) -> bool:
    """Whether a constant may begin behind this: a sign there is its own, and no subtraction."""
    return before.kind in ("open", "comma", "compare") or before.word in _WORDS


def check_filter(text: str, what: str, columns: Mapping[str, str], masked: frozenset[str]) -> str:
    """A filter that can fail on no row and names no masked column. Gives it back.

    `columns` are the kinds of columns and of paths in structs ("text", "number", "time", "boolean"; "" for one that may
    not be compared). Raises InvalidInputError, PermissionDeniedError.
    """
    _Filter(what, columns, masked).run(tokens(text, what))
    return text
