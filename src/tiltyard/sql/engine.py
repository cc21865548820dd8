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
from tiltyard.runtime.pool import start_thread
from tiltyard.sql.errors import query_errors
from tiltyard.sql.planning import ViewExpansion, placeholder_types
from tiltyard.sql.processes import ViewRead
from tiltyard.sql.remote_query import RemoteQuery, query_request, run_remotely
from tiltyard.sql.statements.text_checks import parse_statement, write_parameters
from tiltyard.sql.tables import QueryTables
from tiltyard.tables.query.response_sizes import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.sql.sessions import Session

_ROOT = Id()


def infer_schema(ctx: Context, query: str, default_namespace: Id = _ROOT, *, is_view: bool = False) -> pa.Schema:
    """Return the schema of a query's rows, without running it. Raises what `plan_query` raises."""
    if (processes := ctx.services.sql_processes) is not None:
        remote = RemoteQuery(
            processes, query_request(ctx, query, default_namespace, parameters=b""), ctx.check_deadline
        )
        remote.start()
        return remote.schema
    planned = plan_query(ctx, query, default_namespace, is_view=is_view)
    planned.close()
    return planned.schema


def named_tables(ctx: Context, query: str, default_namespace: Id = _ROOT) -> list[Id]:
    """Return the ids of the tables that a query, and the views in it, name. Raises what `plan_query` raises."""
    if (processes := ctx.services.sql_processes) is not None:
        remote = RemoteQuery(
            processes, query_request(ctx, query, default_namespace, parameters=b""), ctx.check_deadline
        )
        remote.start()
        return list(remote.tables)
    named: list[Id] = []
    plan_query(ctx, query, default_namespace, None, named).close()
    return named


def infer_view_schema(ctx: Context, path: Id) -> pa.Schema:
    """Return the columns that the context's principal may read of a view. Raises as `read_view`.

    It may be called while DataFusion reads a table of another query, in whose thread it cannot plan.
    """
    read = ViewRead(tuple(path))
    if (processes := ctx.services.sql_processes) is not None:
        remote = RemoteQuery(processes, query_request(ctx, "", _ROOT, view=read), ctx.check_deadline)
        remote.start()
        return remote.schema
    planned = start_thread("view-schema", lambda: plan_view(ctx, read)).result()
    planned.close()
    return planned.schema


def run(ctx: Context, query: str, default_namespace: Id = _ROOT, parameters: Sequence[pa.Scalar] = ()) -> ArrowAnswer:
    """Run a query; its batches are read as they are taken. Raises what `plan_query` raises.

    The batches raise InvalidInputError, and ServiceUnavailableError by the context's deadline; closed, they stop it.
    """
    if (processes := ctx.services.sql_processes) is not None:
        values = write_parameters(parameters)
        return run_remotely(ctx, processes, query_request(ctx, query, default_namespace, parameters=values))
    planned = plan_query(ctx, query, default_namespace, parameters)
    return ArrowAnswer(planned.schema, planned.batches())


