"""Find the operations of a statement: its sums, differences, products and negatives, and its calls of `sum`.

They are found in the text, by the precedence of operators; anything else only separates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tiltyard.tables.lance_sql.lexer import TOKEN

OPERATORS = frozenset("+-*")
_PRODUCT_OPERATORS = frozenset({"*", "/", "%", "||"})
NO_OPERANDS = frozenset(
    """
    all and any as between by case cross distinct div else end escape except exclude fetch for from full group having
    ilike in inner intersect is join lateral like limit natural not offset on or order over partition placing qualify
    rlike select set similar some then to union using values when where window with xor
    """.split()  # noqa: SIM905  # a list of names is read as one
)
"""Words that begin no operand, also before a bracket."""
_ZONE = ("at", "time", "zone")
_UNITS = re.compile(r"(?:year|month|week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?|to")
_TYPE_SUFFIXES = frozenset({"precision", "unsigned", "signed", "varying", "with", "without", "time", "zone"})
_QUERY_WORDS = frozenset({"select", "with", "values"})
_SET_WORDS = frozenset({"union", "intersect", "except"})
_PARTS = {"select": 0, "group": 0, "having": 0, "qualify": 0, "window": 0, "from": 1, "where": 1, "order": 2}
"""Words that begin the parts of a SELECT: a name of one may be another column in the next."""


@dataclass(slots=True)
class PlanNode:
    """An expression: its tokens from `start` to before `end`, and the operands that arithmetic is looked for in.

    `operator` is one of + - * for an operation (of one or two operands), "()" for brackets around one, "sum" for a
    call, "" for any other.
    """

    start: int
    end: int
    operator: str = ""
    operands: list[PlanNode] = field(default_factory=list)

    @property
    def operation(self) -> PlanNode | None:
        """Return the operation that it is, without brackets around it."""
        if self.operator == "()":
            return self.operands[0].operation
        return self if self.operator in OPERATORS else None


class Operations:
    """The operations of a text of SQL. Raises RecursionError for one that nests too deep."""

    def __init__(self, text: str) -> None:
        self.tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]
        self._texts = [*(token[0].lower() for token in self.tokens), "", "", ""]
        self._kinds = [*(token.lastgroup for token in self.tokens), "", "", ""]
        self._at = 0
        self.places = list(_places(self._texts, self._kinds))
        """The SELECT, and the part of it, that each token is in."""
        self.roots: list[PlanNode] = []
        """Operations that are no operands of others, expressions that have some, and calls of `sum`."""
        while self._at < len(self.tokens):
            self._region()
            self._at += 1  # a closing bracket without an opening one

    def _region(self) -> list[PlanNode]:
        """Parse up to a closing bracket; return its expression where it is a single one, else add all to the roots."""
        start, nodes = self._at, []
        while self._at < len(self.tokens) and self._kinds[self._at] != "close" and self._texts[self._at] != "end":
            if (node := self._sum()) is not None:
                nodes.append(node)
            else:
                self._at += 1
        if len(nodes) == 1 and (nodes[0].start, nodes[0].end) == (start, self._at):
            return nodes
        self.roots += (node for node in nodes if node.operands)
        return []

    def _sum(self) -> PlanNode | None:
        left = self._product()
        while left is not None and self._texts[self._at] in ("+", "-") and not self._is_arrow():
            left, has_more = self._operation(left, self._product)
            if not has_more:
                break
        return left

    def _product(self) -> PlanNode | None:
        left = self._unary()
        while left is not None and (self._texts[self._at] in _PRODUCT_OPERATORS or self._texts[self._at] == "div"):
            left, has_more = self._operation(left, self._unary)
            if not has_more:
                break
        return left

    def _operation(self, left: PlanNode, parse: Callable[[], PlanNode | None]) -> tuple[PlanNode, bool]:
        """Return the operation whose operator is next; the left operand alone where no other one follows."""
        at, operator = self._at, self._texts[self._at]
        self._at += 1
        if (right := parse()) is None:
            self._at = at
            return left, False
        return PlanNode(left.start, self._at, operator if operator in OPERATORS else "", [left, right]), True

    def _is_arrow(self) -> bool:
        token, following = self._at, self._at + 1
        return self._texts[following] == ">" and self.tokens[token].end() == self.tokens[following].start()

    def _unary(self) -> PlanNode | None:
        start = self._at
        if self._texts[start] in ("+", "-", "~"):
            self._at += 1
            if (operand := self._unary()) is not None:
                is_negative = self._texts[start] == "-" and self._kinds[start + 1] != "number"
                return PlanNode(start, self._at, "-" if is_negative else "", [operand])
            self._at = start
            return None
        return self._primary()

    def _primary(self) -> PlanNode | None:
        start, kind, text = self._at, self._kinds[self._at], self._texts[self._at]
        inside: list[PlanNode] = []
        operator = ""
        if text == "case":
            self._at += 1
            inside = self._region()
            while self._at < len(self.tokens) and self._texts[self._at] != "end":
                self._at += 1
                inside += self._region()
            self._at += 1
        elif kind == "open":
            inside = self._bracket()
            operator = "()" if inside and inside[0].operation else ""
        elif text == "interval":
            self._at += 1
            self._primary()
            while _UNITS.fullmatch(self._texts[self._at]):
                self._at += 1
        elif text == "$" or (kind == "word" and self._kinds[start + 1] == "text"):
            self._at += 2  # a parameter; a literal of a type
        elif kind in ("text", "number", "quoted") or (kind == "word" and text not in NO_OPERANDS):
            self._at += 1
            if kind in ("word", "quoted") and self._texts[self._at] == "(":
                inside = self._bracket()
                operator = "sum" if text.strip('"`') == "sum" else ""
        else:
            return None
        return self._suffixed(PlanNode(start, self._at, operator, inside))

    def _bracket(self) -> list[PlanNode]:
        self._at += 1
        inside = self._region()
        self._at += 1
        return inside

    def _suffixed(self, node: PlanNode) -> PlanNode:
        """Return an operand with what binds closer than any operator: fields, elements, casts, windows."""
        while self._clause():
            node.end = self._at
        if node.operator == "sum":
            self.roots += [node, *(each for each in node.operands if each.operands)]
            node = PlanNode(node.start, node.end)
        inside = list(node.operands)
        while self._suffix(inside):
            node = PlanNode(node.start, self._at, "", inside)
        return node

    def _clause(self) -> bool:
        """Go past a clause of a call, as FILTER (…), OVER w, IGNORE NULLS; return whether there is one."""
        words = self._texts[self._at : self._at + 2]
        if words in (["within", "group"], ["ignore", "nulls"], ["respect", "nulls"]):
            self._at += 2
        elif words[0] in ("filter", "over") and words[1]:
            self._at += 1 if words[1] == "(" else 2
        else:
            return False
        if self._texts[self._at] == "(" and words[1] != "nulls":
            self.roots += (each for each in self._bracket() if each.operands)
        return True

    def _suffix(self, inside: list[PlanNode]) -> bool:
        """Go past a field, an element, a cast, a zone or a collation; return whether there is one."""
        match self._texts[self._at]:
            case ".":
                self._at += 2
                inside += self._bracket() if self._texts[self._at] == "(" else ()
            case "[":
                inside += self._bracket()
            case "::":
                self._at += 2
                self._type()
            case "at" if tuple(self._texts[self._at : self._at + 3]) == _ZONE:
                self._at += 3
                self._primary()
            case "collate":
                self._at += 2
            case _:
                return False
        return True

    def _type(self) -> None:
        """Go past a type's further words, sizes and dimensions."""
        while self._texts[self._at] in _TYPE_SUFFIXES or self._kinds[self._at] == "open":
            if self._kinds[self._at] == "open":
                self._bracket()
            else:
                self._at += 1


