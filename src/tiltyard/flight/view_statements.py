"""Run statements on materialized views: each calls the operation that clients call by HTTP, as whoever sent it.

To create or refresh a view queues a job for the servers' workers, or for Spark; the statement ends with that job, and
cancels it where it is ended before. The view of a CREATE whose job failed stays, without rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
)
from msgspec import structs

from tiltyard.calls.in_process_caller import InProcessCaller
from tiltyard.flight.encoding import BatchEncoder, encode_schema
from tiltyard.model.ids import Id
from tiltyard.sql.processes import QueryEndedError
from tiltyard.sql.statements.view_statements import ViewAction, ViewStatement, parse_view_statement

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.flight.handles import QueryHandle
    from tiltyard.sql.read_grounds import ReadGrounds

MAX_STATEMENT_SECONDS = 24 * 3600.0
"""How long a statement waits for its job; a job that takes longer is cancelled."""
MAX_SHOWN = 100_000
"""Names of views that one SHOW returns."""
AWAY_SECONDS = 30.0
"""How long the state of a job is asked for while the catalog is away."""

_NAME = pa.field("name", pa.string(), nullable=False)
_OUTCOME = pa.schema([_NAME, ("mode", pa.string()), ("rows_written", pa.int64()), ("version", pa.int64())])
SCHEMAS: Mapping[ViewAction, pa.Schema] = {
    ViewAction.CREATE: _OUTCOME,
    ViewAction.REFRESH: _OUTCOME,
    ViewAction.DESCRIBE: pa.schema([_NAME, pa.field("query", pa.string(), nullable=False)]),
    ViewAction.DROP: pa.schema([_NAME]),
    ViewAction.SHOW: pa.schema([_NAME]),
}
"""The columns of what each statement returns: a row of the view, for SHOW one of each view."""

log = logging.getLogger("tiltyard.flight")


def find_statement(ctx: Context, handle: QueryHandle) -> ViewStatement | None:
    """Return the statement on a materialized view that a handle has; None where it has a query. Raises
    InvalidInputError.
    """
    namespace, database, most = Id(handle.namespace), Id(handle.database), ctx.settings.sql_max_length
    statement = parse_view_statement(handle.query, namespace, database, most)
    if statement is not None and handle.parameters:
        raise InvalidInputError("A statement on a materialized view has no parameters: write the values themselves.")
    return statement


class _RequestCaller(InProcessCaller):
    """Calls operations within one request."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx.services, ctx.principal, retry_seconds=0)
        self._ctx = ctx

    def context(self) -> Context:
        return self._ctx


class RunningStatement:
    """A statement, as `StartedQuery` says. `start` and `receive` wait for the catalog, `kill` does not."""

    grounds: tuple[ReadGrounds, ...] = ()
    first_messages: Sequence[bytes] = ()

    def __init__(self, ctx: Context, statement: ViewStatement, database: Id) -> None:
        """Prepare a statement within a database. Its job is waited for longer than its request may take."""
        self._caller = _RequestCaller(structs.replace(ctx, database=database))
        self._statement = statement
        self._job_id: str | None = None
        self._is_killed = False
        self.has_ended = False
        self.operation = statement.operation
        self.schema = SCHEMAS[statement.action]
        self.tables: tuple[Id, ...] = (statement.path,) if statement.path else ()

    def start(self) -> None:
        """Call the operation. Raises what it raises, and QueryEndedError if the statement was killed meanwhile."""
        if self._statement.action is ViewAction.SHOW:
            self._finish(_show(self._caller, self._statement))
        else:
            answer = self._caller.call(self.operation, **self._statement.fields)
            if self._statement.queues_job:
                self._job_id = str(answer["job_id"])
            else:
                query = {"query": answer["query"]} if self._statement.action is ViewAction.DESCRIBE else {}
                self._finish([{"name": self._statement.path.name, **query}])
        if self._is_killed:
            self.close()
            raise QueryEndedError("The statement was stopped.")

    def receive(self) -> list[bytes]:
        """Return the rows once the job has ended; none before. Raises InvalidTableStateError if it failed."""
        if self._job_id is None:
            return []
        job = self._caller.call("DescribeJobState", retry_seconds=AWAY_SECONDS, job_id=self._job_id)
        name, state = self._statement.path.name, job["job_state"]
        if state == "DONE":
            result = job["result"]
            outcome = {column: result.get(column) for column in ("mode", "rows_written", "version")}
            return self._finish([{"name": name, **outcome}])
        if state in ("FAILED", "CANCELLED"):
            self.has_ended = True
            reason = (job.get("failure") or {}).get("message") or "its job was cancelled."
            raise InvalidTableStateError(f"The view '{name}' exists, and was not refreshed: {reason}")
        return []

    def kill(self) -> None:
        """Have `close` cancel the job."""
        self._is_killed = True

    def close(self) -> None:
        """Cancel the job of a statement that was killed. Idempotent."""
        job_id, self._job_id = self._job_id, None
        if job_id is None or self.has_ended or not self._is_killed:
            return
        try:
            self._caller.call("CancelJob", retry_seconds=AWAY_SECONDS, job_id=job_id)
        except LanceNamespaceError as error:
            log.warning("the job %s of a statement that was stopped goes on: %s", job_id, error)

    def _finish(self, rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Return the messages of the rows, also as the first ones: the statement has ended."""
        batch = pa.RecordBatch.from_pylist(list(rows), schema=self.schema)
        encoded = (b"".join(parts) for parts in BatchEncoder(self.schema).encode(batch))
        messages = [encode_schema(self.schema), *encoded]
        self.has_ended = True
        if self._job_id is None:
            self.first_messages = messages
        return messages


def _show(caller: InProcessCaller, statement: ViewStatement) -> list[dict[str, Any]]:
    """Return the names of views, in their order. Raises InvalidInputError for more than `MAX_SHOWN`."""
    most = MAX_SHOWN if statement.limit is None else statement.limit
    names: list[str] = []
    token: str | None = statement.after or None
    while len(names) < most:
        page = caller.call(
            statement.operation, **statement.fields, page_token=token, limit=min(most - len(names), 1000)
        )
        names += page["views"]
        if not (token := page.get("page_token")):
            break
        if len(names) >= MAX_SHOWN:
            raise InvalidInputError(
                f"There are more than {MAX_SHOWN} views: list them in pages, WHERE name > 'the last name' LIMIT 1000."
            )
    return [{"name": name} for name in names]
