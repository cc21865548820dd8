"""Make the arithmetic of whole numbers in a statement exact: a result out of its type's range is an error.

DataFusion's `+`, `-` (also of one operand), `*` and `sum` of whole numbers wrap. So a statement is planned again with
their operands widened and their results cast back, which is checked:

    SELECT a + b, sum(a) FROM t
    SELECT CAST(CAST(a AS DECIMAL(38,0)) + CAST(b AS DECIMAL(38,0)) AS BIGINT),
           CAST(sum(CAST(a AS DECIMAL(38,0))) AS BIGINT) FROM t

A cast leaves the name of a column as it is. Sums of sums are widened once: only the last result has to be in range.
DataFusion itself says of which type each of these expressions is. That they were found right in the text is proved by
its plan: with brackets around each it is the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.tables.lance_sql.lexer import TOKEN

if TYPE_CHECKING:
    from datafusion import SessionContext

MAX_TYPES = 300
"""Different sums, differences and products of one statement, each of which is planned to find its type."""

_TYPES = {
    "Int8": ("TINYINT", 7),
    "Int16": ("SMALLINT", 15),
    "Int32": ("INT", 31),
    "Int64": ("BIGINT", 63),
    "UInt8": ("TINYINT UNSIGNED", 8),
    "UInt16": ("SMALLINT UNSIGNED", 16),
    "UInt32": ("INT UNSIGNED", 32),
    "UInt64": ("BIGINT UNSIGNED", 64),
}
"""Whole numbers by DataFusion's names: their names in SQL, and the bits of their values."""
_WIDE = "DECIMAL(38,0)"
_PARAMETER_TYPES = {name.lower(): sql for name, (sql, _) in _TYPES.items()} | {
    "float": "REAL",
    "double": "DOUBLE",
    "date32[day]": "DATE",
}
"""Types of a statement's parameters in SQL; one of another type is typed by DataFusion."""

