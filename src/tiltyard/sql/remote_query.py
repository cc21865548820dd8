"""One query in a process of its own: planned, read, and ended at any time by any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import from_error_code

from tiltyard.model.ids import Id
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.principals import EVERYBODY
from tiltyard.sql.processes import Failure, Form, MessageKind, PlanDescription, QueryEndedError, QueryRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context, QueryProcesses
    from tiltyard.model.decisions import DecisionNote
    from tiltyard.sql.processes import QueryProcess
    from tiltyard.sql.read_grounds import ReadGrounds

EXECUTE = "ExecuteQuery"
"""What running a query is called in the audit log and the metrics."""
MAX_PIECE_BYTES = 4 << 20
"""Bytes of messages that one `receive` returns, if so many wait."""

_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
"""Lance panics at a decimal or a view of a text that is not aligned to 16 bytes, as in a message it need not be."""

_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(PlanDescription)
_failure_decoder = msgspec.msgpack.Decoder(Failure)


class RemoteQuery:
    """A query. `start` and `receive` wait, and are called by one thread at a time; `kill` and `close` by any."""

    def __init__(self, processes: QueryProcesses, request: QueryRequest, check: Callable[[], None]) -> None:
        """Prepare a query; `check` is called while it is waited for, and may raise to end it."""
        self._processes = processes
        self._request = request
        self._check = check
        caller = request.principal
        self._principal = None if caller == EVERYBODY else caller.name
        self._lock = threading.Lock()
        self._process: QueryProcess | None = None
        self._is_closed = False
        self.has_ended = False
        """Whether its last part was received, and its process is free."""
        self.schema: pa.Schema = pa.schema([])
        self.parameters: pa.Schema = pa.schema([])
        self.tables: tuple[Id, ...] = ()
        """The ids of its tables, also if planning fails."""
        self.grounds: tuple[ReadGrounds, ...] = ()
        """Why its reader may read them."""
        self.decided: tuple[DecisionNote, ...] = ()
        """What services outside have decided about that, also if planning fails."""
        self.first_messages: Sequence[bytes] = ()
        """Parts of its rows that have come with its plan."""

    def start(self) -> None:
        """Plan the query, and let it run unless it is only to be planned. It is closed if that fails.

        Raises ThrottlingError, what planning raises, what `check` raises, and QueryEndedError if it was closed.
        """
        process = self._processes.acquire(self._principal)
        with self._lock:
            self._process = process
            is_closed = self._is_closed
        if is_closed:
            self._release()
            raise QueryEndedError("The query was stopped.")
        try:
            process.send(_encoder.encode(self._request))
            kind, body = process.receive(self._check)
            if kind is MessageKind.FAILED:
                raise self._failure(body)
            plan = _plan_decoder.decode(body)
            self.tables, self.grounds, self.decided = tuple(map(Id, plan.tables)), plan.grounds, plan.decided
            self.schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
            self.parameters = pa.ipc.read_schema(pa.py_buffer(plan.parameters))
            if self._request.form is None:
                self.has_ended = True
                self.close()
        except BaseException:
            self.close()
            raise

    def receive(self) -> list[bytes]:
        """Return the next parts of the rows, all that have come; none at the end, when it is closed.

        Raises what the query fails by, what `check` raises, and QueryEndedError if it was closed.
        """
        if self.has_ended:
            return []
        process = self._process
        if process is None:
            raise QueryEndedError("The query was stopped.")
        parts: list[bytes] = []
        size = 0
        try:
            while not parts or (size < MAX_PIECE_BYTES and process.has_message()):
                kind, body = process.receive(self._check)
                if kind is MessageKind.FAILED:
                    raise self._failure(body)
                if kind is MessageKind.END:
                    self.has_ended = True
                    self.close()
                    break
                parts.append(body)
                size += len(body)
        except BaseException:
            self.close()
            raise
        return parts

    def has_more(self, seconds: float) -> bool:
        """Return whether `receive` would not wait, within so many seconds."""
        process = self._process
        return self.has_ended or process is None or process.has_message(seconds)

    def kill(self) -> None:
        """End the query now, without waiting; `close` is still due."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Free the query's process; end the query if it runs, and wait for that. Idempotent."""
        with self._lock:
            self._is_closed = True
        self._release()

    def _release(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            self._processes.release(process, self._principal, is_idle=self.has_ended)

    def _failure(self, body: bytes) -> Exception:
        failure = _failure_decoder.decode(body)
        self.tables, self.decided = tuple(map(Id, failure.tables)), failure.decided
        self.has_ended = True
        return from_error_code(failure.code, failure.message)


def query_request(ctx: Context, query: str, namespace: Sequence[str], **options: Any) -> QueryRequest:
    """Return the request for a query of the context's principal; `options` are further fields of it."""
    return QueryRequest(query, ctx.principal, ctx.request_id, tuple(namespace), database=tuple(ctx.database), **options)


def note_decisions(ctx: Context, query: RemoteQuery) -> None:
    """Note what services outside have decided, in the query's process, for the audit and the metrics of this one."""
    if ctx.services.decisions is not None:
        ctx.services.decisions.add(ctx, query.decided)


def run_remotely(ctx: Context, processes: QueryProcesses, request: QueryRequest) -> ArrowAnswer:
    """Run a query in a process; its batches are read as they are taken. Raises as the engine's `run`."""
    query = RemoteQuery(processes, msgspec.structs.replace(request, form=Form.STREAM), ctx.check_deadline)
    try:
        query.start()
    finally:
        note_decisions(ctx, query)
    return ArrowAnswer(query.schema, QueryBatches(query))


class QueryBatches:
    """The batches of a running query of `Form.STREAM`, which ends when they are closed, or forgotten."""

    def __init__(self, query: RemoteQuery) -> None:
        self._query = query
        self._waiting: list[bytes] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if not self._waiting:
            self._waiting = self._query.receive()[::-1]
        if not self._waiting:
            raise StopIteration
        return pa.ipc.open_stream(self._waiting.pop(), options=_ALIGNED).read_next_batch()

    def has_next(self, seconds: float) -> bool:
        """Return whether the next batch, or the end, has come within so many seconds."""
        return bool(self._waiting) or self._query.has_more(seconds)

    def close(self) -> None:
        """End the query."""
        self._waiting = []
        self._query.close()

    def __del__(self) -> None:
        self._query.close()
