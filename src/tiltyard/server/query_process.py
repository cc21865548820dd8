"""A process that runs SQL queries for a server, one after the other, until the server closes its end of the socket."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import pyarrow as pa
from lance_namespace.errors import ErrorCode, LanceNamespaceError

from tiltyard.bootstrap import open_services
from tiltyard.config import Settings
from tiltyard.context import Context, Services
from tiltyard.flight.encoding import LARGE_BYTES, BatchEncoder, Part, encode_schema
from tiltyard.model.decisions import AskedOperation
from tiltyard.model.ids import Id
from tiltyard.runtime.child_process import start_python
from tiltyard.runtime.client_arrow.reading import to_ipc
from tiltyard.server.log_setup import set_up_logging
from tiltyard.sql.engine import PlannedQuery, plan_query, plan_view
from tiltyard.sql.processes import HEAD, Failure, Form, MessageKind, PlanDescription, QueryRequest
from tiltyard.sql.remote_query import EXECUTE
from tiltyard.sql.statements.text_checks import read_parameters

CACHE_BYTES = 64 << 20
"""Bytes of index pages, of metadata, and of rows that one of these processes caches."""
PRELOADED = ("tiltyard.server.query_process_modules",)
"""Modules that the process has which all others are forked from."""

log = logging.getLogger("tiltyard.sql")


def start_query_process(settings: Settings, channel: socket.socket, folder: Path) -> BaseProcess:
    """Start a process that serves the queries that come through a socket, and spills to a folder."""
    arguments = channel, settings, str(folder)
    return start_python(
        "sql", "Runs SQL queries, one after the other", "forkserver", serve, arguments, preload=PRELOADED, daemon=True
    )


def serve(channel: socket.socket, settings: Settings, folder: str) -> None:
    """Serve queries. It ends with the server, whatever it is doing then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to the server as well, which decides
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # it is, as long as it has done nothing
    threading.Thread(target=_end_with_server, args=(channel, folder), daemon=True).start()
    set_up_logging(settings)
    small = {
        name: min(getattr(settings, name), CACHE_BYTES)
        for name in ("index_cache_bytes", "metadata_cache_bytes", "page_cache_bytes")
    }
    settings = replace(settings, **small, vector_cache_bytes=0, disk_cache_bytes=0, sql_spill_folder=folder)
    server = QueryServer(open_services(settings), channel)
    while server.serve_next():
        pass
    os._exit(0)


def _end_with_server(channel: socket.socket, folder: str) -> None:
    """Wait until the server has closed its end, and end this process; a query may be running."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP | select.POLLHUP)
    poll.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class QueryServer:
    """Serves the requests of one socket."""

    def __init__(self, services: Services, channel: socket.socket) -> None:
        self._services = services
        self._channel = channel
        self._decoder = msgspec.msgpack.Decoder(QueryRequest)
        self._encode = msgspec.msgpack.Encoder().encode
        self._unsent = b""

    def serve_next(self) -> bool:
        """Serve a request; return False once there are no more. Raises OSError if the server is gone."""
        head = self._channel.recv(HEAD.size, socket.MSG_WAITALL)
        if len(head) < HEAD.size:
            return False
        _, length = HEAD.unpack(head)
        self._serve(self._decoder.decode(self._channel.recv(length, socket.MSG_WAITALL)))
        return True

    def _serve(self, request: QueryRequest) -> None:
        named: list[Id] = []
        ctx = Context(
            self._services,
            request.request_id,
            principal=request.principal,
            database=Id(request.database),
            asked=AskedOperation(EXECUTE),
        )
        try:
            self._run(ctx, request, named)
        except LanceNamespaceError as error:
            self._fail(ctx, int(error.code), str(error), named)
        except OSError:
            raise
        except Exception:
            log.exception("the query of request %s failed", request.request_id)
            self._fail(ctx, int(ErrorCode.INTERNAL), "The query failed: the server's log says how.", named)

    def _fail(self, ctx: Context, code: int, message: str, named: list[Id]) -> None:
        self._send(MessageKind.FAILED, self._encode(Failure(code, message, tuple(named), tuple(ctx.decided))))

    def _run(self, ctx: Context, request: QueryRequest, named: list[Id]) -> None:
        """Plan a query and send what it is, and its rows. Raises what they raise, and OSError."""
        self._services.rights_cache.refresh_next()  # the server may have changed a grant just now
        planned = _plan(ctx, request, named)
        try:
            self._send(MessageKind.PLANNED, self._encode(_describe(ctx, planned, has_types=request.form is None)))
            if request.form is not None:
                for number, parts in enumerate(_encoded(planned, request.form)):
                    self._send(MessageKind.DATA, *parts, with_next=number == 0 and request.form is Form.FLIGHT)
                self._send(MessageKind.END)
        finally:
            planned.close()

    def _send(self, kind: MessageKind, *parts: Part, with_next: bool = False) -> None:
        """Send a message, or leave it to be sent with the next one: the schema is of no use without rows."""
        small: list[Part] = [self._unsent, HEAD.pack(kind, sum(map(len, parts)))]
        self._unsent = b""
        for part in parts:
            if len(part) < LARGE_BYTES:
                small.append(part)
                continue
            self._channel.sendall(b"".join(small))
            self._channel.sendall(part)
            small = []
        if with_next:
            self._unsent = b"".join(small)
        elif small:
            self._channel.sendall(b"".join(small))


def _plan(ctx: Context, request: QueryRequest, named: list[Id]) -> PlannedQuery:
    """Plan what a request asks for; `named` gets the ids of its tables. Raises what the engine raises."""
    if request.view is not None:
        return plan_view(ctx, request.view, named)
    values = None if request.parameters is None else read_parameters(request.parameters)
    return plan_query(ctx, request.query, Id(request.namespace), values, named, is_view=request.is_view)


def _describe(ctx: Context, planned: PlannedQuery, *, has_types: bool) -> PlanDescription:
    types = planned.parameter_types() if has_types else []
    parameters = pa.schema([(str(number), kind) for number, kind in enumerate(types, 1)])
    schema, parameter_schema = (schema.serialize().to_pybytes() for schema in (planned.schema, parameters))
    return PlanDescription(schema, planned.paths, parameter_schema, planned.grounds, tuple(ctx.decided))


def _encoded(planned: PlannedQuery, form: Form) -> Iterator[Sequence[Part]]:
    """Yield the rows of a query, each message in the parts that it consists of."""
    if form is Form.FLIGHT:
        encoder = BatchEncoder(planned.schema)
        yield (encode_schema(planned.schema),)
        for batch in planned.batches():
            yield from encoder.encode(batch)
        return
    for batch in planned.batches():
        yield (memoryview(to_ipc(batch)),)
