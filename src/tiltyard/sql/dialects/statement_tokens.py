"""A statement as tokens: its words and brackets, and where calls, queries and operands in it begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lance_namespace.errors import InvalidInputError

from tiltyard.sql.statements.operations import NO_OPERANDS
from tiltyard.tables.lance_sql.lexer import TOKEN

JSON_TYPES = frozenset({"json", "jsonb"})
BETWEEN_QUERIES = frozenset({"union", "intersect", "except"})
_BEFORE_QUERIES = frozenset({"all", "explain", "analyze", "verbose"})


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function: its name, and the first tokens of its arguments and those behind them."""

    name: str
    at: int
    end: int
    arguments: tuple[tuple[int, int], ...]


class StatementTokens:
    """The tokens of a statement; places in it are their numbers, also those before the first and behind the last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]
        self._words = [token[0].lower() for token in self._tokens]
        self._kinds = [str(token.lastgroup) for token in self._tokens]
        self._closes, self._opens = _brackets(self._kinds)

    def _word_at(self, at: int) -> str:
        return self._words[at] if 0 <= at < len(self._words) else ""

    def _kind_at(self, at: int) -> str:
        return self._kinds[at] if 0 <= at < len(self._kinds) else ""

    def _begins_query(self, at: int) -> bool:
        """Return whether a FROM is the first word of a query: of one in brackets, behind UNION, or behind a WITH."""
        before = self._word_at(at - 1)
        if before in ("", "(", ";", *BETWEEN_QUERIES, *_BEFORE_QUERIES):
            return True
        if before == "name":
            return self._word_at(at - 2) == "by"
        return before == ")" and self._is_behind_with(at - 1)

    def _is_behind_with(self, at: int) -> bool:
        """Return whether a closing bracket ends a common table expression, as in `WITH a AS (SELECT 1) FROM a`."""
        while (opening := self._opens.get(at)) is not None:
            named = opening - 1
            while self._word_at(named) in ("materialized", "not"):
                named -= 1
            if self._word_at(named) != "as":
                return False
            named -= 1
            if self._kind_at(named) == "close":  # the names of its columns
                named = self._opens.get(named, 0) - 1
            if self._word_at(named - 1) in ("with", "recursive"):
                return True
            if self._kind_at(named - 1) != "comma":
                return False
            at = named - 2
        return False

    def _is_call(self, at: int) -> bool:
        """Return whether a name before a bracket is a function's, not an alias with the names of its columns."""
        before, kind = self._word_at(at - 1), self._kind_at(at - 1)
        if kind in ("close", "quoted", "text", "number") or before in ("as", "."):
            return False
        if kind == "word" and before not in NO_OPERANDS:
            return False
        behind = self._closes.get(at + 1, len(self._words)) + 1
        is_defined = self._word_at(behind) == "as" and self._word_at(behind + 1) in ("(", "materialized", "not")
        return not is_defined

    def _call_at(self, at: int) -> FunctionCall:
        end = self._closes.get(at + 1, len(self._words))
        arguments, start, position = [], at + 2, at + 2
        while position < end:
            if self._kinds[position] == "comma":
                arguments.append((start, position))
                start = position + 1
            position = self._closes.get(position, position) + 1
        if start < end or arguments:
            arguments.append((start, end))
        return FunctionCall(self._words[at], at, end, tuple(arguments))

    def _is_joined(self, at: int, size: int) -> bool:
        return all(self._tokens[i].end() == self._tokens[i + 1].start() for i in range(at, at + size - 1))

    def _is_whole_number(self, start: int, end: int) -> bool:
        first = start + (self._word_at(start) == "-")
        return end - first == 1 and self._kinds[first] == "number" and self._words[first].isdigit()

    def _left(self, at: int) -> int:
        """Return the first token of the operand that ends before a token. Raises InvalidInputError."""
        start = at - 1
        while True:
            kind = self._kind_at(start)
            if kind == "close":
                start = self._opens.get(start, -1)
                if self._words[start] == "[" and (self._kind_at(start - 1) == "close" or self._is_name(start - 1)):
                    start -= 1
                    if self._words[start] != "array":
                        continue
                elif self._words[start] == "(" and self._is_name(start - 1):
                    start -= 1
            elif kind in ("number", "text"):
                start -= self._word_at(start - 1) in ({"$"} if kind == "number" else JSON_TYPES | {"e"})
            elif not self._is_name(start):
                raise unclear("a JSON operator")
            if self._word_at(start - 1) not in (".", "::"):
                return start
            start -= 2

    def _is_name(self, at: int) -> bool:
        return self._kind_at(at) == "quoted" or (self._kind_at(at) == "word" and self._words[at] not in NO_OPERANDS)

    def _right(self, start: int) -> int:
        """Return the token behind the operand that begins at a token. Raises InvalidInputError."""
        at = start
        is_typed = self._kind_at(at) == "word" and self._kind_at(at + 1) == "text"
        if is_typed or (self._word_at(at) in ("-", "$") and self._kind_at(at + 1) == "number"):
            at += 2
        elif self._kind_at(at) == "open":
            at = self._closes.get(at, len(self._words)) + 1
        elif self._kind_at(at) in ("text", "number") or self._is_name(at):
            at += 1
            if self._word_at(at) in ("(", "["):
                at = self._closes.get(at, len(self._words)) + 1
        else:
            raise unclear("a JSON operator")
        while self._word_at(at) in (".", "::", "["):
            if self._words[at] == "[":
                at = self._closes.get(at, len(self._words)) + 1
                continue
            at += 2
            if self._word_at(at) == "(":
                at = self._closes.get(at, len(self._words)) + 1
        return min(at, len(self._words))

    def _text_of(self, start: int, end: int) -> str | None:
        """Return the text that an argument is; None for one that is no text."""
        if end - start != 1 or self._kinds[start] != "text":
            return None
        return self._tokens[start][0][1:-1].replace("''", "'")


def _brackets(kinds: Sequence[str]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the closing brackets by the opening ones, and the other way."""
    closes: dict[int, int] = {}
    waiting: list[int] = []
    for at, kind in enumerate(kinds):
        if kind == "open":
            waiting.append(at)
        elif kind == "close" and waiting:
            closes[waiting.pop()] = at
    return closes, {close: at for at, close in closes.items()}


def unclear(operator: str) -> InvalidInputError:
    """Return the error of an operator whose operands could be several."""
    return InvalidInputError(
        f"Write brackets around the operands of {operator}, or around the whole operation, as in (doc -> 'a') + 1."
    )