_PROBE = "tiltyard_type_of"
_PROBED = re.compile(rf"satisfy a call to '{_PROBE}' function: coercion from (\w+)")
_DESCRIBING = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:verbose\s+)?(?:format\s+\w+\s+)?", re.IGNORECASE)
_OPERATORS = frozenset("+-*")
_PRODUCT_OPERATORS = frozenset({"*", "/", "%", "||"})
_NO_OPERANDS = frozenset(
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


@dataclass(slots=True)
class _Node:
    """An expression: its tokens from `start` to before `end`, and the operands that arithmetic is looked for in.

    `operator` is one of + - * for an operation (of one or two operands), "()" for brackets around one, "sum" for a
    call, "" for any other.
    """

    start: int
    end: int
    operator: str = ""
    operands: list[_Node] = field(default_factory=list)

    @property
    def operation(self) -> _Node | None:
        """Return the operation that it is, without brackets around it."""
        if self.operator == "()":
            return self.operands[0].operation
        return self if self.operator in _OPERATORS else None


class _Parser:
    """Finds the arithmetic of a statement, by the precedence of its operators; anything else only separates it."""

    def __init__(self, tokens: Sequence[re.Match[str]]) -> None:
        self.tokens = tokens
        self._texts = [*(token[0].lower() for token in tokens), "", "", ""]
        self._kinds = [*(token.lastgroup for token in tokens), "", "", ""]
        self._at = 0
        self.roots: list[_Node] = []
        """Operations that are no operands of others, expressions that have some, and calls of `sum`."""
        while self._at < len(tokens):
            self._region()
            self._at += 1  # a closing bracket without an opening one

    def _region(self) -> list[_Node]:
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

    def _sum(self) -> _Node | None:
        left = self._product()
        while left is not None and self._texts[self._at] in ("+", "-") and not self._is_arrow():
            left, has_more = self._operation(left, self._product)
            if not has_more:
                break
        return left

    def _product(self) -> _Node | None:
        left = self._unary()
        while left is not None and (self._texts[self._at] in _PRODUCT_OPERATORS or self._texts[self._at] == "div"):
            left, has_more = self._operation(left, self._unary)
            if not has_more:
                break
        return left

    def _operation(self, left: _Node, parse: Callable[[], _Node | None]) -> tuple[_Node, bool]:
        """Return the operation whose operator is next; the left operand alone where no other one follows."""
        at, operator = self._at, self._texts[self._at]
        self._at += 1
        if (right := parse()) is None:
            self._at = at
            return left, False
        return _Node(left.start, self._at, operator if operator in _OPERATORS else "", [left, right]), True

    def _is_arrow(self) -> bool:
        token, following = self._at, self._at + 1
        return self._texts[following] == ">" and self.tokens[token].end() == self.tokens[following].start()

    def _unary(self) -> _Node | None:
        start = self._at
        if self._texts[start] in ("+", "-", "~"):
            self._at += 1
            if (operand := self._unary()) is not None:
                is_negative = self._texts[start] == "-" and self._kinds[start + 1] != "number"
                return _Node(start, self._at, "-" if is_negative else "", [operand])
            self._at = start
            return None
        return self._primary()

    def _primary(self) -> _Node | None:
        start, kind, text = self._at, self._kinds[self._at], self._texts[self._at]
        inside: list[_Node] = []
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
        elif kind in ("text", "number", "quoted") or (kind == "word" and text not in _NO_OPERANDS):
            self._at += 1
            if kind in ("word", "quoted") and self._texts[self._at] == "(":
                inside = self._bracket()
                operator = "sum" if text.strip('"`') == "sum" else ""
        else:
            return None
        return self._suffixed(_Node(start, self._at, operator, inside))

    def _bracket(self) -> list[_Node]:
        self._at += 1
        inside = self._region()
        self._at += 1
        return inside

    def _suffixed(self, node: _Node) -> _Node:
        """Return an operand with what binds closer than any operator: fields, elements, casts, windows."""
        while self._clause():
            node.end = self._at
        if node.operator == "sum":
            self.roots += [node, *(each for each in node.operands if each.operands)]
            node = _Node(node.start, node.end)
        inside = list(node.operands)
        while self._suffix(inside):
            node = _Node(node.start, self._at, "", inside)
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

    def _suffix(self, inside: list[_Node]) -> bool:
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


@dataclass(frozen=True, slots=True, order=True)
class _Wrap:
    """Text around the tokens of an expression; of two around the same ones, that of the lower rank is outside."""

    start: int
    end: int
    before: str
    after: str
    rank: int = 0


class CheckedArithmetic:
    """The arithmetic of one statement, and its text in which overflows are errors.

    `plan` plans a text of the statement in `context`, and raises what DataFusion raises.
    """

    def __init__(
        self, text: str, context: SessionContext, plan: Callable[[str], Any], parameters: Sequence[pa.Scalar] = ()
    ) -> None:
        described = _DESCRIBING.match(text)
        self._prefix = described[0] if described else ""
        self._text = text[len(self._prefix) :]
        self._context = context
        self._plan = plan
        self._parameters = parameters
        self._frame: Any = None
        self._types: dict[str, str] = {}
        self._wraps: list[_Wrap] = []

    @cached_property
    def _parser(self) -> _Parser:
        return _Parser([match for match in TOKEN.finditer(self._text) if match.lastgroup != "space"])

    @cached_property
    def _spans(self) -> Mapping[str, set[tuple[int, int]]]:
        """The first tokens of the expressions of each key, and the ones behind them."""
        spans: dict[str, set[tuple[int, int]]] = {}
        for node in (node for root in self._parser.roots for node in _walk(root)):
            spans.setdefault(self._key(node), set()).add((node.start, node.end))
        return spans

    def check(self, frame: Any) -> Any:
        """Return the frame of the statement in which overflows are errors; `frame` is that of its text.

        Raises UnsupportedOperationError for arithmetic that is not found in the text, or too much of it, and what
        DataFusion raises where it cannot optimize the statement.
        """
        self._frame = frame
        try:
            roots = [root for root in self._parser.roots if _has_arithmetic(root)]
        except RecursionError as error:
            raise InvalidInputError("The query nests brackets too deep: 100 at most.") from error
        if not roots:
            return frame
        self._check_spans(roots)
        self._register()
        try:
            for root in roots:
                self._check(root)
        finally:
            self._context.deregister_udf(_PROBE)
        if not self._wraps:
            return frame
        try:
            checked = self._plan(self._prefix + self._written(self._wraps))
        except Exception as error:
            raise _not_found() from error
        names = frame.schema().names
        for name, now in zip(names, checked.schema().names, strict=True):
            if now != name:  # as of a window, whose name has the casts within it
                quoted = now.replace('"', '""')
                checked = checked.with_column_renamed(f'"{quoted}"', name)
        if checked.schema() != frame.schema():
            raise _not_found()
        return checked

    def _check_spans(self, roots: Sequence[_Node]) -> None:
        """Check that the statement is planned alike with brackets around its operations. Raises as `check`."""
        spans = {(node.start, node.end) for root in roots for node in _terms(root)}
        text = self._prefix + self._written([_Wrap(start, end, "(", ")") for start, end in spans])
        try:
            plan = self._plan(text).logical_plan()
        except Exception as error:
            raise _not_found() from error
        if plan.display_indent() != self._frame.logical_plan().display_indent():
            raise _not_found()

    def _check(self, node: _Node) -> None:
        """Wrap what is arithmetic of whole numbers in an expression."""
        if node.operator == "sum":
            self._check_sum(node)
            return
        if node.operator not in _OPERATORS:
            for operand in node.operands:
                self._check(operand)
            return
        name, bits = _TYPES.get(self._type_of(node), ("", 0))
        if not name or self._is_difference_of_dates(node):
            for operand in node.operands:
                self._check(operand)
            return
        operators = [each.operator for each in _operations(node)]
        products = operators.count("*")
        sums = len(operators) - products  # each doubles a factor at most; of one factor, all of them
        is_small = bits * (products + 1) + (sums if products else sums.bit_length()) <= 62
        self._wraps.append(_Wrap(node.start, node.end, "CAST(", f" AS {name})"))
        self._widen(node, "BIGINT" if is_small else _WIDE)

    def _widen(self, node: _Node, wide: str) -> None:
        """Wrap each operand of an operation of whole numbers, and of those that are its operands.

        The negative of a decimal as the order of a window is more than DataFusion can plan: it is a difference.
        """
        if wide == _WIDE and len(node.operands) == 1:
            self._wraps.append(_Wrap(node.start, node.end, "(0 ", ")", 1))
        for operand in node.operands:
            operation = operand.operation
            if operation is not None and not self._is_difference_of_dates(operation):
                self._widen(operation, wide)
            else:
                self._wraps.append(_Wrap(operand.start, operand.end, "CAST(", f" AS {wide})", 2))
                self._check(operand)

    def _check_sum(self, call: _Node) -> None:
        name, _ = _TYPES.get(self._type_of(call), ("", 0))
        if not name:
            return
        first = call.start + 2
        if self._token(first) in ("distinct", "all"):
            first += 1
        end, depth = first, 1
        while not (depth == 1 and (self._token(end) == ")" or self._token(end) == "order")):
            kind = self._parser.tokens[end].lastgroup
            depth += (kind == "open") - (kind == "close")
            end += 1
        self._wraps += (
            _Wrap(call.start, call.end, "CAST(", f" AS {name})", 3),
            _Wrap(first, end, "CAST(", f" AS {_WIDE})", -1),
        )

    def _is_difference_of_dates(self, node: _Node) -> bool:
        """Return whether an operation of which a whole number comes has operands that are none."""
        if (
            node.operator != "-"
            or len(node.operands) == 1
            or any(self._is_number(operand) for operand in node.operands)
        ):
            return False
        return self._type_of(node.operands[0]) not in (*_TYPES, "Null")

    def _is_number(self, node: _Node) -> bool:
        return node.end - node.start == 1 and self._parser.tokens[node.start].lastgroup == "number"

    def _type_of(self, node: _Node) -> str:
        """Return DataFusion's name of the type of an expression; "" where the plan has none of it."""
        key = self._key(node)
        if key not in self._types:
            if len(self._types) >= MAX_TYPES:
                raise UnsupportedOperationError(
                    f"The query has more than {MAX_TYPES} different sums, differences and products: divide it."
                )
            self._types[key] = self._probe(key)
        return self._types[key]

    def _probe(self, key: str) -> str:
        """Return the type of all expressions of a key: a function that takes it of nothing says what it was given."""
        numbers = [token[0] for token in TOKEN.finditer(key) if token.lastgroup not in ("space", "open", "close")]
        if all(number in _OPERATORS or (number.isdigit() and len(number) < 19) for number in numbers):
            return "Int64"
        spans = {
            (node.start, node.end) for root in self._parser.roots for node in _walk(root) if self._key(node) == key
        }
        wraps = [_Wrap(start, end, f"{_PROBE}(", ")") for start, end in spans]
        try:
            self._plan(self._typed(wraps)).optimized_logical_plan()
        except Exception as error:
            if match := _PROBED.search(str(error)):
                return match[1]
            self._frame.optimized_logical_plan()  # the error may be the statement's own
            raise _not_found() from error
        return ""

    def _register(self) -> None:
        from datafusion import udf

        nothing = pa.struct([pa.field(_PROBE, pa.binary(3))])
        self._context.register_udf(udf(lambda value: value, [nothing], nothing, "stable", _PROBE))

    def _typed(self, wraps: Sequence[_Wrap]) -> str:
        """Return the text with parameters of the types of their values, which they get after it is planned."""

        def typed(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            name = _PARAMETER_TYPES.get(str(self._parameters[at].type)) if at < len(self._parameters) else None
            return f"CAST(NULL AS {name})" if name else match[0]

        parts = re.split(r"('[^']*')", self._written(wraps))
        return "".join(part if part[:1] == "'" else re.sub(r"\$(\d+)", typed, part) for part in parts)

    def _written(self, wraps: Sequence[_Wrap]) -> str:
        tokens = self._parser.tokens
        edits = [(tokens[wrap.start].start(), 1, -wrap.end, wrap.rank, wrap.before) for wrap in wraps]
        edits += [(tokens[wrap.end - 1].end(), 0, -wrap.start, -wrap.rank, wrap.after) for wrap in wraps]
        parts, position = [], 0
        for at, _, _, _, text in sorted(edits):
            parts += [self._text[position:at], text]
            position = at
        return "".join([*parts, self._text[position:]])

    def _key(self, node: _Node) -> str:
        """Return the text of an expression without the names of its tables, by which alike ones are typed together."""
        tokens = self._parser.tokens
        parts = []
        for at in range(node.start, node.end):
            is_table = at + 1 < node.end and tokens[at + 1][0] == "."
            if not is_table and tokens[at][0] != ".":
                parts.append(tokens[at][0].lower() if tokens[at].lastgroup == "word" else tokens[at][0])
        return " ".join(parts)

    def _token(self, at: int) -> str:
        return self._parser.tokens[at][0].lower()


def _has_arithmetic(node: _Node) -> bool:
    return node.operator == "sum" or any(each.operation for each in _walk(node))


def _walk(node: _Node) -> list[_Node]:
    """Return an expression and all those in it."""
    return [node, *(each for operand in node.operands for each in _walk(operand))]


def _operations(node: _Node) -> list[_Node]:
    """Return an operation and those that are its operands, however deep."""
    inner = [operation for operand in node.operands if (operation := operand.operation)]
    return [node, *(each for operation in inner for each in _operations(operation))]


def _terms(node: _Node) -> list[_Node]:
    """Return the operations in an expression without those that are the left operands of others, as `a + b` of
    `a + b + c`: they are nested as deep as a chain is long."""
    terms = [node] if node.operation or node.operator == "sum" else []
    while node.operator in _OPERATORS and len(node.operands) == 2:
        left, right = node.operands
        terms += _terms(right)
        if (left.operator == "*") != (node.operator == "*"):
            return terms + _terms(left)
        node = left
    return terms + [each for operand in node.operands for each in _terms(operand)]


def _not_found() -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "The overflow of whole numbers in this query cannot be checked: write each sum, difference and product of it"
        " in brackets, or cast its operands to DOUBLE or DECIMAL."
    )
