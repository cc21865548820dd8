"""Check SQL of callers whom policies bind, strictly enough to combine it with a policy's own SQL.

Lance accepts a filter as text alone, so `(policy) AND (request)` has to be composed of texts; and Lance parses one
expression and drops what follows, so that `id = 1) OR (true` is a valid filter. The SQL that is allowed here consists
of tokens that no SQL parser reads differently (no comments, double quotes, backslashes or prefixed strings), its
parentheses are balanced and never close one that they have not opened, and each name in it is that of a column.

A **filter** is evaluated on hidden rows as well, since Lance may apply it before the policy. So it must not fail on any
row: a failure would disclose that row, and Lance's message even quotes the value. That leaves comparisons of one column
with constants of its own kind, some predicates on text and lists, and AND, OR, NOT.
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
class PredicateToken:
    """A token of SQL; its kind is the name of a group of the pattern."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """The token as a keyword or a function's name, in lower case; "" if it can be neither."""
        return self.text.lower() if self.kind == "name" and self.text[0] != "`" else ""

    @property
    def parts(self) -> list[str]:
        """The names on a path, without their quotes."""
        return [part.strip("`") for part in self.text.split(".")]


def tokenize(text: str, label: str) -> list[PredicateToken]:
    """Split SQL that can be put into parentheses; `label` is what messages call it. Raises InvalidInputError."""
    tokens: list[PredicateToken] = []
    place = depth = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise InvalidInputError(
                f"The {label} has a sign that is not taken on a table with policies, at {place + 1}:"
                " write 'x' for text and `x` for a name, and no comments."
            )
        place = match.end()
        if match.lastgroup == "text" and _WORDY.fullmatch(text, max(0, match.start() - 1), match.start()):
            raise InvalidInputError(f"The {label} has a text right behind a word: put a space between them.")
        if match.lastgroup == "name" and _WORDY.fullmatch(text, max(0, match.start() - 1), match.start()):
            raise InvalidInputError(
                f"The {label} has a name right behind a number or a text: put a space between them."
            )
        if match.lastgroup not in (None, "space"):
            tokens.append(PredicateToken(str(match.lastgroup), match[0]))
            depth += {"open": 1, "close": -1}.get(tokens[-1].kind, 0)
            if depth < 0:
                break
    if depth or not tokens:
        raise InvalidInputError(
            f"The parentheses of the {label} do not pair up." if tokens else f"The {label} is empty."
        )
    return tokens


def column_tokens(tokens: list[PredicateToken]) -> Iterator[PredicateToken]:
    """Yield the tokens that can name a column: all names but those of functions."""
    for token, next_token in zip(tokens, [*tokens[1:], PredicateToken("end", "")], strict=True):
        if token.kind == "name" and next_token.kind != "open":
            yield token


def check_visible_expression(text: str, label: str, columns: Mapping[str, str], masked: frozenset[str]) -> str:
    """Return an expression if it names no masked column: it is evaluated on visible rows alone.

    `columns` are the kinds of the table's columns by name. Raises InvalidInputError, PermissionDeniedError.
    """
    tokens = tokenize(text, label)
    edges = [PredicateToken("open", "("), *tokens, PredicateToken("close", ")")]
    for before, token, after in zip(edges, edges[1:], edges[2:], strict=False):
        if token.text == "*" and (before.kind in ("open", "comma") or after.kind in ("close", "comma")):
            raise InvalidInputError(f"The {label} names all columns by '*': name them one by one.")
        if token.kind == "name":
            check_not_masked(token, label, columns, masked)
    return text


def check_not_masked(token: PredicateToken, label: str, columns: Mapping[str, str], masked: frozenset[str]) -> None:
    """Raise PermissionDeniedError for a masked column's name, InvalidInputError for a quoted one that no column has."""
    path = ".".join(token.parts)
    if {part.casefold() for part in (*token.parts, path)} & masked:
        raise PermissionDeniedError(f"The {label} names a column that is masked for you: '{path}'.")
    if token.text[0] == "`" and token.parts[0] not in columns:
        raise InvalidInputError(f"The {label} names no column of this table: '{path}'.")


