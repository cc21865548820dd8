"""Plan and run queries over the tables of the catalog, for one reader.

    schema = infer_schema(ctx, "SELECT title FROM films", Id())
    answer = run(ctx, "SELECT title FROM films", Id())

The reader is the context's principal: each table of the query needs `read`, and is read within its policies.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError, UnsupportedOperationError

from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.ids import Id
from tiltyard.model.operations import ArrowAnswer
from tiltyard.sql.errors import missing_table, sql_errors
from tiltyard.sql.parameters import write_parameters
from tiltyard.sql.remote_query import RemoteQuery, query_request, run_remotely
from tiltyard.sql.statements import parse_statement
from tiltyard.sql.tables import QueryTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.sql.sessions import Session
    from tiltyard.sql.statements import Statement

_ROOT = Id()


def infer_schema(ctx: Context, query: str, default_namespace: Id = _ROOT, *, is_view: bool = False) -> pa.Schema:
    """Return the schema of a query's rows, without running it. Raises what `plan_query` raises."""
    if (processes := ctx.services.sql_processes) is not None:
        request = query_request(ctx, query, default_namespace, parameters=b"", is_view=is_view)
        remote = RemoteQuery(processes, request, ctx.check_deadline)
        remote.start()
        return remote.schema
    planned = plan_query(ctx, query, default_namespace, is_view=is_view)
    planned.close()
    return planned.schema


def run(
    ctx: Context,
    query: str,
    default_namespace: Id = _ROOT,
    parameters: Sequence[pa.Scalar] = (),
    *,
    is_view: bool = False,
    limit: int | None = None,
) -> ArrowAnswer:
    """Run a query, up to `limit` rows of it; its batches are read as they are taken. Raises what `plan_query` raises.

    The batches raise InvalidInputError, and ServiceUnavailableError by the context's deadline; closed, they stop it.
    """
    if (processes := ctx.services.sql_processes) is not None:
        values = write_parameters(parameters)
        request = query_request(ctx, query, default_namespace, parameters=values, is_view=is_view, limit=limit)
        return run_remotely(ctx, processes, request)
    planned = plan_query(ctx, query, default_namespace, parameters, is_view=is_view)
    return ArrowAnswer(planned.schema, planned.batches(limit))


def plan_query(
    ctx: Context,
    query: str,
    default_namespace: Id = _ROOT,
    parameters: Sequence[pa.Scalar] | None = (),
    named: list[Id] | None = None,
    *,
    is_view: bool = False,
) -> PlannedQuery:
    """Plan a query for the context's principal. It has a session until it is closed, or its last batch was read.

    `parameters` are the values of `$1`, `$2`, … (or of each `?`); None plans for the schema a query that is not run.
    `is_view` says that it is the query of a view, which reads tables and no other views.
    `named` gets the ids of the query's tables, also if it fails.

    Raises InvalidInputError, UnsupportedOperationError (it does more than read), TableNotFoundError,
    NamespaceNotFoundError, PermissionDeniedError, ThrottlingError, and what opening its tables raises.
    """
    statement = parse_statement(query, ctx.settings.sql_max_length)
    if parameters is not None and statement.placeholders != len(parameters):
        raise InvalidInputError(f"The query has {statement.placeholders} parameters, and {len(parameters)} values.")
    session = ctx.services.sql_sessions.acquire()
    tables = session.catalog.tables = QueryTables(ctx, session.context, default_namespace, is_view=is_view)
    try:
        with query_errors(tables):
            frame = _plan(session, statement, parameters)
            return PlannedQuery(ctx, session, tables, frame, statement.placeholders)
    except BaseException as error:
        failed_as_expected = isinstance(error, LanceNamespaceError) and not isinstance(error, InternalError)
        ctx.services.sql_sessions.release(session, is_reusable=failed_as_expected)
        raise
    finally:
        if named is not None:
            named += tables.paths


@contextmanager
def query_errors(tables: QueryTables) -> Iterator[None]:
    """Translate what DataFusion raises, or raise what has made it fail: what one of the query's tables has raised."""
    try:
        with sql_errors():
            yield
    except LanceNamespaceError as error:
        if tables.failure is not None:
            raise tables.failure from None
        name = None if error.__cause__ is None else missing_table(error.__cause__)
        if name is not None and (missing := tables.missing_error(name)) is not None:
            raise missing from None
        raise


def _plan(session: Session, statement: Statement, parameters: Sequence[pa.Scalar] | None) -> Any:
    from datafusion import SQLOptions

    from tiltyard.sql.plans import check_plan

    options = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    values = {str(number): value for number, value in enumerate(parameters or (), 1)}
    session.functions.select(statement.names)
    frame = session.context.sql_with_options(statement.text, options, param_values=values)
    tables = session.catalog.tables
    assert tables is not None
    check_plan(frame.logical_plan(), is_restricted=tables.is_restricted)
    return frame


class PlannedQuery:
    """A query that was planned: its schema, the ids of its tables, and its rows, which can be read once."""

    def __init__(self, ctx: Context, session: Session, tables: QueryTables, frame: Any, placeholders: int) -> None:
        self._ctx = ctx
        self._sessions = ctx.services.sql_sessions
        self._session: Session | None = session
        self._lock = threading.Lock()
        self._tables = tables
        self._frame = frame
        self.schema: pa.Schema = frame.schema()
        self.paths = tuple(tables.paths)
        self.placeholders = placeholders

    def parameter_types(self) -> list[pa.DataType]:
        """Return the types of the parameters; that of text for one whose type the query leaves open."""
        from tiltyard.sql.plans import placeholder_types

        types = placeholder_types(self._frame.logical_plan()) if self.placeholders else {}
        return [types.get(number, pa.string()) for number in range(1, self.placeholders + 1)]

    def batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Run the query and yield its rows, `limit` at most; it is closed at the end. Raises as `run` says."""
        has_ended = has_failed = False
        rows = 0
        try:
            check_no_blobs(self.schema)
            with query_errors(self._tables):
                frame = self._frame if limit is None else self._frame.limit(limit)
                for batch in frame.execute_stream():
                    self._ctx.check_deadline()
                    rows += len(output := batch.to_pyarrow())
                    check_rows(self._ctx, rows)
                    yield output
            has_ended = True
        except Exception:
            has_failed = True
            raise
        finally:
            self.close(is_reusable=has_ended, has_failed=has_failed)

    def close(self, *, is_reusable: bool = True, has_failed: bool = False) -> None:
        """Give the session back. `is_reusable` says that nothing of the query runs any more, `has_failed` why.

        Idempotent.
        """
        with self._lock:
            session, self._session, self._frame = self._session, None, None
        if session is not None:
            self._sessions.release(session, is_reusable=is_reusable, has_failed=has_failed)


def check_no_blobs(schema: pa.Schema) -> None:
    """Raise UnsupportedOperationError for a result with blobs, of which Lance's scan returns descriptions alone."""
    blobs = [field.name for field in schema if has_blobs([field])]
    if blobs:
        raise UnsupportedOperationError(
            f"The column '{blobs[0]}' holds blobs, which a query does not return: leave it out, and read its blobs by"
            " row id."
        )


def check_rows(ctx: Context, rows: int) -> None:
    """Raise InvalidInputError if a result has more rows than it may."""
    most = ctx.settings.sql_max_rows
    if most and rows > most:
        raise InvalidInputError(f"The result has more than {most} rows (sql_max_rows): narrow the query.")