def _places(texts: Sequence[str], kinds: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Yield the SELECT and the part of it that each token is in, within which a name has one meaning."""
    scopes = count(1)
    outer: list[tuple[int, int, bool]] = []
    scope, part, is_query = 0, 0, True
    for at, text in enumerate(texts):
        if kinds[at] == "open":
            outer.append((scope, part, is_query))
            is_query = texts[at + 1] in _QUERY_WORDS
            if is_query:
                scope, part = next(scopes), 0
        elif kinds[at] == "close" and outer:
            scope, part, is_query = outer.pop()
        elif is_query and text in _SET_WORDS:
            scope, part = next(scopes), 0
        elif is_query:
            part = _PARTS.get(text, part)
        yield scope, part


def has_arithmetic(node: PlanNode) -> bool:
    return node.operator == "sum" or any(each.operation for each in walk(node))


def walk(node: PlanNode) -> list[PlanNode]:
    """Return an expression and all those in it."""
    return [node, *(each for operand in node.operands for each in walk(operand))]


def nested_operations(node: PlanNode) -> list[PlanNode]:
    """Return an operation and those that are its operands, however deep."""
    inner = [operation for operand in node.operands if (operation := operand.operation)]
    return [node, *(each for operation in inner for each in nested_operations(operation))]


def terms_of(node: PlanNode) -> list[PlanNode]:
    """Return the operations in an expression without those that are the left operands of others, as `a + b` of
    `a + b + c`: they are nested as deep as a chain is long."""
    terms = [node] if node.operation or node.operator == "sum" else []
    while node.operator in OPERATORS and len(node.operands) == 2:
        left, right = node.operands
        terms += terms_of(right)
        if (left.operator == "*") != (node.operator == "*"):
            return terms + terms_of(left)
        node = left
    return terms + [each for operand in node.operands for each in terms_of(operand)]
