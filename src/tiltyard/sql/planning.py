"""Plan a statement with the views that it names, and judge it by its plan: it consists of nodes that only read.

Each view is planned before the statement, and becomes a part of its plan. DataFusion looks up the tables of a statement
while it plans it, and cannot plan another one meanwhile. So a statement that names a view is planned again once the
view has a plan: the look-up says which view it was.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    UnsupportedOperationError,
    from_error_code,
)

from tiltyard.model.ids import Id
from tiltyard.sql.dialects.translation import restore_places
from tiltyard.sql.errors import READ_ONLY, query_errors
from tiltyard.sql.statements.arithmetic import TYPED_LATE, CheckedArithmetic, with_final_types
from tiltyard.sql.statements.text_checks import NEGATED_MEMBERSHIP, check_size, parse_statement
from tiltyard.sql.tables import TableRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.sql.sessions import Session
    from tiltyard.sql.statements.text_checks import Statement
    from tiltyard.sql.tables import QueryTables, ViewRef

_READING_NODES = frozenset(
    """
    Aggregate Analyze DescribeTable Distinct EmptyRelation Explain Filter Join Limit Projection Repartition Sort
    Subquery SubqueryAlias TableScan Union Unnest Values Window WindowExpr
    """.split()  # noqa: SIM905  # a list of names is read as one
)
_CHANGING = re.compile(r"\s*(?:insert|update|delete|merge|copy|create|alter|drop|set)\b", re.IGNORECASE)
"""How statements begin that are refused for what they are, whatever else is wrong with them."""
_DESCRIBING_NODES = frozenset({"Explain", "Analyze"})
_STATEMENT_NODES = frozenset("Explain Analyze DescribeTable".split())  # noqa: SIM905  # as above
"""Nodes of statements that are no queries, of which no view is made."""

_EXPRESSIONS_OF_NODES = ("predicate", "projections", "filter", "aggregate_exprs", "group_by_exprs")
"""Methods of the plan's nodes that return expressions."""
_CAST_PLACEHOLDER = re.compile(r"CAST\(\$(\d+) AS (.+)\)")
_CAST_DECIMAL = re.compile(r"Decimal128\((\d+), (-?\d+)\)")
_CAST_TYPES = {
    "Boolean": pa.bool_(),
    "Binary": pa.binary(),
    "Date32": pa.date32(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "Time64(ns)": pa.time64("ns"),
    "Timestamp(ns)": pa.timestamp("ns"),
    "Timestamp(Nanosecond, None)": pa.timestamp("ns"),
}
"""Types by the names that DataFusion's expressions have for them; a parameter of another one is sent as text."""


def check_plan(plan: Any, *, is_restricted: bool, is_view: bool = False) -> None:
    """Check that each node of a logical plan only reads. Raises UnsupportedOperationError.

    `is_restricted` says that policies restrict the reader on one of its tables: then the plan itself is not shown.
    `is_view` says that it is the plan of a view, which is a query and no other statement.
    """
    for node in _nodes(plan):
        kind = type(node).__name__
        if kind not in _READING_NODES:
            raise UnsupportedOperationError(f"{READ_ONLY} This one has a step of the kind {kind}.")
        if is_view and kind in _STATEMENT_NODES:
            raise UnsupportedOperationError("A view is a SELECT, WITH or VALUES, and no other statement.")
        if is_restricted and kind in _DESCRIBING_NODES:
            raise UnsupportedOperationError("Policies restrict you on a table of this query: its plan is not shown.")


def check_memberships(plan: Any) -> None:
    """Check that no IN (SELECT …) of an optimized plan, of which some are negated, is a join that marks rows.

    For that join a membership is never null, which matters below a NOT alone. Raises UnsupportedOperationError.
    """
    for node in _nodes(plan):
        if type(node).__name__ == "Join" and "Mark" in str(node.join_type()):
            raise UnsupportedOperationError(NEGATED_MEMBERSHIP)


def placeholder_types(plan: Any) -> dict[int, pa.DataType]:
    """Return the types of the placeholders that are compared with or computed from a typed value, by their numbers."""
    types: dict[int, pa.DataType] = {}
    for node in _nodes(plan):
        for name in _EXPRESSIONS_OF_NODES:
            found = getattr(node, name)() if hasattr(node, name) else None
            for expression in found if isinstance(found, list) else [found]:
                _add_placeholder_types(expression, types)
    return types


def _add_placeholder_types(expression: Any, types: dict[int, pa.DataType]) -> None:
    """Add the types of the placeholders within an expression; a sort key and a missing filter are none."""
    if not hasattr(expression, "variant_name"):
        return
    if expression.variant_name() == "Placeholder":
        placeholder = expression.to_variant()
        if (field := placeholder.field()) is not None:
            types[int(placeholder.id().removeprefix("$"))] = field.type
        return
    text = expression.canonical_name()
    if cast := _CAST_PLACEHOLDER.fullmatch(text):
        decimal = _CAST_DECIMAL.fullmatch(cast[2])
        types[int(cast[1])] = (
            pa.decimal128(*map(int, decimal.groups())) if decimal else _CAST_TYPES.get(cast[2], pa.string())
        )
        return
    with suppress(ValueError, RuntimeError):  # a kind of expression whose parts DataFusion does not show
        for operand in expression.rex_call_operands():
            if operand.canonical_name() != text:  # a column is its own operand
                _add_placeholder_types(operand, types)


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a plan; those of subqueries in expressions are queries by the grammar itself."""
    nodes, waiting = [], [plan]
    while waiting:
        current = waiting.pop()
        nodes.append(current.to_variant())
        waiting += current.inputs()
    return nodes


MAX_VIEW_DEPTH = 8
"""Views of which each reads the next one."""
_NEW_VIEW = Id(("the new view",))


class ViewExpansion:
    """The plan of one query in a session, and of the views that it names."""

    def __init__(self, session: Session, tables: QueryTables, max_length: int) -> None:
        self._session = session
        self._tables = tables
        self._max_length = max_length
        self._statements: dict[Id, Statement] = {}
        self._sizes: dict[str, int] = {}
        self._names: set[str] = set()
        self._open: list[Id] = []

    def plan(self, statement: Statement, parameters: Sequence[pa.Scalar] = (), *, is_view: bool = False) -> Any:
        """Return the frame of a statement; `is_view` says that it is the query of a view that is to be created.

        Raises as the engine's `plan_query`.
        """
        if is_view:
            self._open.append(_NEW_VIEW)
        frame, _ = self._plan(statement, parameters)
        check_plan(frame.logical_plan(), is_restricted=self._tables.is_restricted, is_view=is_view)
        if any(each.has_negated_membership for each in (statement, *self._statements.values())):
            with query_errors(self._tables):
                check_memberships(frame.optimized_logical_plan())
        return frame if statement.placeholders > len(parameters) else self._with_final_types(frame, statement)

    def plan_table(self, path: Id) -> Any:
        """Return the frame of a view, or of a table. Raises as `plan_view`, and what opening a table raises."""
        try:
            table = self._tables.table(TableRef(path))
        except LanceNamespaceError:
            if (ref := self._tables.take_view_to_plan()) is None:
                raise
            frame = self.plan_view(ref)
            if any(each.has_negated_membership for each in self._statements.values()):
                check_memberships(frame.optimized_logical_plan())
            return frame
        return self._session.context.read_table(table)

    def plan_view(self, ref: ViewRef) -> Any:
        """Return the frame of a view: its columns as it was created with, less those that are hidden from its reader.

        Raises as `plan` does, InvalidInputError for a view that reads itself, or through too many others, and
        InvalidTableStateError for one of which no column is left.
        """
        if ref.path in self._open or len(self._open) >= MAX_VIEW_DEPTH:
            names = ", ".join(map(str, (*self._open, ref.path)))
            raise InvalidInputError(
                f"Views read each other {MAX_VIEW_DEPTH} deep at most, and not themselves: {names}."
            )
        statement = parse_statement(ref.view.query, self._max_length)
        if statement.placeholders:
            raise InvalidInputError(f"The view {ref.path} has parameters, which the query of a view has not.")
        self._open.append(ref.path)
        try:
            with self._tables.within(ref.view.database):
                frame, size = self._plan(statement, ())
            check_plan(frame.logical_plan(), is_restricted=self._tables.is_restricted, is_view=True)
        except InternalError:
            raise
        except LanceNamespaceError as error:
            raise from_error_code(int(error.code), f"In the view {ref.path}: {error}") from error
        finally:
            self._open.pop()
        self._statements[ref.path] = statement
        name = ref.path.name.lower()
        self._sizes[name] = max(self._sizes.get(name, 0), size)
        return _with_columns(self._with_final_types(frame, statement), ref)

    def _with_final_types(self, frame: Any, statement: Statement) -> Any:
        """Return a frame whose columns have the types of its rows (`with_final_types`)."""
        if not any(TYPED_LATE & each.names for each in (statement, *self._statements.values())):
            return frame
        try:
            final = with_final_types(self._session.context, frame)
        except Exception:  # noqa: BLE001  # it is raised again when it runs
            return frame
        return frame if final.schema().types == frame.schema().types else final

    def _plan(self, statement: Statement, parameters: Sequence[pa.Scalar]) -> tuple[Any, int]:
        """Plan a statement, again after each view that it turns out to name; return its frame and its size."""
        self._names |= statement.names
        while True:
            size = check_size(statement, self._statements.values(), self._sizes)
            self._session.functions.select(self._names)
            try:
                with query_errors(self._tables):
                    frame = self._plan_once(statement, parameters)
                    if self._session.functions.add(frame.logical_plan()):
                        frame = self._plan_once(statement, parameters)
                    return frame, size
            except LanceNamespaceError as error:
                if (ref := self._tables.take_view_to_plan()) is None:
                    if isinstance(error, InvalidInputError) and _CHANGING.match(statement.text):
                        raise UnsupportedOperationError(READ_ONLY) from error
                    if statement.source != statement.text:
                        placed = restore_places(statement.source, str(error))
                        raise from_error_code(int(error.code), placed) from error
                    raise
                self._tables.add_view(ref, self.plan_view(ref))

    def _plan_once(self, statement: Statement, parameters: Sequence[pa.Scalar]) -> Any:
        from datafusion import SQLOptions

        options = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        values = {str(number): value for number, value in enumerate(parameters, 1)}
        context = self._session.context

        def plan(text: str) -> Any:
            return context.sql_with_options(text, options, param_values=values)

        frame = plan(statement.text)
        if statement.placeholders > len(parameters):
            return frame  # it is not run
        return CheckedArithmetic(statement.text, context, plan, parameters).check(frame)


def _with_columns(frame: Any, ref: ViewRef) -> Any:
    """Return a view's frame without columns that its tables have got since it was created."""
    names = frame.schema().names
    kept = [name for name in names if name in ref.view.schema.names]
    if not kept:
        raise InvalidTableStateError(f"The view {ref.path} has no column any more that it was created with.")
    return frame if len(kept) == len(names) else frame.drop(*(name for name in names if name not in kept))
