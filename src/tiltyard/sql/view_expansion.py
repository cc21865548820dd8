"""Plan a statement with the views that it names: each is planned before it, and becomes a part of its plan.

DataFusion looks up the tables of a statement while it plans it, and cannot plan another one meanwhile. So a statement
that names a view is planned again once the view has a plan: the look-up says which view it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    from_error_code,
)

from tiltyard.model.ids import Id
from tiltyard.sql.arithmetic import CheckedArithmetic
from tiltyard.sql.errors import query_errors
from tiltyard.sql.plans import check_memberships, check_plan
from tiltyard.sql.statements import check_size, parse_statement
from tiltyard.sql.tables import TableRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tiltyard.sql.sessions import Session
    from tiltyard.sql.statements import Statement
    from tiltyard.sql.tables import QueryTables, ViewRef

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
        return frame

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
        return _with_columns(frame, ref)

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
            except LanceNamespaceError:
                if (ref := self._tables.take_view_to_plan()) is None:
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
