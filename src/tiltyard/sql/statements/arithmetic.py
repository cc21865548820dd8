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
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.sql.statements.operations import (
    OPERATORS,
    Operations,
    PlanNode,
    has_arithmetic,
    nested_operations,
    terms_of,
    walk,
)

if TYPE_CHECKING:
    from datafusion import SessionContext

MAX_TYPES = 100
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
TYPED_LATE = frozenset({"case", "union"})
"""While a statement is planned, a CASE has the type of its first value, and a UNION has those of its first SELECT."""
_PARAMETER_TYPES = {name.lower(): sql for name, (sql, _) in _TYPES.items()} | {
    "float": "REAL",
    "double": "DOUBLE",
    "date32[day]": "DATE",
}
"""Types of a statement's parameters in SQL; one of another type is typed by DataFusion."""

_Key = tuple[int, int, str]
_PROBE = "tiltyard_type_of"
_PROBED = re.compile(rf"satisfy a call to '{_PROBE}' function: coercion from (\w+)")
_DESCRIBING = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:verbose\s+)?(?:format\s+\w+\s+)?", re.IGNORECASE)


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
        self._types: dict[_Key, str] = {}
        self._wraps: list[_Wrap] = []

    @cached_property
    def _parser(self) -> Operations:
        return Operations(self._text)

    @cached_property
    def _spans(self) -> Mapping[_Key, set[tuple[int, int]]]:
        """The first tokens of the expressions of each key, and the ones behind them."""
        spans: dict[_Key, set[tuple[int, int]]] = {}
        for node in (node for root in self._parser.roots for node in walk(root)):
            for key in (self._key(node), self._loose_key(node)):
                spans.setdefault(key, set()).add((node.start, node.end))
        return spans

    def check(self, frame: Any) -> Any:
        """Return the frame of the statement in which overflows are errors; `frame` is that of its text.

        Raises UnsupportedOperationError for arithmetic that is not found in the text, or too much of it, and what
        DataFusion raises where it cannot optimize the statement.
        """
        self._frame = frame
        try:
            roots = [root for root in self._parser.roots if has_arithmetic(root)]
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
        if checked.schema() != frame.schema() and self._final_schema(checked) != self._final_schema(frame):
            raise _not_found()
        return checked

    def _final_schema(self, frame: Any) -> pa.Schema:
        return with_final_types(self._context, frame).schema()

    def _check_spans(self, roots: Sequence[PlanNode]) -> None:
        """Check that the statement is planned alike with brackets around its operations. Raises as `check`."""
        spans = {(node.start, node.end) for root in roots for node in terms_of(root)}
        text = self._prefix + self._written([_Wrap(start, end, "(", ")") for start, end in spans])
        try:
            plan = self._plan(text).logical_plan()
        except Exception as error:
            raise _not_found() from error
        if _comparable(plan) != _comparable(self._frame.logical_plan()):
            raise _not_found()

    def _check(self, node: PlanNode) -> None:
        """Wrap what is arithmetic of whole numbers in an expression."""
        if node.operator == "sum":
            self._check_sum(node)
            return
        if node.operator not in OPERATORS:
            for operand in node.operands:
                self._check(operand)
            return
        name, bits = _TYPES.get(self._type_of(node), ("", 0))
        if not name or self._is_difference_of_dates(node):
            for operand in node.operands:
                self._check(operand)
            return
        operators = [each.operator for each in nested_operations(node)]
        products = operators.count("*")
        sums = len(operators) - products  # each doubles a factor at most; of one factor, all of them
        is_small = bits * (products + 1) + (sums if products else sums.bit_length()) <= 62
        self._wraps.append(_Wrap(node.start, node.end, "CAST(", f" AS {name})"))
        self._widen(node, "BIGINT" if is_small else _WIDE)

    def _widen(self, node: PlanNode, wide: str) -> None:
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

    def _check_sum(self, call: PlanNode) -> None:
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

    def _is_difference_of_dates(self, node: PlanNode) -> bool:
        """Return whether an operation of which a whole number comes has operands that are none."""
        if (
            node.operator != "-"
            or len(node.operands) == 1
            or any(self._is_number(operand) for operand in node.operands)
        ):
            return False
        return self._type_of(node.operands[0]) not in (*_TYPES, "Null")

    def _is_number(self, node: PlanNode) -> bool:
        return node.end - node.start == 1 and self._parser.tokens[node.start].lastgroup == "number"

    def _type_of(self, node: PlanNode) -> str:
        """Return DataFusion's name of the type of an expression; "" where the plan has none of it."""
        key = self._key(node)
        if key not in self._types:
            if len(self._types) >= MAX_TYPES:
                raise UnsupportedOperationError(
                    f"The query has more than {MAX_TYPES} different sums, differences and products: divide it."
                )
            self._types[key] = self._probe(node)
        return self._types[key]

    def _probe(self, node: PlanNode) -> str:
        """Return the type of an expression: a function that takes it of nothing says what it was given.

        It is called with all alike ones, as of GROUP BY, which are the same to the plan; their names may have a table
        in one place and none in another.
        """
        tokens = self._parser.tokens[node.start : node.end]
        numbers = [token[0] for token in tokens if token.lastgroup not in ("open", "close")]
        if all(number in OPERATORS or (number.isdigit() and len(number) < 19) for number in numbers):
            return "Int64"
        failure: Exception | None = None
        is_late = any(token[0].lower() in TYPED_LATE for token in self._parser.tokens)
        for wrap in (self._typed_later, self._typed_at_once) if is_late else (self._typed_at_once,):
            for spans in (self._spans[self._key(node)], self._spans[self._loose_key(node)]):
                try:
                    self._plan(self._typed([wrap(*span) for span in spans])).optimized_logical_plan()
                except Exception as error:  # noqa: BLE001  # its text is the answer
                    match = _PROBED.search(str(error))
                    if match and not (is_late and wrap == self._typed_at_once and not match[1].startswith("UInt")):
                        return match[1]
                    failure = error
                else:
                    return ""
        self._frame.optimized_logical_plan()  # the error may be the statement's own
        raise _not_found() from failure

    def _typed_later(self, start: int, end: int) -> _Wrap:
        """Return what asks for an expression's type once its parts have theirs: a CASE is planned whatever it is of.

        That takes several times as long. Columns of views have their types already.
        """
        tokens = self._parser.tokens
        text = self._text[tokens[start].start() : tokens[end - 1].end()]
        return _Wrap(start, end, f"CASE {_PROBE}({text}) IS NULL WHEN true THEN ", f" ELSE {text} END")

    def _typed_at_once(self, start: int, end: int) -> _Wrap:
        """Return what asks for the type by which an expression is planned: the negative of an unsigned number has none
        later."""
        return _Wrap(start, end, f"{_PROBE}(", ")")

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

    def _key(self, node: PlanNode) -> _Key:
        """Return what alike expressions have in common: where they stand, and their text but for their numbers."""
        return *self._parser.places[node.start], self._text_of(node, with_tables=True)

    def _loose_key(self, node: PlanNode) -> _Key:
        """Return what an expression has in common with all of its SELECT that may be the same."""
        return self._parser.places[node.start][0], -1, self._text_of(node, with_tables=False)

    def _text_of(self, node: PlanNode, *, with_tables: bool) -> str:
        tokens = self._parser.tokens
        parts = []
        for at in range(node.start, node.end):
            text = tokens[at][0]
            is_table = tokens[at + 1 : at + 2] and tokens[at + 1][0] == "."
            if with_tables or not (is_table or text == "."):
                is_small = text.isdigit() and len(text) < 19
                parts.append("0" if is_small else text.lower() if tokens[at].lastgroup == "word" else text)
        return " ".join(parts)

    def _token(self, at: int) -> str:
        return self._parser.tokens[at][0].lower()


def with_final_types(context: SessionContext, frame: Any) -> Any:
    """Return a frame that returns the same rows, whose columns have their types. Raises what DataFusion raises.

    Until then `TYPED_LATE` have others.
    """
    return context.create_dataframe_from_logical_plan(frame.optimized_logical_plan())


def _comparable(plan: Any) -> list[list[str]]:
    """Return the lines of a plan, in parts: columns that ORDER BY adds to a projection are in any order."""
    return [sorted(line.split(", ")) for line in plan.display_indent().split("\n")]


def _not_found() -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "The overflow of whole numbers in this query cannot be checked: write each sum, difference and product of it"
        " in brackets, or cast its operands to DOUBLE or DECIMAL."
    )