@dataclass(slots=True)
class _Group:
    """The state between two parentheses: the column and the constants of the current term."""

    column: str = ""
    kind: str = ""
    constants: set[str] = field(default_factory=set)
    open_betweens: int = 0
    has_and_or: bool = False


class _FilterCheck:
    """Checks a filter in one pass over its tokens."""

    def __init__(self, label: str, columns: Mapping[str, str], masked: frozenset[str]) -> None:
        self._label, self._columns, self._masked = label, columns, masked
        self._groups = [_Group()]

    def run(self, tokens: list[PredicateToken]) -> None:
        """Check all tokens. Raises InvalidInputError, PermissionDeniedError."""
        before = PredicateToken("open", "(")
        for token, after in zip(tokens, [*tokens[1:], PredicateToken("close", ")")], strict=True):
            self._check(before, token, after)
            before = token
        self._end_term(self._groups[0])

    def _check(self, before: PredicateToken, token: PredicateToken, after: PredicateToken) -> None:
        level = self._groups[-1]
        match token.kind:
            case "open":
                self._groups.append(_Group())
            case "close":
                self._close()
            case "text" | "number":
                level.constants.add(token.kind)
            case "sign" if after.kind == "number" and _starts_constant(before):
                pass
            case "name":
                self._check_name(level, token, after)
            case "compare" | "comma":
                pass
            case _:
                self._refuse(f"'{token.text}'")

    def _check_name(self, level: _Group, token: PredicateToken, after: PredicateToken) -> None:
        word = token.word
        if after.kind == "open" and word not in _WORDS:
            if word not in _FUNCTIONS:
                self._refuse(f"'{token.text}()'")
        elif word in ("and", "or"):
            if word == "and" and level.open_betweens:
                level.open_betweens -= 1
            else:
                self._end_term(level)
                level.has_and_or = True
        elif word == "between":
            level.open_betweens += 1
        elif word in ("true", "false"):
            level.constants.add("boolean")
        elif word in _TIMES and after.kind == "text":
            level.constants.add("time")
        elif word not in _WORDS:
            self._check_column(level, token)

    def _check_column(self, level: _Group, token: PredicateToken) -> None:
        check_not_masked(token, self._label, self._columns, self._masked)
        path = ".".join(token.parts)
        kind = self._columns.get(path)
        if kind is None:
            raise InvalidInputError(f"The {self._label} names no column of this table: '{path}'.")
        if not kind:
            self._refuse(f"the column '{path}', whose type is not compared there")
        self._set_column(level, path, kind)

    def _set_column(self, level: _Group, path: str, kind: str) -> None:
        if level.column and level.column != path:
            self._refuse("one column beside another")
        level.column, level.kind = path, kind

    def _close(self) -> None:
        """End a group, which becomes part of the term around it; terms joined by AND or OR are a boolean there."""
        inner = self._groups.pop()
        outer = self._groups[-1]
        if inner.has_and_or:
            self._end_term(inner)
            self._set_column(outer, "(…)", "boolean")
        elif inner.column:
            self._set_column(outer, inner.column, inner.kind)
        outer.constants |= inner.constants

    def _end_term(self, level: _Group) -> None:
        if level.kind == "text" and level.constants - {"text"}:
            self._refuse(f"the text '{level.column}' beside what is no text")
        if "time" in level.constants and level.kind not in ("time", ""):
            self._refuse(f"'{level.column}' beside a time")
        level.column, level.kind, level.constants = "", "", set()

    def _refuse(self, construct: str) -> NoReturn:
        raise InvalidInputError(f"On a table with policies, the {self._label} may not have {construct}: {_ADVICE}.")


def _starts_constant(before: PredicateToken) -> bool:
    """Return whether a constant can start after this token: a sign there is its own, and no subtraction."""
    return before.kind in ("open", "comma", "compare") or before.word in _WORDS


def check_filter(text: str, label: str, columns: Mapping[str, str], masked: frozenset[str]) -> str:
    """Return a filter if it can fail on no row and names no masked column.

    `columns` are the kinds of columns and of paths in structs ("text", "number", "time", "boolean"; "" for one that
    cannot be compared). Raises InvalidInputError, PermissionDeniedError.
    """
    _FilterCheck(label, columns, masked).run(tokenize(text, label))
    return text