def read_view(ctx: Context, read: ViewRead) -> ArrowAnswer:
    """Read a view for the context's principal. Raises as `run` does, and as `ViewExpansion.plan_view`."""
    if (processes := ctx.services.sql_processes) is not None:
        return run_remotely(ctx, processes, query_request(ctx, "", _ROOT, view=read))
    planned = plan_view(ctx, read)
    return ArrowAnswer(planned.schema, planned.batches())


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
    `named` gets the ids of the query's tables, also if it fails. `is_view` says that a view is to be created of it.

    Raises InvalidInputError, UnsupportedOperationError (it does more than read), TableNotFoundError,
    NamespaceNotFoundError, PermissionDeniedError, ThrottlingError, and what opening its tables raises.
    """
    statement = parse_statement(query, ctx.settings.sql_max_length)
    if parameters is not None and statement.placeholders != len(parameters):
        raise InvalidInputError(f"The query has {statement.placeholders} parameters, and {len(parameters)} values.")
    with _planning(ctx, default_namespace, named) as (session, tables):
        expansion = ViewExpansion(session, tables, ctx.settings.sql_max_length)
        frame = expansion.plan(statement, parameters or (), is_view=is_view)
        return PlannedQuery(ctx, session, tables, frame, statement.placeholders)


def plan_view(ctx: Context, read: ViewRead, named: list[Id] | None = None) -> PlannedQuery:
    """Plan to read a view, or the table that has its name meanwhile, as `plan_query` plans a query."""
    with _planning(ctx, _ROOT, named) as (session, tables):
        expansion = ViewExpansion(session, tables, ctx.settings.sql_max_length)
        return PlannedQuery(ctx, session, tables, _select(expansion.plan_table(Id(read.path)), read))


def _select(frame: Any, read: ViewRead) -> Any:
    """Return a frame of what is read of a view."""
    from datafusion import functions, literal

    if read.is_count:
        return frame.aggregate([], [functions.count(literal(1)).alias("rows")])
    if read.columns is not None:
        frame = frame.drop(*(name for name in frame.schema().names if name not in read.columns))
    if read.limit is None and not read.offset:
        return frame
    return frame.limit(NO_LIMIT if read.limit is None else read.limit, read.offset)


@contextmanager
def _planning(ctx: Context, default_namespace: Id, named: list[Id] | None) -> Iterator[tuple[Session, QueryTables]]:
    """Yield a session and the tables of a query, to plan it; where that fails, the session is given back."""
    session = ctx.services.sql_sessions.acquire()
    tables = session.catalog.tables = QueryTables(ctx, session.context, default_namespace)
    try:
        with query_errors(tables):
            yield session, tables
    except BaseException as error:
        failed_as_expected = isinstance(error, LanceNamespaceError) and not isinstance(error, InternalError)
        ctx.services.sql_sessions.release(session, is_reusable=failed_as_expected)
        raise
    finally:
        if named is not None:
            named += tables.paths


def _without_view(kind: pa.DataType) -> pa.DataType:
    """Return how texts and bytes are returned where casts and functions of DataFusion make views of them.

    The driver of JDBC cannot read those.
    """
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _without_views(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_without_view(field.type)) for field in schema], schema.metadata)


class PlannedQuery:
    """A query that was planned: its schema, the ids of its tables, and its rows, which can be read once."""

    def __init__(self, ctx: Context, session: Session, tables: QueryTables, frame: Any, placeholders: int = 0) -> None:
        self._ctx = ctx
        self._sessions = ctx.services.sql_sessions
        self._session: Session | None = session
        self._lock = threading.Lock()
        self._tables = tables
        self._frame = frame
        self.schema = _without_views(frame.schema())
        self.paths = tuple(tables.paths)
        self.grounds = tuple(tables.grounds.values())
        self.placeholders = placeholders

    def parameter_types(self) -> list[pa.DataType]:
        """Return the types of the parameters; that of text for one whose type the query leaves open."""
        types = placeholder_types(self._frame.logical_plan()) if self.placeholders else {}
        found = [types.get(number, pa.string()) for number in range(1, self.placeholders + 1)]
        return [_without_view(kind) for kind in found]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Run the query and yield its rows; it is closed at the end. Raises as `run` says."""
        has_ended = has_failed = False
        rows = 0
        try:
            check_no_blobs(self.schema)
            with query_errors(self._tables):
                for batch in self._frame.execute_stream():
                    self._ctx.check_deadline()
                    rows += len(output := _with_schema(batch.to_pyarrow(), self.schema))
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


def _with_schema(batch: pa.RecordBatch, planned: pa.Schema) -> pa.RecordBatch:
    """Return a batch without views, by the schema of its query: a constant in it may be null by that alone."""
    schema = _without_views(batch.schema)
    if schema.types == planned.types:
        schema = planned
    if schema.equals(batch.schema, check_metadata=True):
        return batch
    if schema.types == batch.schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.cast(schema)


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
